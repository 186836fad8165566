"""`format("headrace_raw")` under Spark: its progress, its limits, and a query that is not ours."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from headrace.pipeline.ingest import RunOptions, prepare, raw_records, start_query
from headrace.pipeline.ingest_run import has_nothing_left
from headrace.pipeline.job import IngestJob
from headrace.pipeline.raw_options import options_of
from headrace.pipeline.raw_source import NAME, RawSource
from tests.spark.conftest import IngestCluster, add_partitions
from tests.spark.queries import STARTS_MAX, WORKER_LATE, run_to_end
from tests.spark.stored import stored_tables
from tests.waiting import eventually

LINES = [f"t,host=h{number % 5} x={number},y=1i {number + 1}".encode() for number in range(40)]


def started(spark: SparkSession, job: IngestJob, run: RunOptions) -> StreamingQuery:
    """A query that has finished its first batch.

    Before that, Spark gives each of its Python processes 10 s to start, and a machine that runs tests is busy.
    """
    for starts_left in reversed(range(STARTS_MAX)):
        query = start_query(spark, job, run)
        eventually(lambda query=query: query.exception() is not None or query.lastProgress, "the first batch", 150)
        if WORKER_LATE not in str(query.exception()) or not starts_left:
            break
    return query


def wait_for_the_end(query: StreamingQuery) -> None:
    """Return once the query has nothing left to read."""
    eventually(lambda: query.exception() is not None or has_nothing_left(query), "the end of the topic", 150)
    assert query.exception() is None, query.exception()


def reports_to_the_end(*queries: StreamingQuery) -> list[dict[str, Any]]:
    """Stop queries, the last of which has read everything; the reports of their micro-batches."""
    wait_for_the_end(queries[-1])
    reports = [json.loads(report.json) for query in queries for report in query.recentProgress]
    for query in queries:
        query.stop()
    # Spark reports every 10 s also that it had nothing to do.
    return [report for report in reports if "addBatch" in report["durationMs"]]


def read_or_late(query: StreamingQuery, is_read: Callable[[], bool]) -> bool:
    """Whether something was read; not if one of Spark's Python processes did not start in time."""
    eventually(lambda: query.exception() is not None or is_read(), "the added partition", 150)
    assert query.exception() is None or WORKER_LATE in str(query.exception()), query.exception()
    return query.exception() is None


@pytest.mark.slow(10)
def test_every_report_has_the_rows_and_counts_of_its_batch(spark: SparkSession, cluster: IngestCluster) -> None:
    """Of good, bad and blank messages alike, in batches of the given size; a partition that was added is read
    from its first message.
    """
    cluster.create_raw(partitions=2)
    job, run = cluster.job(), RunOptions(str(cluster.directory / "checkpoint"), False, 10, 0.1)
    prepare(job, run, lambda _line: None)
    cluster.produce([*LINES, b"bad", b""], partitions=2)
    query = started(spark, job, run)
    wait_for_the_end(query)
    add_partitions(cluster.bootstrap, cluster.raw, 3)
    cluster.produce([b"", b"", b"t,host=new x=1 99"], partitions=3)
    queries = [query]
    # The partition needs a process of Spark more.
    while not read_or_late(queries[-1], lambda: len(stored_tables(cluster.log, cluster.topics)["t"]) == 41):
        assert len(queries) < STARTS_MAX
        queries.append(start_query(spark, job, run))
    reports = reports_to_the_end(*queries)
    observed = [report["observedMetrics"]["headrace"] for report in reports]
    assert all(report["numInputRows"] > 0 for report in reports)
    assert all({"messages", "rows", "points", "rejected"} == set(each) for each in observed)
    assert max(each["messages"] for each in observed) <= 10
    names = ("messages", "rows", "points", "rejected")
    assert [45, 41, 81, 1] == [sum(each[name] for each in observed) for name in names]


def test_sparks_kafka_sink_takes_the_records_as_they_are(spark: SparkSession, cluster: IngestCluster) -> None:
    """Somebody's own query: source and sink, with Spark's own trigger."""
    cluster.create_raw(partitions=1)
    job, checkpoint = cluster.job(), str(cluster.directory / "own")
    prepare(job, RunOptions(checkpoint), lambda _line: None)
    cluster.produce(LINES)
    writer = raw_records(spark, job, None).writeStream.format("kafka").option("checkpointLocation", checkpoint)
    run_to_end(writer.option("kafka.bootstrap.servers", cluster.bootstrap))
    assert 40 == len(stored_tables(cluster.log, cluster.topics)["t"])


def test_a_wrong_option_fails_the_load(spark: SparkSession, cluster: IngestCluster) -> None:
    """Before a query is started, with what would be right."""
    spark.dataSource.register(RawSource)
    options = {**options_of(cluster.job()), "tabel": "t"}
    with pytest.raises(AnalysisException, match="did you mean table"):
        spark.readStream.format(NAME).options(**options).load()
