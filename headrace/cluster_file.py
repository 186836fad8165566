"""`cluster.json`: names, addresses and pids of a local cluster, so that a later process can stop what another started."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path

from headrace.connectors.files import write_atomically
from headrace.node_process import NodeProcess
from headrace.schemas.errors import HeadraceError

FILE_NAME = "cluster.json"


@dataclass(slots=True)
class ClusterFile:
    """What `cluster.json` holds. `replication` is that of the cluster's birth, 0 = all nodes that were there then."""

    cluster: str
    bootstrap: str
    nodes: list[NodeProcess] = field(default_factory=list)
    replication: int = 0


def read_cluster_file(directory: Path) -> ClusterFile:
    """The file in a directory. Raises HeadraceError when there is none."""
    path = directory / FILE_NAME
    if not path.exists():
        raise HeadraceError(f"no cluster was started in {directory}", action="start one with: headrace up")
    content = json.loads(path.read_text())
    nodes = [NodeProcess(**node) for node in content["nodes"]]
    # Files of earlier builds have none, or 0 for all: then no node had joined yet.
    replication = content.get("replication", 0) or len(nodes)
    return ClusterFile(content["cluster"], content["bootstrap"], nodes, replication)


def write_cluster_file(directory: Path, content: ClusterFile) -> None:
    """Replace the file in a directory."""
    write_atomically(directory / FILE_NAME, json.dumps(asdict(content), indent=1).encode())
