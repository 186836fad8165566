"""Files that are whole, on their way to a verdict: a pool decides them, and the receiver takes what is done."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Protocol

import structlog

from headrace.connectors.log.append import append_with
from headrace.connectors.log.port import Appender
from headrace.connectors.log.topics import Topics
from headrace.consumers.sync.file_loader import Attempts, FileJob
from headrace.schemas.errors import HeadraceError
from headrace.schemas.sync_records import SyncVerdict, Verdict, encode_verdict, verdict_key

HELD_RETRIES = 10
"""Pauses between two attempts of a job that has waited for long."""
HELD_SHARE = 4
"""One thread of so many is for such jobs."""
_log = structlog.get_logger(__name__)


class Verdicts(Protocol):
    """Appends verdicts."""

    def append(self, verdict: SyncVerdict) -> None:
        """Append one, and wait until it is in the log. Raises the errors of the log."""
        ...


class LogVerdicts:
    """See Verdicts: the verdict topic. Safe to share between threads."""

    def __init__(self, appender: Appender, topics: Topics) -> None:
        self._appender = appender
        self._topic = topics.sync_verdict

    def append(self, verdict: SyncVerdict) -> None:
        """See Verdicts."""
        append_with(self._appender, self._topic, encode_verdict(verdict), key=verdict_key(verdict.sender, verdict.file))


@dataclass(frozen=True, slots=True)
class Done:
    """A job that has its verdict in the log; None for one that ended before. `number` is that of its partitions."""

    number: int
    job: FileJob
    verdict: SyncVerdict | None


@dataclass(frozen=True, slots=True)
class _Held:
    """A job that has waited for long, and when it is tried again."""

    due_s: float
    number: int
    job: FileJob
    attempts: Attempts


class Decisions:
    """Owned by the thread of the receiver; the pool's threads are its own."""

    def __init__(self, verdicts: Verdicts, threads: int, retry_s: float) -> None:
        self._verdicts = verdicts
        self._retry_s = retry_s
        self._done: SimpleQueue[Done] = SimpleQueue()
        self._decided = threading.Event()
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="sync-load")
        self._held: deque[_Held] = deque()
        self._held_threads = threading.Semaphore(max(1, threads // HELD_SHARE))
        self._look_at_s = 0.0

    def decide(self, number: int, job: FileJob, attempts: Attempts) -> None:
        """Find the verdict of a job, and append it."""
        self._pool.submit(self._run, number, job, attempts)

    def tell(self, verdict: SyncVerdict) -> None:
        """Append a verdict that ends nothing. It is repeated when nothing comes of it: nobody waits for it."""
        self._pool.submit(self._append, verdict)

    def wait(self, timeout_s: float) -> None:
        """Wait until something was decided that `done` has not returned."""
        self._decided.wait(timeout_s)

    def done(self) -> Iterator[Done]:
        """What was decided since the last call."""
        self._continue_held()
        self._decided.clear()
        while True:
            try:
                yield self._done.get_nowait()
            except Empty:
                return

    def close(self) -> None:
        """Begin no more."""
        self._pool.shutdown(cancel_futures=True)

    def _run(self, number: int, job: FileJob, attempts: Attempts) -> None:
        """One attempt. A job that waits for its next one keeps no thread from others, as those of other groups."""
        try:
            told = next(attempts)
        except StopIteration as ended:
            self._end(number, job, ended.value)
        except Exception:
            _log.exception("a file of a sender was not decided", number=job.manifest.number)
            job.settled.set()
        else:
            if told is not None:
                self._append(told)
            if job.held.is_set():
                self._held.append(_Held(time.monotonic() + HELD_RETRIES * self._retry_s, number, job, attempts))
                return
            if job.ended.wait(self._retry_s):
                # Its next step is the end, for which others may wait.
                self._run(number, job, attempts)
                return
            # Refused once the receiver has ended.
            with suppress(RuntimeError):
                self._pool.submit(self._run, number, job, attempts)

    def _continue_held(self) -> None:
        """Try held jobs again that are due, a few at a time: a member that hangs would keep all threads from others."""
        now_s = time.monotonic()
        if now_s < self._look_at_s:
            return
        self._look_at_s = now_s + self._retry_s
        for _ in range(len(self._held)):
            held = self._held.popleft()
            # One that has ended takes no time, and others may wait for it.
            if not (held.job.ended.is_set() or held.due_s <= now_s) or not self._begin_held(held):
                self._held.append(held)

    def _begin_held(self, held: _Held) -> bool:
        """Whether a thread is free for a held job, which it has then."""
        if not self._held_threads.acquire(blocking=False):
            return False
        self._pool.submit(self._run_held, held)
        return True

    def _run_held(self, held: _Held) -> None:
        try:
            self._run(held.number, held.job, held.attempts)
        finally:
            self._held_threads.release()

    def _end(self, number: int, job: FileJob, verdict: SyncVerdict | None) -> None:
        # The verdict is in its topic before the offset behind the file is committed.
        while verdict is not None and not job.ended.is_set() and not self._append(verdict):
            job.ended.wait(self._retry_s)
        job.settled.set()
        if verdict is not None and not job.ended.is_set():
            _note(verdict)
        self._done.put(Done(number, job, None if job.ended.is_set() else verdict))
        self._decided.set()

    def _append(self, verdict: SyncVerdict) -> bool:
        try:
            self._verdicts.append(verdict)
        except HeadraceError as error:
            _log.warning("a verdict was not appended", sender=verdict.sender, file=verdict.file, error=str(error))
            return False
        except Exception:
            # Without its verdict a file would hold up the offset of its partition for ever: it is tried again.
            _log.exception("a verdict was not appended", sender=verdict.sender, file=verdict.file)
            return False
        return True


def _note(verdict: SyncVerdict) -> None:
    log = _log.info if verdict.state is Verdict.ACCEPTED else _log.warning
    log(
        "file decided",
        sender=verdict.sender,
        file=verdict.file,
        state=str(verdict.state),
        kind=verdict.kind,
        why=verdict.message,
    )
