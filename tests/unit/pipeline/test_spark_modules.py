"""How Spark finds the data source by itself."""

from __future__ import annotations

import zipfile
from pathlib import Path
from pkgutil import iter_modules

from pyspark.sql.datasource import DataSource

import pyspark_headrace
from headrace.pipeline.package import build_package, package_folder


def test_the_module_has_the_name_and_the_class_that_spark_looks_for() -> None:
    """Spark imports modules named `pyspark_*` and takes `DefaultSource`, under the name that the class gives."""
    found = {each.name for each in iter_modules([str(package_folder())])}
    assert "pyspark_headrace" in found
    assert issubclass(pyspark_headrace.DefaultSource, DataSource)
    assert "headrace" == pyspark_headrace.DefaultSource.name()


def test_the_archive_for_workers_has_the_module(tmp_path: Path) -> None:
    """The zip of `--py-files` is complete. Spark does not search it: such sessions call `register`."""
    archive = build_package(tmp_path)
    assert "pyspark_headrace.py" in zipfile.ZipFile(archive).namelist()
    assert "pyspark_headrace" in {each.name for each in iter_modules([str(archive)])}
