"""The jobs that change the files of one group at one node: seals, merges and drops, with their progress.

Jobs run beside the applying thread, one behind another, and commit in order. One that a full disk stops is
repeated until there is space; one that fails otherwise stops the group.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Protocol

import structlog

from headrace.connectors.processor import background_threads
from headrace.consumers.replication.group_health import Event, GroupHealth
from headrace.consumers.replication.group_state import GroupState
from headrace.consumers.replication.hash_chain import content_digest
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.consumers.store import (
    JobSuperseded,
    JobUnwanted,
    LoadJob,
    SealJob,
    SegmentAwaited,
    Store,
    StoreDamaged,
    StoreJob,
)
from headrace.schemas.errors import HeadraceError
from headrace.schemas.messages import NO_CHAIN

NO_CONTENT = (-1, NO_CHAIN)
LOOK_S = 0.02
"""How often somebody who must not wait for files looks whether a job does."""
_log = structlog.get_logger(__name__)


JobStep = Callable[[], float | None]
GATHER_STEP_S = 0.05
GATHER_STEPS_MAX = 10
"""Most steps that a load waits for others to share its commit. Without it the first of 300 took a few along."""
IsUrgent = Callable[[], bool]
"""Whether somebody waits for a step; asked when its turn has come."""


class JobHandle(Protocol):
    """The progress of one step that a pool runs."""

    def done(self) -> bool:
        """Whether it has ended."""
        ...

    def result(self, timeout: float | None = None) -> None:
        """Wait for its end. May raise TimeoutError after so many seconds."""
        ...


class JobPool(Protocol):
    """Runs steps one behind another, in the order of their submission.

    A step is called again, as many seconds later as it returned, until it returns None.
    """

    def submit(self, step: JobStep, *, urgent: IsUrgent = lambda: False) -> JobHandle:
        """Run a step behind all those before."""
        ...

    def hurry(self) -> None:
        """End the present pause, and make none any more."""
        ...

    def shutdown(self) -> None:
        """Wait for the running step, and begin no other."""
        ...


class JobThread:
    """A JobPool of one thread with an added niceness, and one without it for urgent steps."""

    def __init__(self, name: str, nice: int = 0) -> None:
        self._threads = background_threads(1, name, nice)
        self._urgent = ThreadPoolExecutor(1, f"{name}-urgent")
        # Now: a thread begins with the niceness of the one that starts it.
        self._urgent.submit(lambda: None)
        self._hurrying = threading.Event()

    def submit(self, step: JobStep, *, urgent: IsUrgent = lambda: False) -> JobHandle:
        """See JobPool."""
        return self._threads.submit(self._take, step, urgent)

    def hurry(self) -> None:
        """See JobPool."""
        self._hurrying.set()

    def shutdown(self) -> None:
        """See JobPool."""
        self._threads.shutdown(wait=True, cancel_futures=True)
        self._urgent.shutdown()

    def _take(self, step: JobStep, urgent: IsUrgent) -> None:
        # A thread cannot raise its priority again. The first one keeps the order, and waits for the other.
        if urgent():
            self._urgent.submit(self._repeat, step).result()
        else:
            self._repeat(step)

    def _repeat(self, step: JobStep) -> None:
        while (pause_s := step()) is not None:
            self._hurrying.wait(pause_s)


class StoreJobQueue:
    """Owned by the applying thread; the properties may be read by any.

    A job that waits, or cannot succeed, is reported to the group's health. `waits_for_files`: whether a job without room
    waits also while the one that runs waits for a file of another node.
    """

    def __init__(
        self,
        group: str,
        store: Store,
        state: GroupState,
        limits: ReplicationLimits,
        health: GroupHealth,
        on_sealed: Callable[[str, int], None],
        pool: JobPool | None = None,
    ) -> None:
        self._group = group
        self._store = store
        self._limits = limits
        self._on_sealed = on_sealed
        self._health = health
        # One behind another, so that commits come in log order: the index has one group state, that of its newest
        # seal, and a crash between two seals in the wrong order would lose the rows of the earlier one.
        self._pool = pool or JobThread(f"store-{group}", limits.background_nice)
        self._pending: deque[JobHandle] = deque()
        self._loads: deque[JobHandle] = deque()
        self._changed = threading.Condition()
        self._seals: dict[int, tuple[int, int]] = {}
        self._content: tuple[int, bytes] = NO_CONTENT
        self._version = state.frontier
        self._open = 0
        self._stopping = False
        self._gathered: tuple[StoreJob | None, int, int] = (None, 0, 0)
        self._awaits_file = False
        # Whether the applying thread had to wait for a job since it submitted one.
        self._held_up = False
        self.waits_for_files = True
        self.sealed_version = state.frontier
        self.sealed_offset = state.offset
        self.sealed_log_bytes = state.log_bytes
        self.size_bytes = store.size_bytes

    @property
    def version(self) -> int:
        """The newest record that changed the set of files (a seal, a merge, a drop); -1 while a job runs."""
        with self._changed:
            return -1 if self._open else self._version

    def content(self) -> tuple[int, bytes]:
        """(version, digest over the names and content digests of all segments); NO_CONTENT while a job runs."""
        # Called for every status, so the digest is kept per version. During a job it is not computed at all:
        # it would be thrown away, and hashing the names of all segments costs more the more there are.
        version = self.version
        if version == self._content[0]:
            return self._content
        if version < 0:
            return NO_CONTENT
        content = content_digest(self._store.digests())
        # A job that was submitted meanwhile may have changed the set: that digest belongs to no version.
        if self.version != version:
            return NO_CONTENT
        self._content = (version, content)
        return self._content

    def skip(self, version: int) -> None:
        """A record that might have changed files did not."""
        # The version moves all the same: members compare files only at equal versions, and one of them may
        # have had work.
        self._version = version

    def seal(self, job: SealJob, offset: int, log_bytes: int, *, before_load: bool = False) -> None:
        """Run a seal; `offset` and `log_bytes` are those of its record. Waits while too many are unfinished.

        `before_load`: the load of the next record follows at once.
        """
        self._seals[job.version] = (offset, log_bytes)
        # Members that have not read the load have not sealed at this version: its files belong to none before the load.
        self._submit(job, -1 if before_load else job.version)

    def submit(self, job: StoreJob) -> None:
        """Run a job behind those that were submitted before. Waits while too many are unfinished."""
        self._submit(job, job.version)

    def _submit(self, job: StoreJob, version: int) -> None:
        with self._changed:
            self._version = version
            self._open += 1
        self._queue(job, counted=True)

    def submit_aside(self, job: StoreJob) -> None:
        """Run a job that changes nothing of what members compare, so it counts for no version."""
        self._queue(job, counted=False)

    def _queue(self, job: StoreJob, counted: bool) -> None:
        job.is_unwanted = lambda: self._stopping
        waiting, limit = self._waiting(job)
        self._wait_for_room(waiting, limit)
        # On a busy machine background work gets next to nothing. A load waits for seconds behind the other threads, and
        # a replica whose log waits for its jobs would never catch up.
        job.urgent = job.urgent or self._held_up
        self._held_up = False
        # Most loads were committed together with an earlier one: to run hundreds of them all the same took a second.
        waiting.append(self._pool.submit(lambda: self._turn(job, counted), urgent=lambda: job.urgent and not job.done))

    def _waiting(self, job: StoreJob) -> tuple[deque[JobHandle], int]:
        """The jobs that are unfinished with one of this kind, and how many of them may be."""
        # A load holds no rows in memory, and many that wait become one commit.
        loads = isinstance(job, LoadJob)
        return (self._loads, self._limits.load_backlog) if loads else (self._pending, self._limits.job_backlog)

    def wait_for_room(self) -> None:
        """Wait while more jobs than the limit are unfinished, loads aside."""
        # Memory holds what is unsealed and one frozen memtable, so a second seal waits for the first.
        self._wait_for_room(self._pending, self._limits.job_backlog)

    def _wait_for_room(self, waiting: deque[JobHandle], limit: int) -> None:
        while _is_full(waiting, limit):
            self._held_up = True
            if self.waits_for_files:
                waiting.popleft().result()
            elif self._awaits_file:
                return
            else:
                with suppress(TimeoutError):
                    waiting[0].result(LOOK_S)

    @property
    def lacks_file(self) -> bool:
        """Whether there is no room before a file comes that other nodes have. Called by the applying thread."""
        return self.full and self._awaits_file

    @property
    def full(self) -> bool:
        """Whether `wait_for_room` would wait. Called by the applying thread."""
        return _is_full(self._pending, self._limits.job_backlog)

    def drain(self) -> None:
        """Wait until every job submitted so far is done."""
        self._pool.submit(lambda: None).result()

    def wait_done(self, version: int, timeout_s: float) -> bool:
        """Whether every job of the records up to a version is done, waited for; False at once if none begins any more."""
        with self._changed:
            self._changed.wait_for(lambda: self._stopping or not self._store.has_pending(version), timeout_s)
        return not self._store.has_pending(version)

    def cancel(self) -> None:
        """Begin no more jobs, end a long one before its commit, and stop waiting; the rest is left to the next start."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        self._pool.hurry()

    def stop(self) -> None:
        """Wait for the running job."""
        self.cancel()
        self._pool.shutdown()

    def _turn(self, job: StoreJob, counted: bool) -> float | None:
        """One attempt at a job. Returns the seconds until the next one, None when there is none."""
        # A job that is given up is counted as open still: the version must not be shown as stored while its files
        # are missing.
        if self._stopping:
            return None
        if isinstance(job, LoadJob) and not job.done and self._gathers(job):
            return GATHER_STEP_S
        # The commit of an earlier load had this one, too, and has reported it.
        already = job.done
        try:
            job.run()
        except JobSuperseded as error:
            # Two plans of one leader overlapped, or a load does not fit: on every replica the same one is void.
            _log.info("store job void", group=self._group, version=job.version, error=str(error))
            job.cancel()
        except JobUnwanted:
            return None
        except HeadraceError as error:
            # Repeated for ever, in its place: a later job that ran first would commit a state without this one's
            # files.
            if error.retriable:
                self._awaits_file = isinstance(error, SegmentAwaited)
                return self._wait(job, str(error))
            if isinstance(error, StoreDamaged):
                self._health.damage(error.message)
            self._fail(job, str(error))
            return None
        except Exception as error:
            self._fail(job, repr(error))
            _log.exception("storing failed", group=self._group)
            return None
        if not already:
            self._report(job)
        with self._changed:
            self._open -= counted
            self._changed.notify_all()
        return None

    def _gathers(self, job: LoadJob) -> bool:
        """Whether a load waits for others to join its commit: while more of them come, a moment."""
        known, before, looks = self._gathered
        if known is not job:
            # One alone waits for none.
            before, looks = 1, 0
        with self._changed:
            self._gathered = job, self._open, looks + 1
        return self._gathered[1] > before and looks < GATHER_STEPS_MAX

    def _wait(self, job: StoreJob, reason: str) -> float:
        """The pause after an error that may pass: a full disk, or a file that has not arrived."""
        if self._health.report(Event.DEFER, reason):
            log = _log.info if self._awaits_file else _log.error
            log("storing waits", group=self._group, version=job.version, reason=reason)
        return self._limits.job_retry_s

    def _fail(self, job: StoreJob, error: str) -> None:
        if self._health.report(Event.STOP, f"storing at version {job.version}: {error}"):
            _log.error("group stopped", group=self._group, reason=error, version=job.version)
        self.cancel()

    def _report(self, job: StoreJob) -> None:
        self._awaits_file = False
        if self._health.report(Event.STORE):
            _log.info("storing resumed", group=self._group, version=job.version)
        if isinstance(job, SealJob):
            self.sealed_offset, self.sealed_log_bytes = self._seals.pop(job.version)
            self.sealed_version = job.version
            self._on_sealed(self._group, job.version)
        self.size_bytes = self._store.size_bytes


def _is_full(waiting: deque[JobHandle], limit: int) -> bool:
    while waiting and waiting[0].done():
        waiting.popleft()
    return len(waiting) > limit
