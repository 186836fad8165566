"""Where a replica's missing records come from: a pure decision (DESIGN 6).

The log is followed wherever it still holds what is missing: own segments, own journal, then the log. Below the point to which the log was trimmed
only another member's files help, and where very much is missing they are cheaper: they are copied first, and the log is read on from where they
end. A replica whose own data is wrong takes the files of a member in sync; when there is none, it starts from nothing if the log has everything.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from schemas.records import Status


class Way(StrEnum):
    """How a replica comes by what it lacks."""

    LOG = "log"
    FILES = "files"
    REBUILD = "rebuild"
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class Need:
    """What a replica has: it wants to read on from `next_offset` of a log that begins at `log_begin`.

    `log_bytes` are those of all records it has applied. `wrong`: what it holds is not what the log says; then only `trusted` members are sources,
    None when nothing speaks against any. `whole`: the log still has its first record.
    """

    node: str
    next_offset: int
    log_begin: int
    version: int
    log_bytes: int
    wrong: bool = False
    trusted: frozenset[str] | None = None
    whole: bool = True


@dataclass(frozen=True, slots=True)
class Costs:
    """What a replica gets done in a second, and from how many seconds of reading the log on it looks for something cheaper.

    The defaults are what `headrace bench recovery` showed, rounded down: only their proportion decides.
    """

    log_bytes_per_second: float = 25e6
    file_bytes_per_second: float = 200e6
    worth_s: float = 10.0


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """A way, for FILES the member to copy from, and why."""

    way: Way
    source: str = ""
    reason: str = ""


def plan_recovery(need: Need, live: Sequence[Status], costs: Costs | None = None) -> RecoveryPlan:
    """How a replica recovers. `live` are the statuses of the group's live members.

    A source is an eligible one that has sealed something and whose files reach the log; of several the one whose files reach furthest,
    then the first in list order, so that the least is read from the log.
    """
    sources = [
        status
        for status in live
        if status.node != need.node
        and status.eligible
        and status.sealed_version > 0
        and status.sealed_offset + 1 >= need.log_begin
        and (need.trusted is None or status.node in need.trusted)
    ]
    best = max(sources, key=lambda status: status.sealed_offset, default=None)
    if need.wrong:
        return _replace(need, best)
    if need.next_offset >= need.log_begin:
        if best is not None and _files_are_cheaper(need, best, costs or Costs()):
            return RecoveryPlan(Way.FILES, best.node, f"{best.node} has files of what is missing")
        return RecoveryPlan(Way.LOG)
    begins = f"the log begins at offset {need.log_begin}, {need.next_offset} is needed"
    if best is not None:
        return RecoveryPlan(Way.FILES, best.node, begins)
    return RecoveryPlan(Way.WAIT, reason=f"{begins}, and no member in sync has the files")


def _replace(need: Need, best: Status | None) -> RecoveryPlan:
    if best is not None:
        return RecoveryPlan(Way.FILES, best.node, "own data is wrong")
    if need.whole:
        return RecoveryPlan(Way.REBUILD, reason="own data is wrong, and the log has everything")
    return RecoveryPlan(Way.WAIT, reason="no member in sync has the files, and the log no longer has its beginning")


def _files_are_cheaper(need: Need, source: Status, costs: Costs) -> bool:
    if source.sealed_version <= need.version:
        return False
    log_s = (source.sealed_log_bytes - need.log_bytes) / costs.log_bytes_per_second
    return log_s > costs.worth_s + source.segment_bytes / costs.file_bytes_per_second


def trim_before(live: Sequence[Status], members: Sequence[str], sealed_offset: int, keep_from: int) -> int:
    """The offset below which a leader may trim: sealed and durable at every live member, and below the window for topic replay.

    `sealed_offset` is that of the leader's own newest durable seal, `keep_from` the first offset of the window. Members that are down recover from
    files. 0 = trim nothing, also while fewer than a majority are live, since those that are not may be the only ones with the files.
    """
    if 2 * len(live) <= len(members):
        return 0
    lowest = min((status.sealed_offset for status in live), default=-1)
    return max(0, min(lowest + 1, sealed_offset + 1, keep_from))
