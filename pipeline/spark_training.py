"""Makes the class-data archive of Spark's JVM, from the classes that one small query loads."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa

from connectors.kafka.jars import Progress, resolve_jars
from connectors.kafka.java import find_java
from pipeline.session import close_session, open_session
from pipeline.spark_archive import archive_path


def make_archive(progress: Progress | None = None) -> Path:
    """Run a small query once and keep the classes that it loaded. Does nothing when that was done before. Raises what a start raises.

    Takes the process's Spark session for itself: there must be none yet.
    """
    jars = resolve_jars(progress=progress)
    archive = archive_path(jars, find_java())
    if archive.exists():
        return archive
    if progress is not None:
        progress("starting Spark once, so that every later start is faster")
    archive.parent.mkdir(exist_ok=True)
    partial = archive.with_suffix(f".{os.getpid()}.partial")
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-archive.") as temporary:
            _train(partial, Path(temporary))
        if partial.exists():
            partial.replace(archive)
    finally:
        partial.unlink(missing_ok=True)
    return archive


def _train(partial: Path, directory: Path) -> None:
    options = f"-XX:ArchiveClassesAtExit={partial} -XX:+UseParallelGC -Xlog:disable -Xlog:all=error:stderr"
    session = open_session(
        "headrace archive",
        log_file=directory / "spark.log",
        settings={"spark.driver.extraJavaOptions": options},
    )
    try:
        rows = session.readStream.format("rate-micro-batch").option("rowsPerBatch", 100).load()
        passed = rows.mapInArrow(_unchanged(), rows.schema)  # type: ignore[arg-type]
        writer = passed.writeStream.format("noop").option("checkpointLocation", str(directory / "checkpoint"))
        writer.trigger(once=True).start().awaitTermination()
    finally:
        close_session(session, timeout_s=300.0)


def _unchanged() -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    return lambda batches: batches
