"""Headrace for Spark: `format("headrace")`, with filters evaluated by the nodes, and sealed files as tables.

Spark finds the format by itself where this package is installed as a wheel. `register` is for sessions elsewhere, also
those of a source tree, and switches on what Spark leaves off.
"""

from __future__ import annotations

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from headrace.pipeline.data_source import HeadraceDataSource

FILTER_SETTING = "spark.sql.python.filterPushdown.enabled"
"""Off by default in Spark. It counts for every data source in Python of the session."""


def register(spark: SparkSession) -> None:
    """Make `format("headrace")` known to a session, and let nodes evaluate filters on `time` and tags."""
    spark.conf.set(FILTER_SETTING, "true")
    try:
        spark.dataSource.register(HeadraceDataSource)
    except AnalysisException as error:
        # Found by itself already, which Spark does not let anybody replace.
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":
            raise
