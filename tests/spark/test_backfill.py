"""`headrace backfill` in a real Spark: content, repeats, a killed run, and files that cannot be written."""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import time
from pathlib import Path

import polars as pl
import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from headrace.connectors.formats.interface import FormatOptions
from headrace.pipeline.backfill import Backfilled, prepare, run_backfill
from headrace.pipeline.backfill_plan import (
    BackfillFormat,
    BackfillJob,
    FileChanged,
    FileRefused,
    find_files,
    plan_files,
)
from headrace.pipeline.source_options import Target
from tests.spark.conftest import IngestCluster
from tests.spark.stored import forward_logs, stored_tables, tables_of

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 240
START = datetime.datetime(2026, 1, 1)

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.slow(60),
    # PySpark leaves a socket of `collect` to the garbage collector.
    pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning"),
]


def rows(first: int, count: int) -> pl.DataFrame:
    """Rows of three sites, 10 s apart; each number is one row."""
    numbers = pl.Series("n", range(first, first + count), dtype=pl.Int64)
    return pl.DataFrame(
        {
            "site": (numbers % 3).cast(pl.String),
            "time": START + numbers * datetime.timedelta(seconds=10),
            "n": numbers,
            "x": numbers * 0.5,
        }
    )


def job_of(cluster: IngestCluster, form: BackfillFormat = "parquet", table: str = "t") -> BackfillJob:
    """A job on a table of db, with tag site."""
    target = Target("db", table, cluster.topics.cluster, cluster.bootstrap)
    return BackfillJob(target, form, FormatOptions(table=table, tags=("site",)))


def run(
    spark: SparkSession, cluster: IngestCluster, job: BackfillJob, pattern: str, state: str = "state"
) -> Backfilled:
    """One run of a backfill, as the command does it."""
    prepared = prepare(job, 10, lambda _line: None)
    job, opened = prepared.begin(job, cluster.directory / state)
    with opened as known:
        plan = plan_files(job, find_files([pattern]), known, prepared.tags)
        return run_backfill(spark, job, plan, known)


def numbers(cluster: IngestCluster, table: str = "t") -> tuple[int, object, object]:
    """Rows, sum of n and sum of x of a table, each row once."""
    stored: pa.Table = stored_tables(cluster.log, cluster.topics)[table]
    frame = pl.DataFrame(pl.from_arrow(stored.select(["n", "x"])))
    return frame.height, frame["n"].sum(), frame["x"].sum()


def wanted(count: int) -> tuple[int, int, float]:
    """The same of the rows 0 to `count`."""
    total = count * (count - 1) // 2
    return count, total, total * 0.5


def test_files_are_written_once(spark: SparkSession, cluster: IngestCluster, tmp_path: Path) -> None:
    """Parquet and CSV give their rows and no other. The next run finds nothing to write; without the progress
    of the first it writes everything, and replicas drop every message as a repeat.
    """
    data = tmp_path / "data"
    data.mkdir()
    for number in range(3):
        rows(number * 100, 100).write_parquet(data / f"{number}.parquet")
    rows(300, 100).write_csv(data / "3.csv")
    assert Backfilled(3, 300, 600) == run(spark, cluster, job_of(cluster), f"{data}/*.parquet")
    assert Backfilled(1, 100, 200) == run(spark, cluster, job_of(cluster, "csv"), f"{data}/*.csv")
    assert wanted(400) == numbers(cluster)
    assert Backfilled(skipped=3) == run(spark, cluster, job_of(cluster), f"{data}/*.parquet")
    before = sum(map(len, forward_logs(cluster.log, cluster.topics).values()))
    assert Backfilled(3, 300, 600) == run(spark, cluster, job_of(cluster), f"{data}/*.parquet", "lost")
    logs = forward_logs(cluster.log, cluster.topics)
    repeats = sum(tables_of(logs.values())[1].values())
    assert 0 < repeats == sum(map(len, logs.values())) - before
    assert wanted(400) == numbers(cluster)


