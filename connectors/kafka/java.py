"""Find the Java virtual machine for the broker, Ivy and Spark; explain in one line what is wrong with it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from functools import lru_cache
from pathlib import Path

from headrace.schemas.errors import HeadraceError

JAVA_VERSION_MIN = 17
SPARK_JAVA_VERSION_MAX = 22
"""From 23 on Java refuses a call of the Hadoop client in Spark 4.1 (HADOOP-19212). Kafka runs on them."""
OPTIONS_VARIABLE = "HEADRACE_JAVA_OPTIONS"


class JavaUnusable(HeadraceError):
    """There is no Java on this machine, or it is too old or too new, or it does not start."""


def find_java() -> Path:
    """Path of a `java` that is new enough: `JAVA_HOME` first, then `PATH`. Raises `JavaUnusable`."""
    java, _ = _checked_java(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))
    return java


def find_spark_java() -> Path:
    """As `find_java`, for Spark, which does not run on every later Java. Raises `JavaUnusable`."""
    java, version = _checked_java(os.environ.get("JAVA_HOME", ""), os.environ.get("PATH", ""))
    if version > SPARK_JAVA_VERSION_MAX:
        raise JavaUnusable(
            f"{java} is Java {version}, too new for Spark",
            action=f"install Java {JAVA_VERSION_MIN} or 21, and put it first on PATH or name it in JAVA_HOME",
        )
    return java


def java_options_given() -> list[str]:
    """Further flags for the JVMs of broker and Spark, from the environment: words as in a shell.

    Raises JavaUnusable.
    """
    try:
        return shlex.split(os.environ.get(OPTIONS_VARIABLE, ""))
    except ValueError as error:
        raise JavaUnusable(f"{OPTIONS_VARIABLE} is not a list of words: {error}", action="close its quotes") from error


# A run of Java takes a tenth of a second, and a start of a broker or of Spark needs several checks.
@lru_cache(maxsize=8)
def _checked_java(java_home: str, search_path: str) -> tuple[Path, int]:
    """A Java that is new enough, and its feature release."""
    action = f"install a Java runtime, version {JAVA_VERSION_MIN} or 21, and put it on PATH or name it in JAVA_HOME"
    located = str(Path(java_home, "bin", "java")) if java_home else shutil.which("java", path=search_path)
    if located is None or not os.access(located, os.X_OK):
        where = f"JAVA_HOME={java_home}" if java_home else "PATH"
        raise JavaUnusable(f"no Java found through {where}", action=action)
    # Only a run shows that it works: PATH may have an installer's stub, or a Java for another processor.
    try:
        answer = subprocess.run([located, "-version"], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise JavaUnusable(f"{located} does not run: {error}", action=action) from error
    version = parse_java_version(answer.stderr + answer.stdout)
    if answer.returncode != 0 or version is None:
        raise JavaUnusable(f"{located} does not run: {(answer.stderr or answer.stdout).strip()[:200]}", action=action)
    if version < JAVA_VERSION_MIN:
        raise JavaUnusable(f"{located} is Java {version}, too old", action=action)
    return Path(located), version


def parse_java_version(text: str) -> int | None:
    """Feature release in the output of `java -version` (`1.8.0_292` → 8, `17.0.15` → 17), None without one."""
    match = re.search(r'version "(?:1\.)?(\d+)', text)
    return int(match.group(1)) if match else None
