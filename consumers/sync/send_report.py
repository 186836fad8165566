"""Senders as `headrace sync status --data-dir` shows them, from their state directories."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from headrace.connectors.files import DirectoryHeld
from headrace.consumers.sync.send_status import sender_document
from headrace.consumers.sync.state_directory import (
    STATUS_FILE,
    NoSender,
    StateDirectory,
    read_identity,
    sender_directories,
)
from headrace.schemas.errors import HeadraceError


class FileUnknown(HeadraceError):
    """A file that a sender does not know."""


def check_files(directory: Path, files: Sequence[str]) -> None:
    """Raises FileUnknown. A sender that runs has its state to itself: it names such a file when it reads the request."""
    identity = read_identity(directory)
    if not files or identity is None:
        return
    try:
        state = StateDirectory.open(directory, identity.centre, identity.topics)
    except DirectoryHeld:
        return
    try:
        known = state.recover().files
    finally:
        state.close()
    if unknown := [each for each in files if each not in known]:
        raise FileUnknown(
            f"sender {identity.sender} has no file {unknown[0]!r}", action="see headrace sync status, column file"
        )


def sender_documents(root: Path) -> list[dict[str, Any]]:
    """One entry for each state directory at or below a path. Raises NoSender, StateDamaged, WriteAheadLogError."""
    directories = sender_directories(root)
    if not directories:
        raise NoSender(f"there is no state directory of a sender in {root}", action="name one with --data-dir")
    return [_document(each) for each in directories]


def _document(directory: Path) -> dict[str, Any]:
    identity = read_identity(directory)
    assert identity is not None, directory
    try:
        state = StateDirectory.open(directory, identity.centre, identity.topics)
    except DirectoryHeld:
        # The sender runs, and shows what it has once a second.
        try:
            document: dict[str, Any] = json.loads((directory / STATUS_FILE).read_bytes())
        except (OSError, ValueError):
            document = {"sender": identity.sender, "name": identity.name, **_NOTHING}
        return document
    try:
        return sender_document(identity.sender, identity.name, state.recover(), 0.0, "")
    finally:
        state.close()


_NOTHING: dict[str, Any] = {
    "accepted": 0,
    "rejected": 0,
    "waiting": 0,
    "bytes_left": 0,
    "bytes_per_second": 0,
    "seconds_left": None,
    "last_error": "the sender has shown nothing yet",
    "files": [],
}
