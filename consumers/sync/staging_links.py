"""Files for members on the same machine, by hard links: no byte is sent or written a second time.

A receiver that can open the staging directory of a member links segment and series into it, and the member takes them
under its own names. A directory that cannot be opened, or is on another disk, is no error: then the bytes are sent.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import NOT_FOUND
from pathlib import Path
from urllib.parse import urlencode

from headrace.connectors.http import AnswerCut, NodeRefused, NodeUnreachable, request_node
from headrace.consumers.sync.file_check import series_path
from headrace.consumers.sync.member_routes import LINKED_SERIES_SUFFIX, SYNC_STAGING_ROUTE, UPLOAD_SUFFIX
from headrace.schemas.group_changes import GroupKey

DIRECTORIES_MAX = 1_024
"""Directories that are remembered; beyond that all are asked for again."""
ASK_TIMEOUT_S = 5.0
_Place = tuple[str, GroupKey]
"""(address of a member, a group of it)."""


class StagingLinks:
    """Safe to share between threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._directories: dict[_Place, Path | None] = {}

    @contextmanager
    def linked(self, url: str, group: GroupKey, path: Path) -> Iterator[str]:
        """The name under which a file is in the member's staging directory while the block runs; empty for none."""
        directory, name = self._directory((url, group)), uuid.uuid4().hex
        if directory is None:
            yield ""
            return
        links = directory / f"{name}{UPLOAD_SUFFIX}", directory / f"{name}{LINKED_SERIES_SUFFIX}"
        try:
            for source, link in zip((path, series_path(path)), links, strict=True):
                os.link(source, link)
        except OSError as error:
            # Another machine, another disk, or another user's. A directory that is gone was swept: asked for it, the
            # member makes it again.
            self._note((url, group), error)
            name = ""
        try:
            yield name
        finally:
            for link in links:
                # The member has renamed those that it took.
                with suppress(OSError):
                    link.unlink()

    def forget(self, url: str, group: GroupKey) -> None:
        """Send the bytes from now on."""
        with self._lock:
            self._directories[url, group] = None

    def _note(self, place: _Place, error: OSError) -> None:
        if not isinstance(error, FileNotFoundError):
            self.forget(*place)
            return
        with self._lock:
            self._directories.pop(place, None)

    def _directory(self, place: _Place) -> Path | None:
        with self._lock:
            if place in self._directories:
                return self._directories[place]
        try:
            found = _ask(place)
        except (NodeUnreachable, AnswerCut):
            return None
        except NodeRefused as error:
            # A group that comes there, a node that starts, a full disk: all of these pass.
            if error.status != NOT_FOUND:
                return None
            # A build before this one has no such route.
            found = None
        with self._lock:
            if len(self._directories) >= DIRECTORIES_MAX:
                self._directories.clear()
            self._directories[place] = found
        return found


def _ask(place: _Place) -> Path | None:
    """The staging directory of a member, None where this process cannot open it. Raises as `request_node`."""
    url, group = place
    named = urlencode({"group": group.group, "birth": group.birth})
    try:
        with request_node(f"{url}{SYNC_STAGING_ROUTE}?{named}", timeout_s=ASK_TIMEOUT_S) as answer:
            directory = Path(str(answer.json()["directory"]))
    except (ValueError, KeyError, TypeError):
        return None
    return directory if os.access(directory, os.W_OK) else None
