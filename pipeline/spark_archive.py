"""Class-data archive of Spark's JVM: more than half of the processor time of its start is spent on loading classes, and can be spent once.

The archive is an accelerator, never needed: the JVM ignores one that is missing or made by another Java or other jars.
"""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

from pyspark.find_spark_home import _find_spark_home

from connectors.kafka.jars import JarSet


def archive_path(jars: JarSet, java: Path) -> Path:
    """Where the archive of this Spark under this Java is, or would be: beside the Spark that it is of, with which it goes."""
    program = java.resolve()
    spark = _find_spark_home()  # type: ignore[no-untyped-call]
    identity = f"{program} {program.stat().st_size} {program.stat().st_mtime_ns} {spark} {jars.directory.name}"
    return Path(sys.prefix) / "spark-archive" / f"{hashlib.sha256(identity.encode()).hexdigest()[:12]}.jsa"


def archive_options(jars: JarSet, java: Path) -> str:
    """JVM flags that use the archive when there is one; what the JVM thinks of it is of no interest to anyone."""
    archive = archive_path(jars, java)
    return f" -XX:SharedArchiveFile={archive} -Xlog:disable -Xlog:all=error:stderr" if archive.exists() else ""
