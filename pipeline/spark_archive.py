"""Class-data archive of Spark's JVM: more than half of the processor time of its start is spent on loading classes, and can be spent once.

The archive is an accelerator, never needed: the JVM ignores one that is missing or made by another Java or other jars.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
from pyspark.find_spark_home import _find_spark_home

from connectors.kafka.jars import JarSet, Progress, resolve_jars
from connectors.kafka.java import find_java


def archive_path(jars: JarSet, java: Path) -> Path:
    """Where the archive of this Spark under this Java is, or would be: beside the Spark that it is of, with which it goes."""
    program = java.resolve()
    spark = _find_spark_home()  # type: ignore[no-untyped-call]
    identity = f"{program} {program.stat().st_size} {program.stat().st_mtime_ns} {spark} {jars.directory.name}"
    return Path(sys.prefix) / "spark-archive" / f"{hashlib.sha256(identity.encode()).hexdigest()[:12]}.jsa"


def archive_options(jars: JarSet, java: Path) -> str:
    """JVM flags that use the archive when there is one; what the JVM thinks of it is of no interest to anyone."""
    archive = archive_path(jars, java)
    return f" -XX:SharedArchiveFile={archive} -Xlog:disable -Xlog:all=error:stderr" if archive.exists() else ""


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
    from pipeline.session import close_session, open_session

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
