"""Whose a data directory is: cluster, node, and which topics its data came from.

Written before anything else into a new directory, and checked before anything else in an old one, so that no node ever mixes its data with another's.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from connectors.files import write_atomically
from schemas.errors import HeadraceError

DIRECTORY_FORMAT = 1
IDENTITY_FILE = "node.json"


class DataDirectoryForeign(HeadraceError):
    """A data directory of another node, another cluster or another format."""


class DataDirectoryDamaged(HeadraceError):
    """A data directory whose identity cannot be read."""


class DataDirectoryUnusable(HeadraceError):
    """A data directory that cannot be read or written."""


@dataclass(slots=True)
class Identity:
    """Who a data directory belongs to; `topics` maps a forward topic to the id it had when its data was stored, `wrong` one whose group
    holds what its log does not say, and is still to be recovered, to why; `gaps` one that has lost records to the gap that was accepted (see
    consumers.replication.gap)."""

    cluster: str
    node: str
    store: str
    topics: dict[str, str]
    wrong: dict[str, str] = field(default_factory=dict)
    gaps: dict[str, dict[str, Any]] = field(default_factory=dict)

    @classmethod
    def load(cls, directory: Path, cluster: str, node: str) -> Identity:
        """The directory's identity, new for an empty directory. Raises DataDirectoryForeign, DataDirectoryDamaged."""
        path = directory / IDENTITY_FILE
        if not path.exists():
            return cls(cluster, node, uuid.uuid4().hex, {})
        try:
            content = json.loads(path.read_bytes())
            if content["format"] != DIRECTORY_FORMAT:
                raise DataDirectoryForeign(
                    f"data directory {directory} has format {content['format']}, this build reads {DIRECTORY_FORMAT}",
                    action="use the build that wrote it, or another directory",
                )
            topics, wrong = dict(content["topics"]), dict(content.get("wrong", {}))
            gaps = dict(content.get("gaps", {}))
            found = cls(content["cluster"], content["node"], content["store"], topics, wrong, gaps)
        except (ValueError, KeyError, TypeError) as error:
            raise DataDirectoryDamaged(
                f"{path} is damaged: {error!r}",
                action="restore that file, or move the data directory away: the node recovers from the log",
            ) from error
        for name, theirs, mine in (("cluster", found.cluster, cluster), ("node", found.node, node)):
            if theirs != mine:
                raise DataDirectoryForeign(
                    f"data directory {directory} belongs to {name} {theirs!r}, not {mine!r}",
                    action="use another --data-dir",
                )
        return found

    def renew(self) -> None:
        """Other data from now on: what was said of the old is not held against the new."""
        self.store = uuid.uuid4().hex

    def save(self, directory: Path) -> None:
        """Write it durably."""
        content = {
            "format": DIRECTORY_FORMAT,
            "cluster": self.cluster,
            "node": self.node,
            "store": self.store,
            "topics": self.topics,
            "wrong": self.wrong,
            "gaps": self.gaps,
        }
        write_atomically(directory / IDENTITY_FILE, json.dumps(content, indent=1, sort_keys=True).encode())
