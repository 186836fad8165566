"""Thin scripts for `spark-submit`."""
