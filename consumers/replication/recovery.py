"""Where a replica's missing records come from: a pure decision (DESIGN 6).

The log is followed wherever it still holds what is missing: own segments, own journal, then the log. Below the point to which the log was trimmed
only another member's files help: they are copied first, and the log is read on from where they end.
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
    WAIT = "wait"


@dataclass(frozen=True, slots=True)
class RecoveryPlan:
    """A way, for FILES the member to copy from, for WAIT what is waited for."""

    way: Way
    source: str = ""
    reason: str = ""


def plan_recovery(next_offset: int, log_begin: int, node: str, live: Sequence[Status]) -> RecoveryPlan:
    """How a replica that wants to read on from `next_offset` of a log that begins at `log_begin` recovers.

    `live` are the statuses of the group's live members. A source is an eligible one whose sealed files reach the log; of several the one whose
    files reach furthest, then the first in list order, so that the least is read from the log.
    """
    if next_offset >= log_begin:
        return RecoveryPlan(Way.LOG)
    sources = [
        status for status in live if status.node != node and status.eligible and status.sealed_offset + 1 >= log_begin
    ]
    if sources:
        return RecoveryPlan(Way.FILES, max(sources, key=lambda status: status.sealed_offset).node)
    return RecoveryPlan(
        Way.WAIT,
        reason=f"the log begins at offset {log_begin}, {next_offset} is needed, and no member in sync has the files",
    )


def trim_before(live: Sequence[Status], members: Sequence[str], sealed_offset: int, keep_from: int) -> int:
    """The offset below which a leader may trim: sealed and durable at every live member, and below the window for topic replay.

    `sealed_offset` is that of the leader's own newest durable seal, `keep_from` the first offset of the window. Members that are down recover from
    files. 0 = trim nothing, also while fewer than a majority are live, since those that are not may be the only ones with the files.
    """
    if 2 * len(live) <= len(members):
        return 0
    lowest = min((status.sealed_offset for status in live), default=-1)
    return max(0, min(lowest + 1, sealed_offset + 1, keep_from))
