"""The base of fake nodes: a NodeApi whose parts a test sets, and nothing else of it is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from headrace.consumers.recovery.file_copy import Snapshot
from headrace.consumers.serve.node_api import NodeFigures

UNASKED = "no test has set this"


class PartOfNode:
    """See NodeApi. What a test does not set fails as soon as it is asked."""

    engine: Any
    writes: Any
    scanner: Any
    snapshots: Any
    requests: Any
    edge: Any
    migration: Any
    metadata: Any

    def startup_done(self) -> bool:
        """See NodeApi."""
        raise AssertionError(UNASKED)

    def live(self) -> bool:
        """See NodeApi."""
        raise AssertionError(UNASKED)

    def ready(self) -> tuple[bool, Sequence[str]]:
        """See NodeApi."""
        raise AssertionError(UNASKED)

    def status(self) -> Any:
        """See NodeApi; a test has the entries that it needs."""
        raise AssertionError(UNASKED)

    def figures(self) -> NodeFigures:
        """See NodeApi."""
        raise AssertionError(UNASKED)

    def seal(self, group_name: str) -> Mapping[str, Any]:
        """See NodeApi."""
        raise AssertionError(UNASKED)

    def files(self, database: str, table: str) -> Mapping[str, Any]:
        """See NodeApi."""
        raise AssertionError(UNASKED)

    def accept_gap(self, group_name: str, resume_offset: int | None) -> Mapping[str, Any]:
        """See NodeApi."""
        raise AssertionError(UNASKED)

    def make_snapshot(self, group_name: str) -> Snapshot:
        """See NodeApi."""
        raise AssertionError(UNASKED)
