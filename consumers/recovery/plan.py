"""Where a replica's missing records come from: a pure decision (docs/internals/recovery.md).

A replica follows the log wherever it still holds the missing records: own segments, own journal, then the
log. Below the beginning of a trimmed log only another member's files help, and where very much is missing
they are cheaper: they are copied first, and the log continues from their end. A replica whose own data is
wrong takes the files of a member in sync; without one, it starts from nothing if the log has everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from headrace.schemas.records import Status


class RecoveryMethod(StrEnum):
    """How a replica gets its missing records."""

    LOG = "log"
    FILES = "files"
    REBUILD = "rebuild"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class ReplicaPosition:
    """What a replica has applied: it needs the log from `next_offset`, and the log begins at `log_begin`.

    `log_bytes` are those of all records it has applied. `wrong`: its data is not that of the log; then only
    `trusted` members are sources, None = all members. `whole`: the log still has its first record and
    all that was read of it, as far as `wrong` data asks for it.
    """

    node: str
    next_offset: int
    log_begin: int
    log_bytes: int
    wrong: bool = False
    trusted: frozenset[str] | None = None
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Costs:
    """Rates of both methods, and how many seconds the log must take longer before files are worth their copy."""

    # Measured by `headrace bench recovery` and rounded down. Mostly their proportion decides, which varies
    # less than the rates from machine to machine.
    log_bytes_per_second: float = 25e6
    file_bytes_per_second: float = 200e6
    worth_s: float = 10.0


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """A method, for FILES the member to copy from, and why."""

    method: RecoveryMethod
    source: str = ""
    reason: str = ""


def plan_recovery(position: ReplicaPosition, live: Sequence[Status], costs: Costs | None = None) -> RecoveryPlan:
    """How a replica recovers. `live` are the statuses of the group's live members.

    A source is an eligible one that has sealed something and whose files reach the log; of several the one
    whose files reach furthest, then the first in list order, so that the least is read from the log.
    """
    # A source's files must reach the log: between files that end before the log's begin and the log, records
    # would be missing.
    sources = [
        status
        for status in live
        if status.node != position.node
        and status.eligible
        and status.sealed_version > 0
        and status.sealed_offset + 1 >= position.log_begin
        and (position.trusted is None or status.node in position.trusted)
    ]
    # max() keeps the first of equals, which is the first in list order.
    best = max(sources, key=lambda status: status.sealed_offset, default=None)
    if position.wrong:
        return _replace(position, best)
    if position.next_offset >= position.log_begin:
        if best is not None and _files_are_cheaper(position, best, costs or Costs()):
            return RecoveryPlan(RecoveryMethod.FILES, best.node, f"{best.node} has files of what is missing")
        return RecoveryPlan(RecoveryMethod.LOG)
    begins = f"the log begins at offset {position.log_begin}, {position.next_offset} is needed"
    if best is not None:
        return RecoveryPlan(RecoveryMethod.FILES, best.node, begins)
    # They have every row, in memory or in files that end before the log begins.
    unsealed = sorted(each.node for each in live if each.node != position.node and each.eligible)
    later = f" yet: {', '.join(unsealed)} must seal, as its leader does within seconds" if unsealed else ""
    return RecoveryPlan(RecoveryMethod.WAIT, reason=f"{begins}, and no member in sync has the files{later}")


def _replace(position: ReplicaPosition, best: Status | None) -> RecoveryPlan:
    if best is not None:
        return RecoveryPlan(RecoveryMethod.FILES, best.node, "own data is wrong")
    # Files come first where both would do: a group that is rebuilt from its log serves nothing until it has read all
    # of it.
    if position.whole:
        return RecoveryPlan(RecoveryMethod.REBUILD, reason="own data is wrong, and the log has everything")
    return RecoveryPlan(
        RecoveryMethod.WAIT, reason="no member in sync has the files, and the log no longer has its beginning"
    )


def _files_are_cheaper(position: ReplicaPosition, source: Status, costs: Costs) -> bool:
    # By what is durable: records that are not applied yet are not missing.
    if source.sealed_offset < position.next_offset:
        return False
    log_s = (source.sealed_log_bytes - position.log_bytes) / costs.log_bytes_per_second
    return log_s > costs.worth_s + source.segment_bytes / costs.file_bytes_per_second
