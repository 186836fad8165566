"""`format("headrace")` in a real Spark, on a cluster of one node: written, read, filtered and followed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import headrace.spark
from headrace.connectors.kafka.broker import BrokerInfo
from headrace.spark import BYTES_SETTING, BYTES_UNLIMITED, ROWS_MOST, ROWS_SETTING, BatchesUnlimited
from tests.e2e.actions import running_cluster
from tests.present import present
from tests.spark.queries import run_to_end

pytestmark = [
    # Each query starts processes of Spark, each for seconds on a busy machine.
    pytest.mark.timeout(900),
    pytest.mark.slow(90),
    # PySpark leaves a socket of `collect` to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]
ROWS = 2_000
DAY_US = 86_400_000_000
START_US = 1_767_225_600_000_000


@pytest.fixture(scope="module")
def options(
    broker: BrokerInfo, tmp_path_factory: pytest.TempPathFactory, spark: SparkSession
) -> Iterator[dict[str, str]]:
    """A cluster of one node whose table `db.t` has ROWS rows of ten hosts over two days, written by the sink."""
    name = "sparksources"
    headrace.spark.register(spark)
    headrace.spark.register(spark)
    with running_cluster(tmp_path_factory.mktemp("sources"), broker.bootstrap, name, 1):
        given = {"bootstrap": broker.bootstrap, "cluster": name, "table": "db.t"}
        save(rows(spark, 0, ROWS), given)
        yield given


def test_small_rows_are_not_added_up(spark: SparkSession) -> None:
    """`register` leaves Spark's limit of bytes as it is, and takes it away where no row is large."""
    limit, rows_limit = spark.conf.get(BYTES_SETTING), spark.conf.get(ROWS_SETTING)
    assert limit is not None
    assert limit != BYTES_UNLIMITED
    assert rows_limit is not None
    try:
        for many in ("0", str(ROWS_MOST + 1)):
            spark.conf.set(ROWS_SETTING, many)
            with pytest.raises(BatchesUnlimited, match=f"maxRecordsPerBatch = {many} "):
                headrace.spark.register(spark, small_rows=True)
        assert limit == spark.conf.get(BYTES_SETTING)
        spark.conf.set(ROWS_SETTING, rows_limit)
        headrace.spark.register(spark)
        assert limit == spark.conf.get(BYTES_SETTING)
        headrace.spark.register(spark, small_rows=True)
        assert BYTES_UNLIMITED == spark.conf.get(BYTES_SETTING)
    finally:
        spark.conf.set(BYTES_SETTING, limit)
        spark.conf.set(ROWS_SETTING, rows_limit)


def rows(spark: SparkSession, start: int, count: int) -> DataFrame:
    """Rows with every type of field; each number is one row."""
    return spark.range(start, start + count, 1, 2).selectExpr(
        "concat('h', id % 10) AS host",
        f"timestamp_micros({START_US} + id * {2 * DAY_US // ROWS}) AS time",
        "id AS n",
        "id * 0.5D AS x",
        "id % 2 = 0 AS even",
        "concat('s', id) AS s",
    )


def save(frame: DataFrame, options: dict[str, str], **more: str) -> None:
    """Append rows through the sink."""
    frame.write.format("headrace").options(**options, tags="host", **more).mode("append").save()


def save_untagged(frame: DataFrame, options: dict[str, str]) -> None:
    """Append rows of one series through the sink."""
    frame.write.format("headrace").options(**options).mode("append").save()


def same_times(spark: SparkSession) -> DataFrame:
    """Rows that share their time with others, in each of two tasks."""
    return rows(spark, 0, 10).selectExpr(f"timestamp_micros({START_US} + n % 2) AS time", "n")


def load(spark: SparkSession, options: dict[str, str], **more: str) -> DataFrame:
    """The table as a batch source."""
    return spark.read.format("headrace").options(**{**options, **more}).load()


def test_what_was_written_is_read(spark: SparkSession, options: dict[str, str]) -> None:
    """Every row once, with its types, before anything was sealed; written again it stays the same."""
    save(rows(spark, 0, 500), options)
    read = load(spark, options)
    assert (
        "struct<host:string,time:timestamp_ntz,even:boolean,n:bigint,s:string,x:double>" == read.schema.simpleString()
    )
    found = {row["n"]: row for row in read.collect()}
    wanted = {row["n"]: row for row in rows(spark, 0, ROWS).collect()}
    assert wanted.keys() == found.keys()
    assert all(found[n][name] == wanted[n][name] for n in wanted for name in ("host", "even", "s", "x"))
    assert ROWS == read.count() == read.select("time").distinct().count()


