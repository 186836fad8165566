"""Which driver runs next."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.scheduling.multilevel_queue import SHORT_S, MultilevelQueue, Usage
from tests.present import present
from tests.unit.scheduling.parts import Task, task_at

LEVELS_S = (0, 2, 20, 100, 400)
"""A time in each level."""
SHARES = (16, 8, 4, 2, 1)


def level_after(*charges_s: float) -> int:
    """The level of a query that has used these times, one after another."""
    queue, task = MultilevelQueue[Task](), Task()
    for charge_s in charges_s:
        queue.offer(task)
        assert queue.poll() is task
        queue.charge(task, charge_s)
    return task.usage.level


@pytest.mark.parametrize(
    ("used_s", "level"),
    [(0, 0), (0.999, 0), (1, 1), (9.99, 1), (10, 2), (59.9, 2), (60, 3), (299, 3), (300, 4), (1e9, 4)],
)
def test_level_follows_from_the_time(used_s: float, level: int) -> None:
    """A query is in the level that its whole time gives it, in one slice or in two."""
    assert level == level_after(used_s)
    assert level == level_after(used_s / 2, used_s / 2)


def poll_shares(queue: MultilevelQueue[Task], tasks: list[Task], slice_s: float, picks: int = 1_000) -> Counter[int]:
    """How often each level is picked, by one worker that gives each driver back behind its slice."""
    for task in tasks:
        queue.offer(task)
    found = Counter[int]()
    for _ in range(picks):
        task = present(queue.poll())
        found[task.usage.level] += 1
        queue.charge(task, slice_s)
        queue.offer(task)
    return found


@pytest.mark.parametrize("deep", [1, 2, 50])
def test_levels_have_their_shares(deep: int) -> None:
    """16:8:4:2:1 within 10 %, whether levels have one driver or many."""
    queue = MultilevelQueue[Task]()
    tasks = [task_at(used_s) for used_s in LEVELS_S for _ in range(deep)]
    found = poll_shares(queue, tasks, 0.001)
    for level, share in enumerate(SHARES):
        assert pytest.approx(1_000 * share / sum(SHARES), rel=0.1) == found[level]


def test_levels_have_their_shares_of_coarse_steps() -> None:
    """Nor do steps of a second change the shares, where a level has one driver."""
    thresholds_s = (0, 1, 10_000)
    queue = MultilevelQueue[Task](thresholds_s)
    tasks = [task_at(used_s, thresholds_s=thresholds_s) for used_s in (1, 10_000)]
    found = poll_shares(queue, tasks, 1.0, 900)
    assert {1: 600, 2: 300} == pytest.approx(dict(found), rel=0.1)


def test_the_lowest_level_wins_a_tie() -> None:
    """With nothing used yet the levels come in order; one whose counter is 0 is not passed over."""
    queue = MultilevelQueue[Task]()
    tasks = [task_at(used_s) for used_s in LEVELS_S]
    for task in reversed(tasks):
        queue.offer(task)
    found = []
    for _ in LEVELS_S:
        task = present(queue.poll())
        found.append(task.usage.level)
        queue.charge(task, 0.001)
    assert [0, 1, 2, 3, 4] == found
    assert queue.poll() is None


def test_the_query_with_least_time_goes_first() -> None:
    """In one level by the time used, then by age."""
    queue = MultilevelQueue[Task]()
    first, second, third = tasks = [Task(name) for name in ("first", "second", "third")]
    for task in tasks:
        queue.offer(task)
    assert queue.poll() is first
    queue.charge(first, 2 * SHORT_S)
    queue.offer(first)
    assert queue.poll() is second
    queue.charge(second, SHORT_S)
    queue.offer(second)
    assert [third, second, first] == [queue.poll(), queue.poll(), queue.poll()]


def test_short_queries_run_in_the_order_in_which_they_came() -> None:
    """A burst of them: each is done before a newer one begins, and the first waits for none of the others."""
    queue, ran, ended = MultilevelQueue[Task](), list[str](), list[str]()
    left = {Task(name): 3 for name in ("first", "second", "third")}
    for task in left:
        queue.offer(task)
    while (running := queue.poll()) is not None:
        ran.append(running.name)
        queue.charge(running, SHORT_S / 4)
        left[running] -= 1
        if left[running]:
            queue.offer(running)
        else:
            queue.remove(running)
            ended.append(running.name)
            # Newer ones come all the time.
            if len(left) < 6:
                left[newer := Task(f"newer {len(left)}")] = 3
                queue.offer(newer)
    assert ["first", "second", "third", "newer 3", "newer 4", "newer 5"] == ended
    assert [name for name in ended for _slice in range(3)] == ran


def test_a_level_whose_driver_runs_is_not_idle() -> None:
    """It has got less than its share, and keeps that while another query comes to it."""
    queue = MultilevelQueue[Task](thresholds_s=(0, 1))
    long, running, new = task_at(2, thresholds_s=(0, 1)), Task("running"), Task("new")
    queue.offer(long)
    assert queue.poll() is long
    queue.charge(long, 4)
    queue.offer(long)
    queue.offer(running)
    assert queue.poll() is running
    assert queue.poll() is long
    queue.charge(long, 4)
    queue.offer(long)
    queue.offer(new)
    assert queue.poll() is new
    queue.charge(new, 0.001)
    queue.offer(new)
    assert queue.poll() is new


def test_one_that_is_not_short_waits_for_those_that_may_be() -> None:
    """Behind its first milliseconds in level 0 it is behind every query that has used less. No other level has this."""
    queue = MultilevelQueue[Task](thresholds_s=(0, 1))
    old, new = Task("old"), Task("new")
    queue.offer(old)
    assert queue.poll() is old
    queue.charge(old, SHORT_S)
    queue.offer(old)
    queue.offer(new)
    assert queue.poll() is new
    for task in (old, new):
        task.usage.level, task.usage.level_ns = 1, 0
    assert old.usage.order < new.usage.order
    old.usage.level_ns = 1
    assert new.usage.order < old.usage.order


def test_the_drivers_of_a_query_share_its_time() -> None:
    """A query of eight drivers gets no more than one of one driver, and moves up as a whole."""
    queue = MultilevelQueue[Task]()
    wide = Usage()
    drivers = [Task(f"wide {number}", wide) for number in range(8)]
    single = Task("single")
    for task in (*drivers, single):
        queue.offer(task)
    found = Counter[Usage]()
    for _ in range(400):
        task = present(queue.poll())
        found[task.usage] += 1
        queue.charge(task, 0.001)
        queue.offer(task)
    assert {wide: 200, single.usage: 200} == found
    queue.remove(single)
    task = present(queue.poll())
    assert task in drivers
    queue.charge(task, 1)
    queue.offer(task)
    assert (0, 8) == (queue.figures()["0"].ready, queue.figures()["1"].ready)


def test_drivers_of_a_query_take_turns() -> None:
    """No driver of a query starves beside its siblings."""
    queue, usage = MultilevelQueue[Task](), Usage()
    drivers = [Task(str(number), usage) for number in range(3)]
    for task in drivers:
        queue.offer(task)
    found = []
    for _ in range(6):
        task = present(queue.poll())
        found.append(task.name)
        queue.charge(task, 0.001)
        queue.offer(task)
    assert ["0", "1", "2", "0", "1", "2"] == found


def wait_of_a_new_query(queue: MultilevelQueue[Task], slice_s: float) -> int:
    """How many slices others get before a new query gets its first, with one worker."""
    new = Task("new")
    queue.offer(new)
    for waited in range(10_000):
        task = present(queue.poll())
        if task is new:
            return waited
        queue.charge(task, slice_s)
        queue.offer(task)
    return 10_000


@pytest.mark.parametrize("threshold_s", [1, 10, 60])
@pytest.mark.parametrize("workers", [1, 2])
def test_queries_that_cross_together_do_not_hold_a_new_one_up(threshold_s: int, workers: int) -> None:
    """Eight scans cross 1 s, 10 s or 60 s in the same round; a new query waits for two slices at most."""
    queue, slice_s = MultilevelQueue[Task](), threshold_s / 500
    scans = [Task(f"scan {number}") for number in range(8)]
    for task in scans:
        queue.offer(task)
    waits = []
    crossed = 0
    while crossed < 8:
        running = [task for task in (queue.poll() for _ in range(workers)) if task is not None]
        for task in running:
            before = task.usage.used_ns
            queue.charge(task, slice_s)
            crossed += before < threshold_s * 1_000_000_000 <= task.usage.used_ns
            queue.offer(task)
        if crossed:
            waits.append(wait_of_a_new_query(queue, slice_s))
            # It ends with its first slice.
            queue.remove(next(each for each in [*queue._running]))
    assert max(waits) <= 2


def test_a_level_is_raised_when_a_running_query_comes_into_it() -> None:
    """What crosses into a level that was idle does not get what others used meanwhile."""
    queue = MultilevelQueue[Task]()
    old, waiting = Task("old"), Task("waiting")
    queue.offer(old)
    for _ in range(999):
        assert queue.poll() is old
        queue.charge(old, 0.001)
        queue.offer(old)
    queue.offer(waiting)
    queue.remove(waiting)
    waiting.usage.level_ns = old.usage.level_ns + 2_000_000
    queue.offer(waiting)
    assert queue.poll() is old
    queue.charge(old, 0.001)
    queue.offer(old)
    assert 1 == old.usage.level
    # Level 1 has its share of the second that level 0 has used, and the tie is for level 0.
    assert queue.poll() is waiting


def test_a_level_that_was_idle_does_not_catch_up() -> None:
    """A long query that comes back finds its level at its share: it does not run alone."""
    queue = MultilevelQueue[Task]()
    short, long = Task("short"), task_at(2)
    queue.offer(long)
    assert queue.poll() is long
    queue.charge(long, 0.001)
    queue.remove(long)
    queue.offer(short)
    for _ in range(500):
        assert queue.poll() is short
        queue.charge(short, 0.001)
        queue.offer(short)
    queue.wake(long)
    found = Counter[str]()
    for _ in range(30):
        task = present(queue.poll())
        found["long" if task is long else "short"] += 1
        queue.charge(task, 0.001)
        queue.offer(task)
    assert pytest.approx(10, abs=1) == found["long"]


def test_a_level_that_was_idle_waits_for_none_that_is_behind() -> None:
    """A short query that finds level 2 behind level 1 does not wait until both are level."""
    queue = MultilevelQueue[Task]()
    ahead, behind, short = task_at(2), task_at(20), Task("short")
    for task in (ahead, behind):
        queue.offer(task)
    assert queue.poll() is ahead
    queue.charge(ahead, 1.0)
    queue.offer(ahead)
    queue.offer(short)
    assert queue.poll() is short
    queue.charge(short, 0.001)
    queue.remove(short)
    assert queue.poll() is behind


def test_a_level_that_was_idle_alone_keeps_its_counter() -> None:
    """Where nobody else ran meanwhile a level is owed what it was owed before."""
    queue = MultilevelQueue[Task]()
    short, long = Task("short"), task_at(2)
    queue.offer(long)
    queue.offer(short)
    for task in (short, long):
        assert queue.poll() is task
        queue.charge(task, 0.001)
        queue.offer(task)
    # Level 1 has had twice its share. Level 0 is owed a slice, and still is when its query was blocked for a moment.
    queue.remove(short)
    queue.wake(short)
    assert queue.poll() is short
    queue.charge(short, 0.001)
    queue.offer(short)
    assert queue.poll() is short


def test_a_level_is_owed_no_more_than_it_can_use() -> None:
    """A level whose only driver always runs falls behind; a crowd that comes into it later does not run alone for it."""
    queue = MultilevelQueue[Task](contribution_cap_s=1)
    busy, long = task_at(2, "busy"), task_at(400, "long")
    for task in (busy, long):
        queue.offer(task)
    assert [busy, long] == [queue.poll(), queue.poll()]
    # Two workers: both always run, and level 4 is charged sixteen times what level 1 is, by weight eight times.
    for _ in range(5_000):
        for task in (busy, long):
            queue.charge(task, 0.01)
            queue.offer(task)
        assert {busy, long} == {queue.poll(), queue.poll()}
        if queue.figures()["1"].seconds > 7:
            break
    queue.charge(long, 0.01)
    queue.offer(long)
    crowd = [task_at(2) for _ in range(8)]
    for task in crowd:
        queue.offer(task)
    used_s = 0.0
    while (task := present(queue.poll())) is not long:
        queue.charge(task, 0.01)
        queue.offer(task)
        used_s += 0.01
    # A second of level 0 is half a second of level 1.
    assert used_s <= 0.52


def test_a_long_slice_counts_to_a_limit() -> None:
    """A step of an hour adds 30 s to the counters, first to the levels it began in, and all of it to its query."""
    queue, task = MultilevelQueue[Task](), Task()
    queue.offer(task)
    assert queue.poll() is task
    queue.charge(task, 3_600)
    assert (4, 3_600 * 10**9) == (task.usage.level, task.usage.used_ns)
    # Level 4 was idle: it begins at its share of what level 2 has, and the limit leaves it nothing to add.
    assert [1, 9, 20, 0, 5] == [level.counter_ns / 10**9 for level in queue._levels]
    assert {"0": 1, "1": 9, "2": 50, "3": 240, "4": 3_300} == {
        name: figures.seconds for name, figures in queue.figures().items() if name != "urgent"
    }


def test_a_driver_that_wakes_goes_ahead_of_nobody_who_waited() -> None:
    """It gets at least the least time of its level, so that it does not catch up on the time it was blocked for."""
    queue = MultilevelQueue[Task]()
    sleeper, busy = (task_at(2, name) for name in ("sleeper", "busy"))
    for task in (sleeper, busy):
        queue.offer(task)
    assert queue.poll() is sleeper
    queue.remove(sleeper)
    for _ in range(100):
        assert queue.poll() is busy
        queue.charge(busy, 0.001)
        queue.offer(busy)
    queue.wake(sleeper)
    found = []
    for _ in range(4):
        task = present(queue.poll())
        found.append(task.name)
        queue.charge(task, 0.001)
        queue.offer(task)
    assert ["sleeper", "busy", "sleeper", "busy"] == found


def test_a_driver_that_wakes_beside_one_that_runs_gets_its_time_too() -> None:
    """The least time of a level is also that of queries whose drivers all run."""
    queue = MultilevelQueue[Task]()
    sleeper, busy = (task_at(2, name) for name in ("sleeper", "busy"))
    queue.offer(busy)
    assert queue.poll() is busy
    queue.charge(busy, 0.5)
    queue.wake(sleeper)
    assert busy.usage.level_ns == sleeper.usage.level_ns


def test_urgent_queries_run_before_all_levels() -> None:
    """They come in turn among themselves, and are in no level whatever they use."""
    queue = MultilevelQueue[Task]()
    plain, urgent, other = Task("plain"), Task("urgent", Usage(urgent=True)), Task("other", Usage(urgent=True))
    for task in (plain, urgent, other):
        queue.offer(task)
    assert queue.poll() is urgent
    queue.charge(urgent, 100)
    queue.offer(urgent)
    assert [other, urgent, plain] == [queue.poll(), queue.poll(), queue.poll()]
    assert 0 == urgent.usage.level
    assert (100, 0) == (queue.figures()["urgent"].seconds, queue.figures()["0"].seconds)


def test_a_removed_driver_is_gone() -> None:
    """Ready or running, once or twice; its siblings stay, and a slice that it had is still charged."""
    queue, usage = MultilevelQueue[Task](), Usage()
    ready, running, sibling = Task("ready", usage), Task("running", usage), Task("sibling", usage)
    queue.offer(running)
    assert queue.poll() is running
    for task in (ready, sibling):
        queue.offer(task)
    for task in (ready, running, ready, running):
        queue.remove(task)
    queue.charge(running, 2)
    assert (1, 1) == (len(queue), queue.figures()["1"].ready)
    assert queue.poll() is sibling
    assert queue.poll() is None


@pytest.mark.parametrize("thresholds_s", [(), (1, 2), (0, 2, 2), (0, 5, 3)])
def test_thresholds_ascend_from_zero(thresholds_s: tuple[int, ...]) -> None:
    """Others are refused, as is a multiplier below 1 and a negative time."""
    with pytest.raises(ValueError):
        MultilevelQueue[Task](thresholds_s)
    with pytest.raises(ValueError):
        MultilevelQueue[Task](multiplier=0)
    with pytest.raises(ValueError):
        MultilevelQueue[Task]().charge(Task(), -0.1)


@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 11), st.floats(0, 40)), max_size=60))
def test_no_driver_is_lost_or_given_out_twice(steps: list[tuple[int, int, float]]) -> None:
    """Whatever happens to twelve drivers of four queries, each is ready, running or away, and figures agree."""
    queue = MultilevelQueue[Task]()
    usages = [Usage(urgent=number == 3) for number in range(4)]
    tasks = [Task(str(number), usages[number % 4]) for number in range(12)]
    ready, running = set[Task](), set[Task]()
    for kind, number, seconds in steps:
        task = tasks[number]
        if kind == 0 and task not in ready | running:
            (queue.wake if number % 2 else queue.offer)(task)
            ready.add(task)
        elif kind == 1 and (polled := queue.poll()) is not None:
            assert polled in ready
            ready.remove(polled)
            running.add(polled)
        elif kind == 2 and task in running:
            queue.charge(task, seconds)
            queue.offer(task)
            running.remove(task)
            ready.add(task)
        elif kind == 3:
            queue.remove(task)
            ready.discard(task)
            running.discard(task)
        elif kind == 4 and task in running:
            queue.charge(task, seconds)
        elif kind == 5 and (polled := queue.poll_short()) is not None:
            assert polled in ready
            assert polled.usage.short_left_ns
            ready.remove(polled)
            running.add(polled)
        elif kind == 6:
            queue.mark_long(task)
        assert any(each.usage.short_left_ns for each in ready) == queue.has_short
        assert len(ready) == len(queue) == sum(figures.ready for figures in queue.figures().values())
        assert {each: each in running for each in tasks} == {each: queue.is_running(each) for each in tasks}
        for level in queue._levels:
            assert level.present == {each.usage for each in ready | running if queue._level_of(each.usage) is level}
    assert ready == {queue.poll() for _ in range(len(queue))}


def test_short_queries_are_those_that_have_used_next_to_nothing() -> None:
    """In the order in which they came, urgent ones first, and whatever the shares of the levels are."""
    queue = MultilevelQueue[Task]()
    used, first, second, urgent = Task("used"), Task("first"), Task("second"), Task("urgent", Usage(urgent=True))
    for task in (used, first, second, urgent):
        queue.offer(task)
    assert [urgent, used] == [queue.poll_short(), queue.poll_short()]
    queue.charge(used, SHORT_S)
    queue.offer(used)
    assert [first, second] == [queue.poll_short(), queue.poll_short()]
    assert (None, False, 1) == (queue.poll_short(), queue.has_short, len(queue))
    assert used is queue.poll()


def test_a_query_that_is_known_to_take_long_is_not_short() -> None:
    """From then on, though it has used nothing, and though others of its drivers are ready."""
    queue, usage = MultilevelQueue[Task](), Usage()
    long, part, short = Task("long", usage), Task("part", usage), Task("short")
    for task in (long, part, short):
        queue.offer(task)
    assert long is queue.poll()
    queue.mark_long(long)
    assert (short, None) == (queue.poll_short(), queue.poll_short())
    queue.offer(long)
    assert {long, part} == {queue.poll(), queue.poll()}
