"""Members that have read what a log, as it is now, does not hold: it was cut, even if nothing is missing here. Pure."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator

from headrace.consumers.replication.group_state import LogBase
from headrace.schemas.records import Status


def witness_of_cut(statuses: Iterable[Status], topic_id: str, base: LogBase, end: int) -> Status | None:
    """A member that has read what the log of a group, which ends there, does not hold, or that reports it as lost.

    `base` is that of the member that asks.
    """
    return next((each for each in _witnesses(statuses, topic_id, base) if _read(each) >= end), None)


def read_elsewhere(statuses: Iterable[Status], topic_id: str, base: LogBase) -> float:
    """The newest offset that a member has read of the log of a group; infinite for one that reports it as lost."""
    return max(map(_read, _witnesses(statuses, topic_id, base)), default=-1)


def _witnesses(statuses: Iterable[Status], topic_id: str, base: LogBase) -> Iterator[Status]:
    # Behind an accepted gap: what a member before it misses is here. It may be unable to follow for long, as with a
    # full disk, and would keep all others from serving.
    return (
        each for each in statuses if each.topic_id == topic_id and (base == LogBase() or each.version > base.version)
    )


def _read(status: Status) -> float:
    return math.inf if status.log_lost else status.durable_offset
