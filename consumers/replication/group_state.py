"""The replicated state of a data group: everything that follows from its log, and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum

from headrace.connectors.log.port import UNKNOWN_EPOCH
from headrace.consumers.replication.change_records import changes_of, changes_record
from headrace.consumers.replication.change_state import ChangeState
from headrace.consumers.replication.cut_memory import CutMemory
from headrace.consumers.replication.kept_deletes import state_codec
from headrace.consumers.replication.producer_section import sections_of_cut
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import codec
from headrace.schemas.group_changes import Barrier, MovedProducer
from headrace.schemas.messages import NO_CHAIN, Gap, Leadership

PRODUCERS_MAX = 10_000
"""Producers of each kind that are remembered."""
FIRST_BATCH = 1
"""The number of a writer's first batch."""
_QUERY_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")
LOADS_MAX = 65_536
"""Files of other logs that are remembered, so that each is loaded once: 1 MiB of state.

A leader repeats a Load within minutes. Its record would have to come after as many others to count twice.
"""
LOAD_IDENTITY_BYTES = 16
SEAL_ROWS_DEFAULT = 2_000_000
SEAL_BYTES_DEFAULT = 256 * 1024 * 1024


class ProducerKind(StrEnum):
    """What is known of how long a producer lives, from its name and its newest batch alone.

    A Spark query repeats its newest batch after a pause of any length. A writer sends a record again within
    minutes, and most writers and every delete end with their first batch.
    """

    QUERY = "query"
    LASTING = "lasting"
    SINGLE = "single"

    @classmethod
    def of(cls, producer: str, batch: int) -> ProducerKind:
        """The kind of a producer whose newest batch is `batch`."""
        if _QUERY_ID.fullmatch(producer):
            return cls.QUERY
        return cls.LASTING if batch > FIRST_BATCH else cls.SINGLE


@dataclass(slots=True)
class ProducerState:
    """(sequence, digest) of a producer's newest batch, and the version of its last record."""

    batch: int
    version: int
    seen: set[tuple[int, bytes]] = field(default_factory=set)


@dataclass(frozen=True, slots=True)
class GapRecord:
    """Where the log has the record of an accepted gap, its digest, and the epoch of the leader that appended it."""

    offset: int
    digest: bytes
    leader_epoch: int = UNKNOWN_EPOCH


@dataclass(frozen=True, slots=True)
class LogBase:
    """The beginning of a log that has lost records for good.

    The record at `offset` follows the one at `version`, whose chain is `chain`. The default is a log that has
    its first record. `record` is known where this node found the gap, and is no part of the replicated state.
    """

    topic_id: str = ""
    offset: int = 0
    version: int = 0
    chain: bytes = NO_CHAIN
    record: GapRecord | None = field(default=None, compare=False)

    @classmethod
    def of(cls, gap: Gap) -> LogBase:
        """The base behind an accepted gap."""
        return cls(gap.topic_id, gap.resume_offset, gap.anchor.version, gap.anchor.chain)


