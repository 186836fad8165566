"""Where the JVM of a session finds Spark: the installed PySpark, without its archives of Python sources."""

from __future__ import annotations

import os
import shutil
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark
from pyspark.find_spark_home import _find_spark_home

HOME_VARIABLE = "SPARK_HOME"
SOURCES, CONFIGURATION = "python", "conf"
"""Folders of a Spark home: PySpark as archives of sources, and settings of the user."""


def spark_home() -> Path:
    """A home in this environment with links to all of Spark but its Python archives, made if it is missing; where that
    is not possible, or Spark was not installed with PySpark, Spark's own.
    """
    # Spark puts these archives before everything else that its Python processes import from. Out of an archive of
    # sources each process compiles PySpark again, which takes longer than all else that it does before its first row.
    installed = Path(_find_spark_home())  # type: ignore[no-untyped-call]
    package = Path(pyspark.__file__).parent
    if not package.samefile(installed):
        return installed
    home = environment_directory() / f"home-{pyspark.__version__}"
    # Looked at first: a home that another process makes meanwhile is none to remove.
    was_there = home.is_dir()
    try:
        if not _leads_to(home, package):
            if was_there:
                # An environment that was moved has one that leads to its old place.
                shutil.rmtree(home, ignore_errors=True)
            _link(package, home)
    except OSError:
        return installed
    return home


def environment_directory() -> Path:
    """Where an environment keeps what makes its Spark start faster. It is removed with the environment."""
    return Path(sys.prefix) / "spark-archive"


@contextmanager
def launched_from(home: Path) -> Iterator[None]:
    """PySpark launches a JVM from this home meanwhile."""
    given = os.environ.get(HOME_VARIABLE)
    os.environ[HOME_VARIABLE] = str(home)
    try:
        yield
    finally:
        if given is None:
            del os.environ[HOME_VARIABLE]
        else:
            os.environ[HOME_VARIABLE] = given


def _leads_to(home: Path, package: Path) -> bool:
    jars = home / "jars"
    return jars.is_dir() and jars.samefile(package / "jars")


def _link(package: Path, home: Path) -> None:
    home.parent.mkdir(exist_ok=True)
    # Not a folder of `tempfile`, which is for one user.
    partial = home.with_name(f".{home.name}.{uuid.uuid4().hex[:12]}")
    partial.mkdir()
    try:
        # Settings may be put there at any later time.
        for name in {CONFIGURATION, *(entry.name for entry in package.iterdir() if entry.is_dir())} - {SOURCES}:
            (partial / name).symlink_to(package / name)
        # Never half of a home under its name. Of two processes that make it the second finds the first one's.
        if not home.is_dir():
            partial.rename(home)
    except OSError:
        if not _leads_to(home, package):
            raise
    finally:
        shutil.rmtree(partial, ignore_errors=True)
