"""What the legs of `headrace bench spark` share: the session, and how a query is measured."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.streaming.query import StreamingQuery
from pyspark.sql.streaming.readwriter import DataStreamWriter

from headrace.pipeline.failures import WorkerLate, explain
from headrace.pipeline.ingest_run import has_nothing_left
from headrace.schemas.errors import HeadraceError

STARTS_MAX = 20
LOOK_S = 0.02


class BenchInvalid(HeadraceError):
    """A leg did not read or write what it should have."""


@dataclass(frozen=True, slots=True)
class Leg:
    """One measured query: its rows, wall seconds, and CPU seconds of every process that worked."""

    rows: int
    seconds: float
    cpu_seconds: float


Measure = Callable[[], Leg]


@dataclass(frozen=True)
class SparkBench:
    """The session of all legs, Kafka's address and the directory of the run."""

    session: SparkSession
    bootstrap: str
    directory: Path

    def new_checkpoint(self) -> str:
        """A checkpoint that does not exist yet."""
        return str(self.directory / "checkpoints" / uuid.uuid4().hex)

    def noop(self, frame: DataFrame) -> DataStreamWriter:
        """A streaming query that drops its rows."""
        return frame.writeStream.format("noop").option("checkpointLocation", self.new_checkpoint())


def cpu_seconds() -> float:
    """CPU seconds so far of this process and all below it: Spark's JVM and its Python workers, broker and nodes.

    Those that have ended count too, once their parent has waited for them.
    """
    used = 0.0
    own = psutil.Process()
    for process in (own, *own.children(recursive=True)):
        try:
            times = process.cpu_times()
        except psutil.Error:
            # A Python worker that ended since the list was made.
            continue
        used += times.user + times.system + times.children_user + times.children_system
    return used


def measured_stream(writer: Callable[[], DataStreamWriter], *, until_idle: bool = False) -> tuple[Leg, list[Any]]:
    """(the leg, the reports of its micro-batches) of a query to the end of its input.

    Planning and checkpoint count, starting the query does not. The rows are those that Spark counted as input.
    `until_idle`: the query runs until it finds nothing more, for a source whose limit would end `availableNow`.
    """
    for starts_left in reversed(range(STARTS_MAX)):
        before_s = cpu_seconds()
        trigger = {"processingTime": "0 seconds"} if until_idle else {"availableNow": True}
        query = writer().trigger(**trigger).start()
        try:
            _wait(query, until_idle=until_idle)
        except PySparkException as error:
            # Here, as long as Java is there to explain it.
            failure = explain(error, "the bench")
            # Spark gives the process that plans a fixed 10 s to start, whatever else the machine does.
            if not isinstance(failure, WorkerLate) or not starts_left:
                raise BenchInvalid(failure.message, action=failure.action) from None
            time.sleep(1.0)
            continue
        finally:
            query.stop()
        used_s = cpu_seconds() - before_s
        reports = [each for report in query.recentProgress if _moved(each := json.loads(report.json))]
        seconds = sum(each["durationMs"]["triggerExecution"] for each in reports) / 1_000
        return Leg(sum(each["numInputRows"] for each in reports), seconds, used_s), reports
    raise AssertionError("the last start raises")


def _wait(query: StreamingQuery, *, until_idle: bool) -> None:
    if not until_idle:
        query.awaitTermination()
        return
    while query.isActive and not (query.lastProgress and has_nothing_left(query)):
        time.sleep(LOOK_S)
    if (failure := query.exception()) is not None:
        raise failure


def _moved(report: Mapping[str, Any]) -> bool:
    """Whether a report is of a micro-batch with data."""
    # By offsets: also a batch of rows that were all dropped takes its time.
    [source] = report["sources"]
    return bool(source["startOffset"] != source["endOffset"])


def measured_batch(read: Callable[[], DataFrame]) -> Leg:
    """A batch query to the noop sink, with its planning."""
    before_s, begun_s = cpu_seconds(), time.perf_counter()
    counted = Observation()
    frame = read().observe(counted, F.count(F.lit(1)).alias("rows"))
    try:
        frame.write.format("noop").mode("overwrite").save()
    except PySparkException as error:
        failure = explain(error, "the bench")
        raise BenchInvalid(failure.message, action=failure.action) from None
    seconds = time.perf_counter() - begun_s
    return Leg(int(counted.get["rows"]), seconds, cpu_seconds() - before_s)


def checked(leg: Leg, rows: int, name: str) -> Leg:
    """The leg, if it has so many rows. Raises BenchInvalid."""
    if leg.rows != rows:
        raise BenchInvalid(f"{name}: {leg.rows} rows instead of {rows}")
    return leg


def with_rows(leg: Leg, rows: int) -> Leg:
    """The leg with rows that were counted elsewhere."""
    return Leg(rows, leg.seconds, leg.cpu_seconds)


def in_turn(
    legs: Mapping[str, Measure], rounds: int, note: Callable[[str], None]
) -> tuple[dict[str, Sequence[Leg]], dict[str, str]]:
    """(what each leg took; why others failed): all one after the other, `rounds` times after a round that warms up.

    A leg that fails is left out from then on. An interrupt ends the rounds, and what was measured counts: each leg has
    its rounds from the first on. Raises KeyboardInterrupt if there is nothing.
    """
    # The first round is not measured: in it Java compiles hot code, Spark its plans and Numba its kernels.
    taken: dict[str, list[Leg]] = {}
    failed: dict[str, str] = {}
    try:
        for number in range(rounds + 1):
            title = f"round {number} of {rounds}" if number else "warming up"
            # In alternating order: none always runs on the caches that the same other one left.
            for place, (name, leg) in enumerate(list(legs.items())[:: 1 if number % 2 else -1], 1):
                if name in failed:
                    continue
                note(f"{title}, leg {place} of {len(legs)}: {name}")
                try:
                    result = leg()
                except HeadraceError as error:
                    failed[name] = error.message
                    note(f"{name} failed: {error.message}")
                    continue
                if number:
                    taken.setdefault(name, []).append(result)
    except KeyboardInterrupt:
        if not taken:
            raise
        note("interrupted: what was measured counts")
    return {name: each for name, each in taken.items() if name not in failed}, failed
