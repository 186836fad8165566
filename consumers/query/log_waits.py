"""A query waits for the logs of this process without a worker, and can be cancelled meanwhile."""

from __future__ import annotations

from dataclasses import replace

from headrace.consumers.query.query_errors import NotCaughtUp
from headrace.consumers.query.query_output import QueryOutput
from headrace.consumers.query.query_timer import QueryTimer, ShortTimer
from headrace.consumers.query.table_source import Reading, TableSource
from headrace.consumers.scheduling.driver import BlockedOn
from headrace.consumers.scheduling.threaded_driver import Turn

CANCEL_CHECK_S = 0.25
"""A wait that no interrupt ends is looked at so often."""
NO_WAIT_S = 1e-6


def wait_for_logs(source: TableSource, reading: Reading, timer: QueryTimer, turn: Turn, output: QueryOutput) -> None:
    """Return once the groups here have applied their logs up to `reading.after`. Raises NotCaughtUp."""
    # Most have nothing to wait for, and keep their worker.
    if source.wait_for(replace(reading, timer=ShortTimer(timer, NO_WAIT_S))):
        return
    output.lacking = reading.after
    with turn.outside(BlockedOn.LOG):
        # In parts: nothing ends such a wait but its time.
        while timer.left_s > 0:
            if source.wait_for(replace(reading, timer=ShortTimer(timer, CANCEL_CHECK_S))):
                output.lacking = {}
                return
    raise NotCaughtUp.to(reading.after)
