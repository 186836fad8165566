"""The home that a session's JVM is started from."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pyspark
import pytest

from headrace.pipeline.spark_home import HOME_VARIABLE, launched_from, spark_home


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An environment without a home yet."""
    monkeypatch.delenv(HOME_VARIABLE, raising=False)
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    return tmp_path


def test_it_is_spark_without_its_archives_of_python_sources(prefix: Path) -> None:
    """It has the jars and programs of the installed Spark, and is made once."""
    home = spark_home()
    assert home.is_relative_to(prefix)
    assert (home / "jars").samefile(Path(pyspark.__file__).with_name("jars"))
    assert os.access(home / "bin" / "spark-submit", os.X_OK)
    assert not (home / "python").exists()
    assert (home / "conf").is_symlink()
    assert (home, [home.name]) == (spark_home(), os.listdir(home.parent))


def test_one_that_leads_to_another_place_is_made_again(prefix: Path) -> None:
    """An environment was moved: Spark is no longer where the links lead."""
    home = spark_home()
    (home / "jars").unlink()
    (home / "jars").symlink_to(prefix / "gone")
    assert home == spark_home()
    assert (home / "jars" / "..").resolve().samefile(Path(pyspark.__file__).parent)


def test_a_spark_that_did_not_come_with_pyspark_is_used_as_it_is(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its Python processes may find PySpark nowhere else."""
    monkeypatch.setenv(HOME_VARIABLE, str(prefix))
    assert prefix == spark_home()


def test_an_environment_that_cannot_be_written_has_none(prefix: Path) -> None:
    """Sessions start from the installed Spark then."""
    (prefix / "spark-archive").write_text("in the way")
    assert Path(pyspark.__file__).parent == spark_home()


def test_the_variable_is_set_for_the_launch_alone(prefix: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was there before is there again behind it."""
    with launched_from(prefix):
        assert str(prefix) == os.environ[HOME_VARIABLE]
    assert HOME_VARIABLE not in os.environ
    monkeypatch.setenv(HOME_VARIABLE, "another")
    with launched_from(prefix):
        pass
    assert os.environ[HOME_VARIABLE] == "another"
