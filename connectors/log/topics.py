"""Names of every topic of a cluster, and of the Kafka headers of a dead letter."""

from __future__ import annotations

import re
from dataclasses import dataclass

from headrace.schemas.errors import HeadraceError

DLQ_REASON_HEADER = "__dlq.errors.reason"
DLQ_TOPIC_HEADER = "__dlq.errors.topic"
DLQ_PARTITION_HEADER = "__dlq.errors.partition"
DLQ_OFFSET_HEADER = "__dlq.errors.offset"
DLQ_LINE_HEADER = "__dlq.errors.line"
DLQ_TIMESTAMP_HEADER = "__dlq.errors.timestamp"
DLQ_PREFIX = "dlq."
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]*")


class ClusterNameInvalid(HeadraceError):
    """A cluster name that cannot be the prefix of a topic's name."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics of one cluster; its name is their prefix."""

    cluster: str

    def __post_init__(self) -> None:
        """Raises ClusterNameInvalid."""
        # Kafka limits a topic's name to 249 bytes, of which a group's name is a part. A dot would make the
        # prefix ambiguous: it separates the parts.
        if not _NAME.fullmatch(self.cluster) or len(self.cluster) > 80:
            raise ClusterNameInvalid(
                f"cluster name {self.cluster!r} is not lowercase letters, digits, '-' and '_' (at most 80)",
                action="rename it",
            )
        # The forward logs of such a cluster would be taken for dead letters.
        if f"{self.cluster}." == DLQ_PREFIX:
            raise ClusterNameInvalid(
                f"cluster name {self.cluster!r} is the prefix of dead-letter topics", action="choose another one"
            )

    @property
    def membership(self) -> str:
        """Membership changes."""
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
        """The forward log of a group; `birth` is the version of the slot table that created the group."""
        # Without `birth`, a node that is removed and added again would replay the log of its former group.
        return f"{self.cluster}.forward.{header}.{birth}"

    def group_of(self, topic: str) -> tuple[str, int] | None:
        """(header, birth) of a forward log of this cluster; None for another topic."""
        prefix, _, birth = topic.rpartition(".")
        header = prefix.removeprefix(f"{self.cluster}.forward.")
        return (header, int(birth)) if header != prefix and birth.isascii() and birth.isdigit() else None

    @property
    def sync_manifest(self) -> str:
        """What senders of other stores are about to send."""
        return f"{self.cluster}.sync.manifest"

    @property
    def sync_chunk(self) -> str:
        """The bytes of their files."""
        return f"{self.cluster}.sync.chunk"

    @property
    def sync_verdict(self) -> str:
        """What was decided about each file."""
        return f"{self.cluster}.sync.verdict"

    @property
    def sync_owner(self) -> str:
        """Which sender owns which devices."""
        return f"{self.cluster}.sync.owner"

    @property
    def replayed(self) -> str:
        """How far each dead-letter topic was replayed into this cluster."""
        return f"{self.cluster}.replayed"

    def ingest(self, name: str) -> str:
        """A raw topic of the users."""
        return f"{self.cluster}.ingest.{name}"


def dlq(topic: str) -> str:
    """The dead-letter topic of a raw topic."""
    return f"{DLQ_PREFIX}{topic}"
