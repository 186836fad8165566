"""The small files of ours in a checkpoint: one JSON object each, in a folder beside Spark's files."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from headrace.connectors.files import create_directories, write_atomically
from headrace.schemas.errors import HeadraceError

T = TypeVar("T")

OWN_FOLDER = "headrace"


class CheckpointDamaged(HeadraceError):
    """A file of ours in a checkpoint that is none of ours, as after an edit by hand. The message names it."""


def local_folder(checkpoint: str) -> Path | None:
    """The checkpoint as a local path, None when it is a URL of another file system."""
    parts = urlsplit(checkpoint)
    if parts.scheme in ("", "file"):
        return Path(parts.path if parts.scheme else checkpoint).absolute()
    return None


@dataclass(frozen=True, slots=True)
class CheckpointFile:
    """One of them; without a path, as of a checkpoint elsewhere, it is never there and nothing is kept."""

    path: Path | None

    @classmethod
    def of(cls, checkpoint: str, name: str) -> CheckpointFile:
        """The file of a checkpoint, "" for none."""
        folder = local_folder(checkpoint) if checkpoint else None
        return cls(None if folder is None else folder / OWN_FOLDER / name)

    def read(self, decode: Callable[[Mapping[str, Any]], T]) -> T | None:
        """What it has; None where there is no such file. Raises CheckpointDamaged."""
        if self.path is None or not self.path.exists():
            return None
        try:
            return decode(json.loads(self.path.read_text()))
        except (ValueError, LookupError, TypeError, HeadraceError) as error:
            raise CheckpointDamaged(
                f"{self.path} is damaged",
                action="restore it; or remove it, if cluster, topic and job are still those of the earlier runs",
            ) from error

    def write(self, document: Mapping[str, Any]) -> None:
        """Replace it, durably."""
        if self.path is not None:
            create_directories(self.path.parent)
            write_atomically(self.path, json.dumps(document, indent=1) + "\n")
