"""`cluster.json`: names, addresses and pids of a local cluster, so that a later process can stop what another started.

And the lock of its directory, which one `up` or `down` holds.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from shlex import quote

from headrace.connectors.files import DirectoryHeld, DirectoryLock, create_directories, write_atomically
from headrace.node_process import NodeProcess
from headrace.schemas.errors import HeadraceError

FILE_NAME = "cluster.json"
LOCK_NAME = "up.lock"


class ClusterDirectoryUnusable(HeadraceError):
    """A directory in which no cluster can be started."""


class ClusterFileInvalid(HeadraceError):
    """A `cluster.json` that is none."""


class ClusterBusy(HeadraceError):
    """Another process starts or stops the cluster of a directory."""


@dataclass(slots=True)
class ClusterFile:
    """What `cluster.json` holds. `replication` is that of the cluster's birth, 0 = all nodes that were there then."""

    cluster: str
    bootstrap: str
    nodes: list[NodeProcess] = field(default_factory=list)
    replication: int = 0


def read_cluster_file(directory: Path) -> ClusterFile:
    """The file in a directory. Raises HeadraceError when there is none, ClusterFileInvalid for one that is damaged."""
    path = directory / FILE_NAME
    if not path.exists():
        raise HeadraceError(f"no cluster was started in {directory}", action="start one with: headrace up")
    try:
        content = json.loads(path.read_text())
        nodes = [NodeProcess(**node) for node in content["nodes"]]
        # Files of earlier builds have none, or 0 for all: then no node had joined yet.
        replication = content.get("replication", 0) or len(nodes)
        return ClusterFile(content["cluster"], content["bootstrap"], nodes, replication)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ClusterFileInvalid(
            f"{path} is not what headrace up writes",
            action=f"restore it; what it named is found by: ps ax | grep {quote(str(directory.absolute()))}",
        ) from error


def write_cluster_file(directory: Path, content: ClusterFile) -> None:
    """Replace the file in a directory."""
    write_atomically(directory / FILE_NAME, json.dumps(asdict(content), indent=1).encode())


@contextmanager
def held_directory(directory: Path) -> Iterator[None]:
    """Hold a directory, which is created if it is missing, while processes start or stop.

    Raises ClusterDirectoryUnusable, ClusterBusy.
    """
    try:
        lock = DirectoryLock(create_directories(directory), name=LOCK_NAME)
    except DirectoryHeld as held:
        raise ClusterBusy(
            f"another command starts or stops the cluster in {directory}" + (f": pid {held.pid}" if held.pid else ""),
            action="wait for it, or end it with Ctrl-C",
            retriable=True,
        ) from None
    except OSError as error:
        about = str(error.filename or directory)
        other = "" if about in map(str, (directory, directory / LOCK_NAME)) else f"{about}: "
        raise ClusterDirectoryUnusable(
            f"no cluster can be in {directory}: {other}{error.strerror}",
            action="free space, or name a directory that can be written with --dir",
        ) from error
    with lock:
        yield
