"""Headrace for Spark: `format("headrace")`, and sealed files as tables.

Spark finds the format by itself where this package is installed as a wheel. `register` is for sessions elsewhere, also
those of a source tree, and switches on what Spark leaves off.
"""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, SparkSession

from headrace.pipeline.data_source import HeadraceDataSource
from headrace.schemas.errors import HeadraceError

FILTER_SETTING = "spark.sql.python.filterPushdown.enabled"
"""Off by default in Spark. It counts for every data source in Python of the session."""
BYTES_SETTING, BYTES_UNLIMITED = "spark.sql.execution.arrow.maxBytesPerBatch", str(2**31 - 1)
"""The most bytes of a batch that Spark hands to Python, and the value with which it does not add them up."""
ROWS_SETTING, ROWS_MOST = "spark.sql.execution.arrow.maxRecordsPerBatch", 20_000
"""The most rows of such a batch. A column of it holds 2 GiB, which are so many rows of 100 KB."""


class BatchesUnlimited(HeadraceError):
    """Spark is to limit the batches that it hands to Python neither by bytes nor by few enough rows."""


def register(spark: SparkSession, *, small_rows: bool = False) -> None:
    """Make `format("headrace")` known to a session, and let sources push filters, see the option `pushFilters`.

    `small_rows`: no row that the session hands to Python has more than 100 KB. Then the sink takes less time:
    after each row Spark asks every column how many bytes its batch has by then. Raises BatchesUnlimited.
    """
    if small_rows:
        rows = int(spark.conf.get(ROWS_SETTING) or 0)
        if not 0 < rows <= ROWS_MOST:
            raise BatchesUnlimited(
                f"with {ROWS_SETTING} = {rows} batches of small rows may be too large",
                action=f"set it to 1 to {ROWS_MOST}, or leave small_rows out",
            )
        spark.conf.set(BYTES_SETTING, BYTES_UNLIMITED)
    spark.conf.set(FILTER_SETTING, "true")
    try:
        spark.dataSource.register(HeadraceDataSource)
    except AnalysisException as error:
        # Found by itself already, which Spark does not let anybody replace.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise


def read_segments(spark: SparkSession, path: str, table: str) -> DataFrame:
    """The sealed rows of `database.table`, read from segment files by Spark's own Parquet reader.

    `path` is a node's data directory, or a directory that has those of several nodes; driver and executors must have
    it under the same name. Each (series, time) is there once, with its newest row. Not seen are rows that no seal has
    written to a file yet (the live tail), and deletes whose files were not rewritten yet, which takes the leader some
    seconds after a seal. Raises SegmentsMissing, SegmentUnreadable, OptionInvalid.
    """
    from headrace.pipeline.segment_reader import read_segments as read

    return read(spark, path, table)
