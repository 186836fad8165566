"""The driver scheduler: tasks, their transitions, and what queries hold meanwhile. It starts no thread.

Workers call `take` and `give_back`, a sentinel calls `expire`; `scheduler_threads` has both. Everything that a driver
or a completed future may cause is handed to `defer`, so that it runs on neither the thread that completes a future nor
under a lock.

A transition is made under the lock of its task, after the state was checked again: the task may have been aborted
while the thread waited for the lock. A task that has ended ignores everything. Its driver is closed once, by whoever
ended it, or by its worker if a step was running.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any

import structlog

from headrace.consumers.scheduling.capacity import Capacity
from headrace.consumers.scheduling.driver import Again, Blocked, BlockedOn, DriverSpec, Step
from headrace.consumers.scheduling.driver_task import DriverTask, QueryReport, ScheduledQuery, Submission
from headrace.consumers.scheduling.memory_pool import MemoryPool
from headrace.consumers.scheduling.multilevel_queue import NS_PER_S
from headrace.consumers.scheduling.ready_drivers import ReadyDrivers
from headrace.consumers.scheduling.scheduler_limits import SchedulerLimits
from headrace.consumers.scheduling.scheduler_statistics import SchedulerFigures, SchedulerStatistics
from headrace.consumers.scheduling.scheduling_errors import QueryCancelled, QueryError, QueryTimeout, QueryUnknown
from headrace.consumers.scheduling.task_states import ENDED, LIVE, TaskState, Transition
from headrace.consumers.scheduling.timeout_queue import TimeoutQueue

_log = structlog.get_logger(__name__)


class DriverScheduler:
    """Every method may be called from any thread."""

    def __init__(
        self,
        limits: SchedulerLimits,
        defer: Callable[[Callable[[], None]], None],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`defer` runs a function later, on a thread of its own."""
        self.limits = limits
        self.statistics = SchedulerStatistics()
        self._defer = defer
        self._clock_s = clock_s
        self._lock = threading.Lock()
        self._ready = ReadyDrivers(self._lock, limits.unbounded_max)
        self._deadlines = threading.Condition(self._lock)
        self._capacity = Capacity(limits.capacity)
        self._memory = MemoryPool(limits.memory_bytes, limits.memory_per_query_bytes, limits.memory_small_bytes)
        self._timeouts = TimeoutQueue()
        self._queries: dict[str, ScheduledQuery] = {}
        self._closed = False

    def submit(self, submission: Submission) -> ScheduledQuery:
        """Take a query with all its drivers, or refuse it and leave nothing behind.

        Raises TooManyQueries, QueryTooLarge, QueryMemory, and QueryError after `close`.
        """
        if not submission.drivers:
            raise ValueError(f"query {submission.id} has no drivers")
        query = ScheduledQuery(submission, self._clock_s(), self.limits.timeout_s_max)
        with self._lock:
            try:
                self._admit(query)
            except QueryError:
                self.statistics.refused += 1
                raise
            self._queries[query.id] = query
            if self._timeouts.add(query.id, query.deadline_s):
                self._deadlines.notify()
            has_memory = self._memory.reserve(query.id, submission.memory_bytes)
            for task in query.tasks:
                if not has_memory:
                    task.block(BlockedOn.MEMORY, BlockedOn.MEMORY)
                if task.gates:
                    task.state = TaskState.BLOCKED
                else:
                    self._ready.offer(task)
        return query

    def _admit(self, query: ScheduledQuery) -> None:
        if self._closed:
            raise QueryError("this node no longer answers queries", action="ask another node")
        if query.id in self._queries:
            raise ValueError(f"query {query.id} runs already")
        self._memory.check(query.submission.memory_bytes)
        for each in self._queries.values():
            if each.answered:
                # It only closes what it had, and whoever has read it may ask again: as many as may ask at a time
                # are never refused.
                self._capacity.end_query(each.id)
        names = [task.id for task in query.tasks]
        self._capacity.admit(query.id, query.submission.user, names, apart=query.submission.apart)

    def extend(self, query_id: str, drivers: Sequence[DriverSpec], memory_bytes: int) -> bool:
        """Add drivers to a query that runs, which has so much memory then. False changes nothing: it ends, or there are
        no places or no memory at this moment. Raises QueryUnknown.
        """
        query = self._query(query_id)
        with self._lock:
            tasks = query.more(drivers, self._clock_s())
            names = [task.id for task in tasks]
            if query.cause is not None or not self._capacity.extend(len(query.tasks), names):
                return False
            if not self._memory.grow(query_id, memory_bytes):
                for name in names:
                    self._capacity.end_driver(name)
                return False
            query.extend(tasks)
            for task in tasks:
                self._ready.offer(task)
        return True

    def reserve(self, query_id: str, memory_bytes: int) -> Future[None]:
        """Exchange the memory that a running query has; done once it has all of it. Raises QueryMemory.

        It has none while it waits, so that two queries cannot wait for each other.
        """
        query, has_it = self._query(query_id), Future[None]()
        with self._lock:
            self._memory.check(memory_bytes)
            granted = [self._queries[name] for name in self._memory.release(query_id)]
            query.memory = has_it
            if self._memory.reserve(query_id, memory_bytes):
                granted.append(query)
        self._grant(granted)
        return has_it

    def _grant(self, granted: Sequence[ScheduledQuery]) -> None:
        """These queries have the memory now that they waited for."""
        for query in granted:
            memory, query.memory = query.memory, None
            if memory is not None:
                memory.set_result(None)
            for waiting in query.tasks:
                self._open(waiting, BlockedOn.MEMORY)

    def kill(self, query_id: str) -> None:
        """Abort a query on somebody's word. Raises QueryUnknown."""
        self.abort(self._query(query_id), QueryCancelled(f"query {query_id} was killed"))

    def abort(self, query: ScheduledQuery, cause: QueryError) -> None:
        """Abort every driver of a query that has not ended. The first cause counts."""
        with self._lock:
            if query.id not in self._queries:
                return
            query.cause = query.cause or cause
        # Those that came last first: the close of a driver may wait for drivers that it has added.
        for task in reversed(query.tasks):
            with task.lock:
                was_running = task.state is TaskState.RUNNING
                if not task.move(Transition.ABORT):
                    continue
                with self._lock:
                    self._end(task)
                    self.statistics.aborted += 1
            if was_running:
                # Its worker closes it: nobody closes a driver under its step.
                self._guarded(task, task.driver.cancel)
            else:
                self._defer(partial(self._close_driver, task))

    def take(self, wait_s: float, *, short: bool = False) -> DriverTask | None:
        """The driver that runs next, RUNNING; None when none is ready within `wait_s`. For workers.

        `short`: one whose query has used next to nothing, for a short worker.
        """
        with self._lock:
            task = self._ready.take(wait_s, short=short)
        if task is None:
            return None
        with task.lock:
            if not task.move(Transition.START):
                return None
            task.has_run = True
            with self._lock:
                self.statistics.ready_seconds += task.spent_s(self._clock_s())
        return task

    def slice_s(self, task: DriverTask) -> float:
        """How long a driver may run before it returns. A query that has used next to nothing is not interrupted."""
        usage = task.usage
        return max(self.limits.slice_of_s(usage.level, unbounded=task.unbounded), usage.short_left_ns / NS_PER_S)

    def renew(self, task: DriverTask, used_s: float, steps_s: Sequence[float]) -> float | None:
        """The next slice of a driver that `take` gave out, behind one as in `give_back`; None: give it back.

        It has one while nobody else is ready. To give it back and take it again would come to the same.
        """
        with task.lock, self._lock:
            if task.state is not TaskState.RUNNING or not self._ready.renews(task):
                return None
            self._ready.charge(task, used_s)
            self.statistics.add_steps(steps_s, self.limits.slice_of_s(task.usage.level))
            self._ready.renew(task)
            return self.slice_s(task)

    def give_back(self, task: DriverTask, step: Step, used_s: float, steps_s: Sequence[float] = ()) -> None:
        """A driver that `take` gave out has returned from its slice, with its last step. For workers.

        `used_s` is its processor time, `steps_s` the wall time of each of its steps.
        """
        with self._lock:
            self._ready.charge(task, used_s)
            self.statistics.add_steps(steps_s, self.limits.slice_of_s(task.usage.level))
        if isinstance(step, Again):
            has_moved = self._yield(task, step)
        elif isinstance(step, Blocked):
            has_moved = self._block(task, step)
        else:
            has_moved = self._finish(task)
        if not has_moved:
            self._close_stopped(task)

    def fail(self, task: DriverTask, error: BaseException) -> None:
        """A step of a driver that `take` gave out has raised an error, which ends its query. For workers."""
        self.abort(task.query, task.condition(error))
        self._close_stopped(task)

    def expire(self) -> None:
        """Abort the queries whose time is over. For the sentinel."""
        with self._lock:
            due = [self._queries[name] for name in self._timeouts.expired(self._clock_s())]
        for query in due:
            self.abort(query, QueryTimeout.after(query.submission.timeout_ms))

    def wait_for_deadline(self) -> None:
        """Sleep until a deadline may have passed, SLEEP_S_MAX at most. For the sentinel."""
        with self._lock:
            if not self._closed:
                # Computed under the lock: a submission in between would notify nobody.
                self._deadlines.wait(self._timeouts.sleep_s(self._clock_s()))

    def reports(self) -> list[QueryReport]:
        """The running queries, in the order in which they came."""
        with self._lock:
            return [query.report(self._memory.held_by(query.id)) for query in self._queries.values()]

    def figures(self) -> SchedulerFigures:
        """What it holds now."""
        with self._lock:
            states = [task.state for query in self._queries.values() for task in query.tasks]
            tasks = {state: states.count(state) for state in LIVE}
            ended = {TaskState.FINISHED: self.statistics.finished, TaskState.ABORTED: self.statistics.aborted}
            return SchedulerFigures(
                tasks | ended,
                self._capacity.drivers - len(self._ready),
                len(self._queries),
                len(self._timeouts),
                self._memory.held_bytes,
                dict(self._ready.figures()),
            )

    def close(self) -> None:
        """Refuse new queries, and abort those that run."""
        with self._lock:
            self._closed = True
            running = list(self._queries.values())
            self._ready.close()
            self._deadlines.notify_all()
        for query in running:
            self.abort(query, QueryCancelled("the node stops", action="ask another node", retriable=True))

    def _query(self, query_id: str) -> ScheduledQuery:
        with self._lock:
            if query_id not in self._queries:
                raise QueryUnknown.named(query_id)
            return self._queries[query_id]

    def _yield(self, task: DriverTask, step: Again) -> bool:
        with task.lock:
            if not task.move(Transition.YIELD):
                return False
            task.unbounded = task.unbounded if step.unbounded is None else step.unbounded
            task.spent_s(self._clock_s())
            with self._lock:
                self._ready.put_back(task)
        return True

    def _block(self, task: DriverTask, step: Blocked) -> bool:
        with task.lock:
            if not task.move(Transition.BLOCK):
                return False
            task.block(step.future, step.on)
            task.spent_s(self._clock_s())
            with self._lock:
                self._ready.remove(task)
                self._ready.stop_unbounded(task)
                # What others of its query hold is not known here.
                lends = step.keeps_bytes is not None and task.query.open == {task}
                names = self._memory.lend(task.query.id, step.keeps_bytes or 0) if lends else []
                granted = [self._queries[name] for name in names]
        self._grant(granted)
        # Behind the transition: a future that is done already wakes its driver at once.
        step.future.add_done_callback(lambda future: self._defer(partial(self._completed, task, future)))
        return True

    def _completed(self, task: DriverTask, future: Future[Any]) -> None:
        """What a driver waited for is there, or never will be."""
        if future.cancelled():
            self.abort(task.query, QueryCancelled(f"query {task.query.id} was cancelled"))
        elif (error := future.exception()) is not None:
            self.abort(task.query, task.condition(error))
        else:
            with task.lock, self._lock:
                # Until then it stays blocked, on memory.
                if task.state not in ENDED and not self._memory.take_back(task.query.id):
                    task.block(BlockedOn.MEMORY, BlockedOn.MEMORY)
            self._open(task, future)

    def _open(self, task: DriverTask, gate: object) -> None:
        """One of the things that a task waits for is there."""
        with task.lock:
            task.gates.discard(gate)
            if task.gates or not task.move(Transition.WAKE):
                return
            on = task.blocked_on
            with self._lock:
                spent_s = task.spent_s(self._clock_s())
                if on is not None:
                    self.statistics.blocked_seconds[on] += spent_s
                (self._ready.wake if task.has_run else self._ready.offer)(task)

    def _finish(self, task: DriverTask) -> bool:
        with task.lock:
            if not task.move(Transition.FINISH):
                return False
            with self._lock:
                self._end(task)
                self.statistics.finished += 1
        for dependent in task.dependents:
            self._open(dependent, task)
        self._close_driver(task)
        return True

    def _end(self, task: DriverTask) -> None:
        """A task has ended: it leaves the queue and gives its place back."""
        self._ready.remove(task)
        self._capacity.end_driver(task.id)

    def _close_stopped(self, task: DriverTask) -> None:
        """Close a driver that was aborted while its step ran, now that it has returned."""
        with self._lock:
            self._ready.stop_unbounded(task)
        self._close_driver(task)

    def _close_driver(self, task: DriverTask) -> None:
        """Close the driver of a task that has ended; behind the last one its query holds nothing any more."""
        assert task.state in ENDED, task.id
        query = task.query
        with self._lock:
            if task.is_closing:
                return
            task.is_closing = True
            self._ready.stop_unbounded(task)
        self._guarded(task, task.driver.close)
        with self._lock:
            query.open.remove(task)
            if query.open:
                return
            del self._queries[query.id]
            self._timeouts.remove(query.id)
            self._capacity.end_query(query.id)
            granted = [self._queries[name] for name in self._memory.release(query.id)]
            if query.error is not None:
                self.statistics.aborts[query.error.kind] += 1
        self._grant(granted)
        self._guarded(task, query.set_ended)

    def _guarded(self, task: DriverTask, call: Callable[[], None]) -> None:
        try:
            call()
        except BaseException as error:
            # Whatever it is: the query must end, or its reservations would never be free.
            _log.error("driver failed at its end", query=task.query.id, driver=task.id, error=repr(error))
