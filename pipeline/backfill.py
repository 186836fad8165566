"""Parquet and CSV files into the forward logs, through Spark: one task writes one file, or a few small ones.

The driver plans, keeps the progress by file, and shows it. Workers read, encode and write (`backfill_task`). Within a
file the later of two rows of one series and time wins. Files are written beside one another, in no order, unless the
job is `ordered`.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from headrace.connectors.log.kafka import KafkaLog
from headrace.consumers.membership.bootstrap import read_slot_table
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.pipeline.backfill_plan import (
    PROGRESS_BYTES,
    BackfillJob,
    BackfillPlan,
    FileChanged,
    FileRefused,
    PlannedFile,
)
from headrace.pipeline.backfill_state import BackfillState, Known
from headrace.pipeline.failures import WorkerLate, explain, spark_ended
from headrace.pipeline.ingest import check_session, wait_for_broker
from headrace.pipeline.schema_match import check_table_name
from headrace.pipeline.session import is_local
from headrace.schemas.errors import HeadraceError

LOOK_S = 0.25
RESTARTS_MAX = 20
"""Of one task whose Python process did not start in time."""
RESTART_PAUSE_S = 1.0
FOUND = "found string"

OnProgress = Callable[[int], None]


class TagsMissing(HeadraceError):
    """A new table without tags: rows that share a time would replace each other."""

    exit_code = 2


class FileUnwritten(HeadraceError):
    """A file that could not be written for a reason outside of it, as when Kafka is away."""


@dataclass(frozen=True, slots=True)
class Backfilled:
    """What a run has written; `skipped` files were written by earlier runs."""

    files: int = 0
    rows: int = 0
    points: int = 0
    skipped: int = 0


class Prepared(NamedTuple):
    """`identity` tells this cluster from another of its name; `tags` are those that the table has.

    `drops`: how often it was dropped.
    """

    identity: str
    tags: tuple[str, ...]
    drops: int

    def begin(self, job: BackfillJob, directory: Path) -> tuple[BackfillJob, BackfillState]:
        """The job on the table as it is, and what was written of it. Raises DirectoryHeld, StateDamaged."""
        # What was written before the table was dropped is not there.
        job = replace(job, drops=self.drops)
        return job, BackfillState(directory, f"{self.identity}/{job.digest}")


def prepare(job: BackfillJob, wait_s: float, notify: Callable[[str], None], *, no_tags: bool = False) -> Prepared:
    """Check what can be checked before Spark starts, and create the database if it is missing.

    Raises LogUnavailable, NoCluster, SchemaError, TagsMissing.
    """
    target = job.target
    log = KafkaLog(target.bootstrap, dict(target.kafka))
    try:
        wait_for_broker(log, target.bootstrap, target.topics, wait_s, notify)
        read_slot_table(log, target.topics)
        tables = SchemaLog(log, target.topics)
        tables.refresh()
        check_table_name(tables.catalogue, target.database, target.table)
        table = tables.catalogue.newest(target.database, target.table)
        if not (no_tags or job.options.tags or table.version):
            raise TagsMissing(
                f"table {target.name} is new, and without tags rows of one time replace each other",
                action="name the columns that identify a series with --tags A,B, or give --no-tags",
            )
        tables.ensure_database(target.database)
        tables.close()
        drops = tables.catalogue.drops.get((target.database, target.table), 0)
        return Prepared(log.describe(target.topics.membership).topic_id, tuple(table.tags), drops)
    finally:
        log.close()


def run_backfill(
    session: SparkSession,
    job: BackfillJob,
    plan: BackfillPlan,
    state: BackfillState,
    *,
    on_progress: OnProgress = lambda _bytes: None,
) -> Backfilled:
    """Write the files of a plan; `on_progress` gets the bytes read so far.

    Raises FileRefused, FileChanged, FileUnwritten, SparkEnded: the files that are finished by then are kept.
    """
    check_session(session)
    run = _Run(session, job, plan, state)
    threads = 1 if job.ordered else session.sparkContext.defaultParallelism
    chunks = iter(plan.chunks())
    with run.progress_file(), _pool(threads) as pool:
        waiting = {pool.submit(run.write_chunk, chunk) for chunk in islice(chunks, threads)}
        while waiting:
            finished, waiting = wait(waiting, LOOK_S, FIRST_COMPLETED)
            for each in finished:
                # First: a thread that had the next files already would write them behind a failure. In order, rows
                # that are written later on would then win against those of later files.
                run.finish(each)
                waiting.update(pool.submit(run.write_chunk, chunk) for chunk in islice(chunks, 1))
            on_progress(run.bytes_read())
    return run.done


@contextmanager
def _pool(threads: int) -> Iterator[ThreadPoolExecutor]:
    """Threads that each wait for one Spark job. What has begun is waited for; an interruption waits for nothing."""
    pool = ThreadPoolExecutor(threads, thread_name_prefix="backfill")
    try:
        yield pool
    except BaseException as error:
        pool.shutdown(wait=isinstance(error, Exception), cancel_futures=True)
        raise
    pool.shutdown()


class _Run:
    def __init__(self, session: SparkSession, job: BackfillJob, plan: BackfillPlan, state: BackfillState) -> None:
        self.done = Backfilled(skipped=plan.written_before)
        self._session, self._job, self._plan, self._state = session, job, plan, state
        self._sizes = np.array([each.state.size for each in plan.files], np.int64)
        self._finished = np.zeros(len(plan.files), np.bool_)
        self._progress = ""
        self._noting = threading.Lock()

    @contextmanager
    def progress_file(self) -> Iterator[None]:
        """Where tasks put how far they are, if they run on this machine."""
        if not is_local(self._session):
            yield
            return
        with tempfile.NamedTemporaryFile(prefix="headrace-backfill-") as file:
            file.truncate(len(self._plan.files) * PROGRESS_BYTES)
            self._progress = file.name
            try:
                yield
            finally:
                self._progress = ""

    def bytes_read(self) -> int:
        """Bytes of finished files, and of the others as far as tasks have come."""
        if not len(self._sizes):
            return 0
        reading = np.zeros(len(self._sizes), np.int64)
        if self._progress:
            reading = np.frombuffer(Path(self._progress).read_bytes(), "<i8")
        return int(np.where(self._finished, self._sizes, np.minimum(reading, self._sizes)).sum())

    def write_chunk(self, files: tuple[PlannedFile, ...]) -> list[dict[str, object]]:
        """Write files in one task; what became of each. In a thread."""
        with self._noting:
            self._state.note((each.path, Known(each.state, each.batch)) for each in files)
        restarts = 0
        while True:
            try:
                return self._run_task(files)
            except (PySparkException, Py4JJavaError) as error:
                # Of a worker that crashed or came late PySpark makes no error of its own.
                failure = explain(error, self._job.target.name)
                restarts += 1
                if not isinstance(failure, WorkerLate) or restarts > RESTARTS_MAX:
                    raise FileUnwritten(
                        f"the task with {files[0].path} failed: {failure.message}",
                        action=failure.action or "start again: finished files are not written twice",
                        retriable=True,
                    ) from error
                time.sleep(RESTART_PAUSE_S)
            except (Py4JError, ConnectionError) as error:
                raise spark_ended() from error

    def finish(self, task: Future[list[dict[str, object]]]) -> None:
        """Record what a task has written. Raises the error with which it ended."""
        by_number = {each.number: each for each in self._plan.files}
        error: dict[str, object] | None = None
        finished: list[tuple[str, Known]] = []
        files, rows, points = self.done.files, self.done.rows, self.done.points
        for found in task.result():
            if "type" in found:
                error = found
                continue
            file = by_number[_whole(found["number"])]
            finished.append((file.path, Known(file.state, file.batch, str(found["digest"]))))
            files, rows, points = files + 1, rows + _whole(found["rows"]), points + _whole(found["points"])
            self._finished[file.number] = True
        with self._noting:
            self._state.note(finished)
        self.done = Backfilled(files, rows, points, self.done.skipped)
        if error is not None:
            raise _error_of(error)

    def _run_task(self, files: tuple[PlannedFile, ...]) -> list[dict[str, object]]:
        job, progress = self._job, self._progress

        def backfill(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
            from headrace.pipeline.backfill_task import refusal, write_files

            for _ in batches:
                pass
            try:
                for written in write_files(job, files, progress):
                    yield pa.RecordBatch.from_pydict({"found": [json.dumps(asdict(written))]})
            except HeadraceError as error:
                yield pa.RecordBatch.from_pydict({"found": [json.dumps(refusal(error))]})

        rows = self._session.range(0, 1, 1, 1).mapInArrow(backfill, FOUND).collect()
        return [json.loads(row[0]) for row in rows]


def _error_of(found: dict[str, object]) -> HeadraceError:
    message, action, retriable = str(found["message"]), str(found["action"]), bool(found["retriable"])
    for kind in (FileRefused, FileChanged):
        if found["type"] == kind.__name__:
            return kind(message, action=action)
    action = action or "start again: finished files are not written twice"
    return FileUnwritten(message, action=action, retriable=retriable)


def _whole(value: object) -> int:
    assert isinstance(value, int), value
    return value
