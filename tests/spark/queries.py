"""Runs queries that Spark supervises by itself."""

from __future__ import annotations

from pyspark.errors import PySparkException
from pyspark.sql.streaming.readwriter import DataStreamWriter

QUERY_WAIT_S = 120
STARTS_MAX = 8
WORKER_LATE = "Python worker failed to connect back"


def run_to_end(writer: DataStreamWriter) -> None:
    """Run a query with `availableNow`. Raises what ended it.

    The process that plans has a fixed 10 s to start, and a machine that runs tests is busy: docs/operating/spark.md
    tells users to start the query again.
    """
    for starts_left in reversed(range(STARTS_MAX)):
        query = writer.trigger(availableNow=True).start()
        try:
            assert query.awaitTermination(QUERY_WAIT_S), query.lastProgress
            return
        except PySparkException as error:
            if WORKER_LATE not in str(error) or not starts_left:
                raise
        finally:
            query.stop()
