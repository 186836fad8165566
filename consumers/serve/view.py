"""What a node shows to the world, and what the HTTP surface needs of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, TypedDict

from consumers.query.engine import QueryEngine

UNKNOWN = -1
"""How a number that is not known is shown, in `lag_records` and `lag_seconds` above all; never 0."""


class GroupStatus(TypedDict):
    """One data group at this node. Sizes are this node's own."""

    group: str
    role: str
    leader: str
    epoch: int
    version: int
    durable_offset: int
    sealed_version: int
    lag_records: int
    lag_seconds: float
    segments: int
    segment_rows: int
    segment_bytes: int
    live_rows: int
    live_bytes: int
    reason: str


class MemberStatus(TypedDict):
    """What this node last heard of a member of one of its groups; `silent_ms` is UNKNOWN when it never heard of it."""

    node: str
    group: str
    role: str
    version: int
    http: str
    online: bool
    silent_ms: int


class NodeStatus(TypedDict):
    """One node. `reasons` says why it is not ready, `started_at` is ISO-8601 in UTC."""

    cluster: str
    node: str
    software: str
    incarnation: str
    started_at: str
    ready: bool
    reasons: Sequence[str]
    groups: Sequence[GroupStatus]
    members: Sequence[MemberStatus]


class NodeView(Protocol):
    """A node as the HTTP surface sees it. Every method may be called from any thread, and answers without waiting for other processes."""

    @property
    def engine(self) -> QueryEngine:
        """Answers SQL."""
        ...

    def startup_done(self) -> bool:
        """True from the moment the node has its data open and follows its logs, ready or not."""
        ...

    def live(self) -> bool:
        """False when only a restart can help."""
        ...

    def ready(self) -> tuple[bool, list[str]]:
        """Whether the node may answer queries now, and the reasons why not."""
        ...

    def status(self) -> NodeStatus | dict[str, Any]:
        """See NodeStatus; more keys are welcome."""
        ...

    def metrics(self) -> str:
        """Prometheus text."""
        ...
