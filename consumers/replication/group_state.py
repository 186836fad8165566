"""The replicated state of a data group: everything that follows from its log, and nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from headrace.schemas.framing import codec
from headrace.schemas.messages import NO_CHAIN, Gap, Leadership

PRODUCERS_MAX = 10_000
SEAL_ROWS_DEFAULT = 2_000_000
SEAL_BYTES_DEFAULT = 256 * 1024 * 1024


@dataclass(slots=True)
class ProducerState:
    """(sequence, digest) of a producer's newest batch, and the version of its last record."""

    batch: int
    version: int
    seen: set[tuple[int, bytes]] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class LogBase:
    """The beginning of a log that has lost records for good.

    The record at `offset` follows the one at `version`, whose chain is `chain`. The default is a log that has
    its first record.
    """

    topic_id: str = ""
    offset: int = 0
    version: int = 0
    chain: bytes = NO_CHAIN

    @classmethod
    def of(cls, gap: Gap) -> LogBase:
        """The base behind an accepted gap."""
        return cls(gap.topic_id, gap.resume_offset, gap.anchor.version, gap.anchor.chain)


@dataclass(slots=True)
class GroupState:
    """State after the record at `version` (0 = before the first).

    Changed only by the replica, record by record.
    """

    version: int = 0
    offset: int = -1
    chain: bytes = NO_CHAIN
    record_digest: bytes = NO_CHAIN
    log_bytes: int = 0
    epoch: int = 0
    leader: Leadership | None = None
    base: LogBase = LogBase()
    frontier: int = 0
    unsealed_rows: int = 0
    unsealed_bytes: int = 0
    seal_rows: int = SEAL_ROWS_DEFAULT
    seal_bytes: int = SEAL_BYTES_DEFAULT
    tables: dict[tuple[str, str], int] = field(default_factory=dict)
    producers: dict[str, ProducerState] = field(default_factory=dict)

    def note_producer(self, producer: str, state: ProducerState) -> None:
        """Remember a producer; beyond the limit the one with the oldest last record is forgotten."""
        # By version, never by time or by order in the dict: what is forgotten decides which repeats are
        # dropped, so replicas that restored their state from bytes must forget the same producer as those
        # that did not.
        self.producers[producer] = state
        if len(self.producers) > PRODUCERS_MAX:
            del self.producers[min(self.producers, key=lambda name: (self.producers[name].version, name))]

    def to_bytes(self) -> bytes:
        """The state as a single-object frame; equal states give equal bytes."""
        # Sorted: a set of bytes has another order in every process, and equal states must give equal bytes.
        leader = self.leader or Leadership(self.epoch, "", "")
        return codec("state").encode(
            {
                "version": self.version,
                "offset": self.offset,
                "chain": self.chain,
                "record_digest": self.record_digest,
                "log_bytes": self.log_bytes,
                "epoch": self.epoch,
                "leader_node": leader.node,
                "leader_incarnation": leader.incarnation,
                "base_topic": self.base.topic_id,
                "base_offset": self.base.offset,
                "base_version": self.base.version,
                "base_chain": self.base.chain,
                "frontier": self.frontier,
                "unsealed_rows": self.unsealed_rows,
                "unsealed_bytes": self.unsealed_bytes,
                "seal_rows": self.seal_rows,
                "seal_bytes": self.seal_bytes,
                "tables": [
                    {"database": database, "table": table, "schema_version": version}
                    for (database, table), version in sorted(self.tables.items())
                ],
                "producers": list(_producer_records(sorted(self.producers.items()))),
            }
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> GroupState:
        """The inverse of `to_bytes`."""
        record = codec("state").decode(data)
        plain = {name: record[name] for name in _PLAIN}
        leader = (
            Leadership(record["epoch"], record["leader_node"], record["leader_incarnation"])
            if record["leader_node"]
            else None
        )
        base = LogBase(record["base_topic"], record["base_offset"], record["base_version"], record["base_chain"])
        tables = {(entry["database"], entry["table"]): entry["schema_version"] for entry in record["tables"]}
        producers = {
            entry["producer"]: ProducerState(
                entry["batch"], entry["version"], {(seen["sequence"], seen["digest"]) for seen in entry["seen"]}
            )
            for entry in record["producers"]
        }
        return cls(**plain, leader=leader, base=base, tables=tables, producers=producers)


_PLAIN = (
    "version",
    "offset",
    "chain",
    "record_digest",
    "log_bytes",
    "epoch",
    "frontier",
    "unsealed_rows",
    "unsealed_bytes",
    "seal_rows",
    "seal_bytes",
)


def _producer_records(producers: Iterable[tuple[str, ProducerState]]) -> Iterable[dict[str, object]]:
    for producer, state in producers:
        seen = [{"sequence": sequence, "digest": digest} for sequence, digest in sorted(state.seen)]
        yield {"producer": producer, "batch": state.batch, "version": state.version, "seen": seen}


def lost_log_choices(group: str) -> str:
    """What an operator can do about a log that is lost."""
    return (
        "the data is kept; restore the log, or let the group continue without what its log lost: "
        "headrace accept-gap --group "
        f"{group}"
    )
