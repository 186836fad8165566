"""The next slice of a driver that is alone, without another thread in between."""

from __future__ import annotations

import pytest

from headrace.consumers.scheduling.driver import Again, Done, DriverSpec
from headrace.consumers.scheduling.task_states import TaskState
from tests.present import present
from tests.unit.scheduling.parts import Bench, ScriptedDriver
from tests.unit.scheduling.test_driver_scheduler import check_empty


@pytest.mark.parametrize("used_s", [0.001, 0.7, 12.0])
def test_a_driver_that_is_alone_has_its_next_slice_at_once(used_s: float) -> None:
    """What is counted and charged is that of giving the driver back and taking it again."""
    shown = []
    for renews in (True, False):
        bench = Bench()
        query = bench.submit(ScriptedDriver())
        task = present(bench.scheduler.take(0))
        assert task is query.tasks[0]
        for _ in range(3):
            if renews:
                assert bench.scheduler.renew(task, used_s, [used_s]) == bench.scheduler.slice_s(task)
            else:
                bench.scheduler.give_back(task, Again(), used_s, [used_s])
                assert task is present(bench.scheduler.take(0))
            assert TaskState.RUNNING is task.state
        statistics = bench.scheduler.statistics
        shown.append(
            (bench.scheduler.figures(), task.usage.level, task.usage.order, statistics.steps, statistics.long_steps)
        )
        bench.scheduler.give_back(task, Done(), 0.0)
        check_empty(bench.scheduler)
    assert shown[0] == shown[1]


@pytest.mark.parametrize("reason", ["another is ready", "it was aborted", "it cannot stop"])
def test_a_driver_gives_its_worker_back(reason: str) -> None:
    """It has no further slice, and nothing is charged twice."""
    bench = Bench()
    query = bench.submit(DriverSpec(ScriptedDriver(), unbounded=reason == "it cannot stop"))
    task = bench.scheduler.take(0)
    assert task is query.tasks[0]
    if reason == "another is ready":
        bench.submit(ScriptedDriver())
    elif reason == "it was aborted":
        bench.scheduler.kill(query.id)
    assert bench.scheduler.renew(task, 0.5, [0.5]) is None
    assert (0, 0) == (task.usage.used_ns, sum(bench.scheduler.statistics.steps.counts))
    bench.scheduler.give_back(task, Again(), 0.5)
    assert 500_000_000 == task.usage.used_ns
    bench.run()
    check_empty(bench.scheduler)
