"""Spark looks for modules named `pyspark_*` and takes their `DefaultSource`: so it finds `format("headrace")`."""

from headrace.pipeline.data_source import HeadraceDataSource as DefaultSource

__all__ = ["DefaultSource"]
