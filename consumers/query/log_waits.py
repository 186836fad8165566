"""A query waits for the logs of this process without a worker, and can be cancelled meanwhile."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.consumers.query.query_errors import NotCaughtUp
from headrace.consumers.query.query_output import QueryOutput
from headrace.consumers.query.query_timer import QueryTimer, ShortTimer
from headrace.consumers.query.table_source import ReadFence, Reading, TableSource
from headrace.consumers.scheduling.driver import BlockedOn
from headrace.consumers.scheduling.threaded_driver import Turn

CANCEL_CHECK_S = 0.25
"""A wait that no interrupt ends is looked at so often."""
NO_WAIT_S = 1e-6


def begin_reading(
    source: TableSource, fence: ReadFence, after: Mapping[str, int], timer: QueryTimer, turn: Turn, output: QueryOutput
) -> Reading:
    """What the scans of a query have in common, once the groups here have applied their logs.

    Up to `after`, and to what the fence has seen as confirmed. Raises NotCaughtUp.
    """
    named, confirmed = source.named(after), fence.confirmed
    newest = {group: max(named.get(group, -1), confirmed.get(group, -1)) for group in named.keys() | confirmed.keys()}
    reading = Reading(fence, newest, timer, waits=turn)
    _wait_for_logs(source, reading, timer, turn, output)
    return reading


def _wait_for_logs(source: TableSource, reading: Reading, timer: QueryTimer, turn: Turn, output: QueryOutput) -> None:
    # Most have nothing to wait for, and keep their worker.
    if source.wait_for(replace(reading, timer=ShortTimer(timer, NO_WAIT_S))):
        return
    output.lacking = _lacking(source, reading)
    with turn.outside(BlockedOn.LOG):
        # In parts: nothing ends such a wait but its time.
        while timer.left_s > 0:
            if source.wait_for(replace(reading, timer=ShortTimer(timer, CANCEL_CHECK_S))):
                output.lacking = {}
                return
            output.lacking = _lacking(source, reading)
    raise NotCaughtUp.to(output.lacking)


def _lacking(source: TableSource, reading: Reading) -> Mapping[str, int]:
    """The offsets that no group has reached; all of them, where it is something else that is waited for."""
    return source.beyond(reading) or reading.after
