"""Queries whose answer is out, and which have not ended yet."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from headrace.consumers.scheduling.capacity import CapacityLimits
from headrace.consumers.scheduling.scheduler_limits import SchedulerLimits
from headrace.consumers.scheduling.scheduling_errors import QueryError, TooManyQueries
from tests.unit.scheduling.parts import Bench, ScriptedDriver


@dataclass
class Reader:
    """See EndWatcher."""

    answered: bool = False
    ends: int = 0

    def ended(self, _error: QueryError | None) -> None:
        """See EndWatcher."""
        self.ends += 1


@pytest.mark.parametrize("limits", [CapacityLimits(queries_max=1), CapacityLimits(queries_per_user_max=1)])
def test_whoever_has_an_answer_may_ask_again(limits: CapacityLimits) -> None:
    """A worker closes what the query before had, perhaps later than its reader asks: nobody asks for two at a time."""
    bench, first, second = Bench(SchedulerLimits(capacity=limits)), Reader(), Reader()
    bench.submit(ScriptedDriver(), user="ann", watcher=first)
    with pytest.raises(TooManyQueries):
        bench.submit(ScriptedDriver(), user="ann", watcher=second)
    first.answered = True
    bench.submit(ScriptedDriver(), user="ann", watcher=second)
    with pytest.raises(TooManyQueries):
        bench.submit(ScriptedDriver(), user="ann")
    bench.run()
    assert (1, 1) == (first.ends, second.ends)
    bench.submit(ScriptedDriver(), user="ann")
    with pytest.raises(TooManyQueries):
        bench.submit(ScriptedDriver(), user="ann")