def test_folders_that_spark_wrote_give_their_tags(spark: SparkSession, cluster: IngestCluster, tmp_path: Path) -> None:
    """Sites, and none, have the same rows but for the name of their folder: none replaces another, or is a repeat."""
    data, table = tmp_path / "data", "parted"
    of_one = rows(0, 100).select("time", "n", "x")
    both = [of_one.with_columns(site=pl.lit(site)) for site in (None, "north", "a=b/ß")]
    pl.concat(each.cast({"site": pl.String}) for each in both).write_parquet(tmp_path / "rows.parquet")
    read = spark.read.parquet(str(tmp_path / "rows.parquet"))
    read.coalesce(1).write.partitionBy("site").parquet(str(data))
    done = run(spark, cluster, job_of(cluster, table=table), f"{data}/**/*.parquet")
    assert (300, 600) == (done.rows, done.points)
    stored = stored_tables(cluster.log, cluster.topics)[table]
    frame = pl.DataFrame(pl.from_arrow(stored.select(["site", "n"]))).with_columns(pl.col("site").cast(pl.String))
    sums = dict(frame.group_by("site").agg(pl.col("n").sum()).rows())
    assert dict.fromkeys((None, "north", "a=b/ß"), of_one["n"].sum()) == sums
    assert 300 == frame.height


def test_a_bad_file_is_named_and_the_others_stay(spark: SparkSession, cluster: IngestCluster, tmp_path: Path) -> None:
    """What only a worker can see ends the run with the file and the line; the next run writes what is left."""
    data = tmp_path / "data"
    data.mkdir()
    rows(0, 50).write_csv(data / "0.csv")
    good = data / "1.csv"
    good.write_text("site,time,n,x\n0,2026-01-01T01:00:00Z,50,1.0\n0,yesterday,51,1.0\n")
    with pytest.raises(FileRefused, match=r"1\.csv: line 3: "):
        run(spark, cluster, job_of(cluster, "csv"), f"{data}/*.csv")
    rows(50, 10).write_csv(good)
    with pytest.raises(FileChanged, match=r"1\.csv changed"):
        run(spark, cluster, job_of(cluster, "csv"), f"{data}/*.csv")
    good.unlink()
    rows(50, 10).write_csv(data / "2.csv")
    assert Backfilled(1, 10, 20, 1) == run(spark, cluster, job_of(cluster, "csv"), f"{data}/*.csv")
    clash = tmp_path / "clash.csv"
    clash.write_text("site,time,n\n0,2026-01-01T00:00:00Z,many\n")
    with pytest.raises(FileRefused, match=r"clash\.csv: line 2: .*'n'"):
        run(spark, cluster, job_of(cluster, "csv"), str(clash))


def test_a_killed_run_is_completed_by_the_next(spark: SparkSession, cluster: IngestCluster, tmp_path: Path) -> None:
    """The command is killed with kill -9 while it writes. The next run ends with exactly the rows of the files."""
    data = tmp_path / "data"
    data.mkdir()
    for number in range(12):
        rows(number * 20_000, 20_000).write_parquet(data / f"{number:02}.parquet", row_group_size=2_000)
    state = cluster.directory / "state"
    line = [sys.executable, "-m", "headrace", "backfill", f"{data}/*.parquet", "--database", "db", "--table", "t"]
    line += ["--tags", "site", "--format", "parquet", "--cluster", cluster.topics.cluster]
    line += ["--bootstrap", cluster.bootstrap, "--checkpoint", str(state), "--ordered"]
    with subprocess.Popen(line, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + WAIT_S
        while not sum(map(len, forward_logs(cluster.log, cluster.topics).values())):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "nothing was forwarded"
            time.sleep(0.1)
        process.kill()
    assert numbers(cluster)[0] > 0
    done = run(spark, cluster, job_of(cluster), f"{data}/*.parquet")
    assert 12 == done.files + done.skipped
    assert wanted(240_000) == numbers(cluster)
    entries = [json.loads(each) for each in (state / "files.jsonl").read_text().splitlines()]
    assert 12 == len({each["file"] for each in entries if each["digest"]})