def test_nodes_evaluate_filters(
    spark: SparkSession, options: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """Bounds on time and values of tags leave the plan where that is asked for; filters on fields stay in it."""
    read = load(spark, options, columns="n,host,time", pushFilters="true")
    kept = read.where("time >= timestamp_ntz'2026-01-02' AND host IN ('h1', 'h2') AND n % 2 = 1 AND n < 1500")
    assert [n for n in range(1_000, 1_500) if n % 10 == 1] == sorted(row["n"] for row in kept.collect())
    kept.explain()
    plan = capsys.readouterr().out
    assert "1500" in plan
    assert "h1" not in plan
    by_option = load(spark, options, start="2026-01-02", time="long")
    assert ROWS // 2 == by_option.count()
    assert START_US * 1_000 + DAY_US * 1_000 == present(by_option.agg({"time": "min"}).first())[0]


def test_a_table_that_is_read_again_has_all_its_rows(spark: SparkSession, options: dict[str, str]) -> None:
    """Spark keeps the filters that a source has taken, and plans the next query over the same DataFrame with them."""
    read = load(spark, options, columns="n,host,time")
    of_h1 = read.where("host = 'h1'")
    counts = (read.count(), of_h1.count(), read.count(), of_h1.union(read).count(), read.exceptAll(of_h1).count())
    share = counts[1]
    assert 0 < share < ROWS
    assert (ROWS, share, ROWS, ROWS + share, ROWS - share) == counts
    hosts = of_h1.union(read.where("host = 'h2'")).groupBy("host").count().collect()
    assert {"h1": share, "h2": share} == {row["host"]: row["count"] for row in hosts}


def test_a_stream_follows_the_table(spark: SparkSession, options: dict[str, str], tmp_path: Path) -> None:
    """`availableNow` ends with every row; a restart gives later rows only, with where they are in the logs."""
    stream = spark.readStream.format("headrace").options(**{**options, "table": "db.followed"}, metadata="true")
    own = {**options, "table": "db.followed"}
    save(rows(spark, 0, 20), own)

    def run() -> int:
        started = stream.load().writeStream.format("parquet").option("path", str(tmp_path / "out"))
        run_to_end(started.option("checkpointLocation", str(tmp_path / "checkpoint")))
        return spark.read.parquet(str(tmp_path / "out")).select("n", "_group", "_offset").distinct().count()

    assert 20 == run()
    save(rows(spark, 20, 5), own)
    assert 25 == run()
    assert 25 == run()


def test_a_stream_is_written_by_the_sink(spark: SparkSession, options: dict[str, str], tmp_path: Path) -> None:
    """From one table into another: the copy has the same rows, also when its last batch runs again.

    The checkpoint is of that table alone.
    """
    own = {**options, "table": "db.copy"}
    source = spark.readStream.format("headrace").options(**options).load()
    sink = source.writeStream.format("headrace").options(**own, tags="host")
    checkpoint = tmp_path / "checkpoint"
    for _ in range(2):
        run_to_end(sink.option("checkpointLocation", str(checkpoint)))
        newest = max((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
        newest.unlink()
        (checkpoint / "commits" / f".{newest.name}.crc").unlink(missing_ok=True)
    figures = ("count(*)", "count(DISTINCT n)", "sum(n)", "sum(x)", "count(DISTINCT host, s)", "count_if(even)")
    written, copied = (present(load(spark, each).selectExpr(*figures).first()) for each in (options, own))
    assert written == copied
    assert ROWS == copied[0]
    # Rows that it has passed would be in neither table.
    other = source.writeStream.format("headrace").options(**{**own, "table": "db.other"}, tags="host")
    with pytest.raises(Exception, match=r"that of table db\.copy of cluster"):
        run_to_end(other.option("checkpointLocation", str(checkpoint)))


@pytest.mark.parametrize(
    ("action", "named"),
    [
        (lambda spark, given: load(spark, given, colums="n"), "did you mean columns"),
        (lambda spark, given: load(spark, given, table="db.tt"), "did you mean db.t"),
        (
            lambda spark, given: rows(spark, 0, 1).write.format("headrace").options(**given).mode("overwrite").save(),
            "overwrites no",
        ),
        (lambda spark, given: save(rows(spark, 0, 1).drop("time"), given), "no column 'time'"),
        (lambda spark, given: save(rows(spark, 0, 1), given, quorum="2"), "quorum 2 is more than"),
        (lambda spark, given: save_untagged(same_times(spark), {**given, "table": "db.untagged"}), "name the tags"),
    ],
)
def test_bad_input_is_named(
    spark: SparkSession, options: dict[str, str], action: Callable[[SparkSession, dict[str, str]], Any], named: str
) -> None:
    """The last line of Spark's error is ours, and says what to do."""
    with pytest.raises(PySparkException) as raised:
        action(spark, options)
    assert named in "".join(re.findall(r"headrace\.[\w.]+: .*", str(raised.value)))


def test_speculation_is_refused(spark: SparkSession, options: dict[str, str]) -> None:
    """Two attempts of one task would write at the same time."""
    spark.sparkContext.setLocalProperty("spark.speculation", "true")
    try:
        with pytest.raises(PySparkException, match="speculation is on"):
            save(rows(spark, 0, 1), options)
    finally:
        spark.sparkContext.setLocalProperty("spark.speculation", "false")