class LogHasGap(HeadraceError):
    """The log lost records that this replica never had, and an operator accepted that.

    The replica needs files of another member.
    """

    def __init__(self, base: LogBase) -> None:
        super().__init__(
            f"the log lost records: offset {base.offset} follows version {base.version}, "
            "which is not the base of this replica",
            action="a node recovers from the files of another member by itself",
        )
        self.base = base


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
    loads: dict[bytes, None] = field(default_factory=dict)
    changes: ChangeState = field(default_factory=ChangeState)
    _by_age: dict[ProducerKind, dict[str, None]] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Order the producers of each kind by the version of their last record, which no two share."""
        self._by_age = {kind: {} for kind in ProducerKind}
        for producer, state in self._producers_by_age():
            self._by_age[ProducerKind.of(producer, state.batch)][producer] = None

    def check_gap(self, gap: Gap) -> None:
        """Pass the gap that is this state's base, and one that came too late to count.

        Raises LogHasGap for any other.
        """
        # A replica that read the log from behind the lost records gave its records lower versions than
        # members that had them all: equal version would no longer mean equal content. Of two gaps for one
        # place the first in the log counts.
        found, base = LogBase.of(gap), self.base
        late = base.topic_id == found.topic_id and found.offset <= base.offset
        if found != base and not late:
            raise LogHasGap(found)

    def note_batch(self, producer: str, batch: int, identity: tuple[int, bytes]) -> None:
        """Remember the first record of a producer's newest batch.

        Beyond the limit of its kind, the producer with the oldest last record of that kind is forgotten.
        """
        # By version, never by time: what is forgotten decides which repeats are dropped, so replicas that
        # restored their state from bytes must forget the same producer as those that did not. By kind, since
        # every delete is a producer of its own: thousands of them must not push out a query that is silent.
        if (known := self.producers.get(producer)) is not None:
            self._by_age[ProducerKind.of(producer, known.batch)].pop(producer, None)
        self.producers[producer] = ProducerState(batch, self.version, {identity})
        by_age = self._by_age[ProducerKind.of(producer, batch)]
        by_age[producer] = None
        if len(by_age) > PRODUCERS_MAX:
            oldest = next(iter(by_age))
            del by_age[oldest]
            self.producers.pop(oldest, None)

    def note_record(self, producer: str) -> None:
        """A known producer has sent the record of this version."""
        known = self.producers[producer]
        known.version = self.version
        by_age = self._by_age[ProducerKind.of(producer, known.batch)]
        by_age.pop(producer, None)
        by_age[producer] = None

    def note_load(self, identity: bytes) -> bool:
        """Remember a file of another log; False if it is known. Beyond the limit the oldest one is forgotten."""
        if identity in self.loads:
            return False
        self.loads[identity] = None
        if len(self.loads) > LOADS_MAX:
            del self.loads[next(iter(self.loads))]
        return True

    def note_loads(self, loads: bytes) -> None:
        """Remember the files that a former holder of slots has loaded, oldest first."""
        for start in range(0, len(loads), LOAD_IDENTITY_BYTES):
            self.note_load(loads[start : start + LOAD_IDENTITY_BYTES])

    def moved_producers(self) -> tuple[MovedProducer, ...]:
        """Every producer with its newest batch, the one with the oldest last record first."""
        known = self._producers_by_age()
        return tuple(MovedProducer(name, each.batch, tuple(sorted(each.seen))) for name, each in known)

    def cut_memory(self, barrier: Barrier) -> CutMemory:
        """What the next holders of a cut receive, as of now. Later batches here are not part of it."""
        changes, targets = self.changes, tuple((each.key, each.slots) for each in barrier.moves)
        # Of slots that left earlier their present holder knows more.
        leaving = frozenset(slot for _, slots in targets for slot in slots if slot not in changes.given)
        # Also for these: what comes late reaches the next holder by two ways, and no row may come before a delete that
        # was decided before it. Then a delete that comes behind such a row is a repeat.
        deletes = changes.deletes.of(slot for _, slots in targets for slot in slots)
        if not leaving:
            return CutMemory(barrier.table_version, targets, b"", (), deletes)
        # In an order of their own: that in which they came is lost with a restart, and each leader must make the same parts.
        inherited = [section for _, origin in sorted(changes.origins.items()) for section in origin.sections]
        sections = sections_of_cut(leaving, self.moved_producers(), inherited)
        return CutMemory(barrier.table_version, targets, b"".join(self.loads), sections, deletes)

    def _producers_by_age(self) -> list[tuple[str, ProducerState]]:
        return sorted(self.producers.items(), key=lambda item: (item[1].version, item[0]))

    def to_bytes(self) -> bytes:
        """The state as a single-object frame; equal states give equal bytes."""
        # Sorted: a set of bytes has another order in every process, and equal states must give equal bytes.
        leader = self.leader or Leadership(self.epoch, "", "")
        record = {
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
            "loads": b"".join(self.loads),
            "changes": changes_record(self.changes),
        }
        if record["changes"] is None:
            return codec("state").encode(record)
        return state_codec().encode(record, self.changes.deletes.encoded())

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
        # fastavro gives the default of a field of bytes as a string; a state of 0.1.0 has no loads.
        joined = record["loads"] or b""
        starts = range(0, len(joined), LOAD_IDENTITY_BYTES)
        loads = dict.fromkeys(joined[start : start + LOAD_IDENTITY_BYTES] for start in starts)
        # A record in a union comes with its name, and null, which earlier builds wrote, without.
        changes = ChangeState() if record["changes"] is None else changes_of(record["changes"][1])
        return cls(**plain, leader=leader, base=base, tables=tables, producers=producers, loads=loads, changes=changes)


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
        f"headrace accept-gap --group {group} (at an edge also --node HOST:PORT)"
    )
