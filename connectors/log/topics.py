"""Names of every topic and of every Kafka header we reserve (DESIGN 4)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from schemas.errors import HeadraceError

DLQ_REASON_HEADER = "__dlq.errors.reason"
DLQ_TOPIC_HEADER = "__dlq.errors.topic"
DLQ_PARTITION_HEADER = "__dlq.errors.partition"
DLQ_OFFSET_HEADER = "__dlq.errors.offset"
DLQ_LINE_HEADER = "__dlq.errors.line"
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


class ClusterNameInvalid(HeadraceError):
    """A cluster name that cannot begin a topic's name."""


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one cluster; its name is their prefix."""

    cluster: str

    def __post_init__(self) -> None:
        """Raises ClusterNameInvalid."""
        if not _NAME.fullmatch(self.cluster) or len(self.cluster) > 80:
            raise ClusterNameInvalid(
                f"cluster name {self.cluster!r} is not lowercase letters, digits, '-' and '_' (at most 80)",
                action="rename it",
            )

    @property
    def membership(self) -> str:
        """Membership changes; position = version of the slot table."""
        return f"{self.cluster}.membership"

    @property
    def table(self) -> str:
        """Schema changes of every table."""
        return f"{self.cluster}.table"

    @property
    def status(self) -> str:
        """Status broadcasts."""
        return f"{self.cluster}.status"

    def forward(self, header: str, birth: int = 1) -> str:
        """The forward log of a group; `birth` is the slot table version that made the group, so a node added again never meets its old log."""
        return f"{self.cluster}.forward.{header}.{birth}"

    def ingest(self, name: str) -> str:
        """A raw topic of the users."""
        return f"{self.cluster}.ingest.{name}"


def dlq(topic: str) -> str:
    """Where the bad records of a raw topic go."""
    return f"dlq.{topic}"
