"""What a replica decides about one record: the actions of its group, and why a record changes nothing. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from headrace.consumers.replication.group_state import ProducerState
from headrace.consumers.replication.transfers import HandOver
from headrace.schemas.group_changes import MovedTo, Rank, Slots
from headrace.schemas.messages import (
    Compact,
    Delete,
    Drop,
    Load,
    Message,
    TableVersion,
    Write,
)


class Ignored(StrEnum):
    """Why a record changed nothing but the version."""

    UNDECODABLE = "undecodable"
    INVALID = "invalid"
    TOO_LARGE = "too_large"
    REFUSED = "refused"
    REPEATED = "repeated"
    SUPERSEDED = "superseded"
    NOT_LEADER = "not_leader"
    CLAIM_LOST = "claim_lost"
    OUT_OF_ORDER = "out_of_order"
    SLOT_MOVED = "slot_moved"
    UNEXPECTED = "unexpected"
    VOID = "void"


@dataclass(frozen=True, slots=True)
class Rejection:
    """A record that nothing of Headrace writes, and that every replica therefore ignores at its version."""

    version: int
    offset: int
    why: Ignored
    error: str


@dataclass(frozen=True, slots=True)
class ApplyWrite:
    """Put the rows of a write into the memtable at this version."""

    version: int
    write: Write


@dataclass(frozen=True, slots=True)
class HandOversLost:
    """Name the records that other groups had to accept, and that this log has lost to an accepted gap."""

    version: int
    lost: dict[str, int]
    """How many there are, by the group that does not get them."""


@dataclass(frozen=True, slots=True)
class ApplyDelete:
    """Hide rows of lower rank."""

    version: int
    delete: Delete


@dataclass(frozen=True, slots=True)
class SealNow:
    """Everything unsealed at this version becomes segments; `state` is stored with them in the index.

    `offset` and `log_bytes` are those of that state. `before_load`: it was sealed for the load of the next record.
    """

    version: int
    state: bytes
    tables: dict[tuple[str, str], int]
    offset: int
    log_bytes: int
    before_load: bool = False


@dataclass(frozen=True, slots=True)
class DropSlices:
    """Retention: slices of a table that end at or before a time are dropped."""

    version: int
    drop: Drop


@dataclass(frozen=True, slots=True)
class CompactNow:
    """The named segments become one."""

    version: int
    compact: Compact


@dataclass(frozen=True, slots=True)
class ApplyLoad:
    """A file of another log becomes a segment, now or when it is here."""

    version: int
    load: Load


@dataclass(frozen=True, slots=True)
class ApplyRows:
    """Put the rows of these slots of a write into the memtable, with a rank that may be of another log."""

    version: int
    rank: Rank
    slots: Slots
    write: Write


@dataclass(frozen=True, slots=True)
class ApplyHandedDelete:
    """Hide rows of these slots of a rank below that of a delete of another log."""

    version: int
    rank: Rank
    slots: Slots
    delete: Delete


@dataclass(frozen=True, slots=True)
class CutSlots:
    """Slots leave the group at this version, each to a group; a seal at the same version comes before."""

    version: int
    moves: tuple[MovedTo, ...]


@dataclass(frozen=True, slots=True)
class ReleaseSlots:
    """Slots come back, or go from their holder to another one: what the group still has of their files is removed."""

    version: int
    slots: Slots


Action = (
    ApplyWrite
    | ApplyDelete
    | SealNow
    | DropSlices
    | CompactNow
    | ApplyLoad
    | ApplyRows
    | ApplyHandedDelete
    | CutSlots
    | ReleaseSlots
    | HandOver
    | HandOversLost
)


def repeats(message: Message, known: ProducerState | None) -> Ignored | None:
    """Why a message does not count any more, by what is known of its producer."""
    position = message.position
    if known is None or position.batch > known.batch:
        return None
    # A late message of a task that was given up: its retry has written the batch whole, before the newer one.
    if position.batch < known.batch:
        return Ignored.SUPERSEDED
    # By content too: a retried batch may be divided differently, and then the same sequence has rows that must
    # count.
    return Ignored.REPEATED if (position.sequence, message.digest) in known.seen else None


def refusal_of(tables: tuple[TableVersion, ...]) -> str:
    """What an operator has refused with a record that names these versions."""
    named = ", ".join(f"version {each.schema_version} of {each.database}.{each.table}" for each in tables)
    return f"an operator refused it: it names {named}"
