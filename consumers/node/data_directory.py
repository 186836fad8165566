"""The identity of a data directory: cluster, node, and the topics that its data came from.

It is written before any data and checked before any data is opened, so that no node ever mixes its data with
another's.
"""

from __future__ import annotations

import json
import uuid
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from headrace.connectors.files import create_directories, rename_durably, write_atomically
from headrace.consumers.node.settings import IDENTITY_FILE
from headrace.consumers.store.store_directory import QUARANTINE_DIRECTORY
from headrace.schemas.errors import HeadraceError

DIRECTORY_FORMAT = 1
LOG_DIRECTORY = "log"
"""That of a node whose log is its own."""


def set_aside(data_directory: Path, name: str) -> Path:
    """Move a part that cannot be used to `{data}/damaged/{name}-{n}`, durably; returns that path."""
    damaged = create_directories(data_directory / QUARANTINE_DIRECTORY)
    target = next(path for number in count(1) if not (path := damaged / f"{name}-{number}").exists())
    rename_durably(data_directory / name, target)
    return target


class DataDirectoryForeign(HeadraceError):
    """A data directory of another node, another cluster or another format."""


class DataDirectoryDamaged(HeadraceError):
    """A data directory whose identity cannot be read."""


class DataDirectoryUnusable(HeadraceError):
    """A data directory that cannot be read or written."""

    @classmethod
    def because(cls, directory: Path, error: OSError) -> DataDirectoryUnusable:
        """The error of an operation on it. It names the path that it is about: a parent may be a file or read-only."""
        cause = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror or error)
        return cls(
            f"data directory {directory} cannot be used: {cause}",
            action="free space, repair the disk or the permissions, then start the node again",
        )


@dataclass(slots=True)
class Identity:
    """The owner of a data directory, and its groups' state by forward topic.

    `topics`: its id when the data was stored. `wrong`: why the group's data is not that of its log and must
    be replaced. `gaps`: the accepted gap of a log that lost records (see
    headrace.consumers.recovery.log_gap). `born`: how many membership records there were when the directory was new,
    -1 while it is.
    """

    cluster: str
    node: str
    store: str
    topics: dict[str, str]
    wrong: dict[str, str] = field(default_factory=dict)
    gaps: dict[str, dict[str, Any]] = field(default_factory=dict)
    born: int = 0

    @classmethod
    def load(cls, directory: Path, cluster: str, node: str) -> Identity:
        """The directory's identity, new for an empty directory.

        Raises DataDirectoryForeign, DataDirectoryDamaged.
        """
        path = directory / IDENTITY_FILE
        if not path.exists():
            return cls(cluster, node, uuid.uuid4().hex, {}, born=-1)
        try:
            content = json.loads(path.read_bytes())
            if content["format"] != DIRECTORY_FORMAT:
                raise DataDirectoryForeign(
                    f"data directory {directory} has format {content['format']}, this build reads {DIRECTORY_FORMAT}",
                    action="use the build that wrote it, or another directory",
                )
            # The others came later: a directory of an earlier build has none of them.
            topics, wrong = dict(content["topics"]), dict(content.get("wrong", {}))
            gaps, born = dict(content.get("gaps", {})), int(content.get("born", 0))
            found = cls(content["cluster"], content["node"], content["store"], topics, wrong, gaps, born)
        except (ValueError, KeyError, TypeError) as error:
            raise DataDirectoryDamaged(f"{path} is damaged and cannot be read", action=_way_out(directory)) from error
        for name, theirs, mine in (("cluster", found.cluster, cluster), ("node", found.node, node)):
            if theirs != mine:
                raise DataDirectoryForeign(
                    f"data directory {directory} belongs to {name} {theirs!r}, not {mine!r}",
                    action="use another --data-dir",
                )
        return found

    def renew(self) -> None:
        """Give the data a new store id: samples of the data before it are void from now on."""
        self.store = uuid.uuid4().hex

    def forget(self, topic: str) -> None:
        """Forget a group whose data is deleted."""
        for known in (self.topics, self.wrong, self.gaps):
            known.pop(topic, None)

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
            "born": self.born,
        }
        write_atomically(directory / IDENTITY_FILE, json.dumps(content, indent=1, sort_keys=True).encode())


def _way_out(directory: Path) -> str:
    """What helps when the identity of a directory is lost."""
    if (directory / LOG_DIRECTORY).is_dir():
        # Nobody else has what this log has. What the file says beside names is about topics of Kafka.
        return f"restore that file; without a copy delete it alone, since the rows of this node are in {directory}"
    return "restore that file, or move the data directory away: the node recovers from the log"
