"""A node that was removed from its cluster: it ends, now or at its next start, and reports why in one line."""

from __future__ import annotations

from pathlib import Path

from headrace.schemas.errors import HeadraceError


class NodeExiled(HeadraceError):
    """This node was removed from the cluster, and nothing is left for it to do. Its process ends without a failure."""

    exit_code = 0

    @classmethod
    def of(cls, cluster: str, node: str, directory: Path) -> NodeExiled:
        """The error for a node and its data directory."""
        return cls(
            f"node {node} was removed from cluster {cluster} and ends; what it held is at other nodes",
            action=f"delete {directory}; with an empty directory a node may join under this id again",
        )
