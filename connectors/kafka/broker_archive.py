"""Class-data archive of the broker's JVM: half of the processor time of a start is spent on loading classes, and can be spent once.

The archive is an accelerator, never needed: the JVM ignores one that is missing or made by another Java or other jars.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

from connectors.kafka.jars import JarSet


def archive_path(jars: JarSet, java: Path) -> Path:
    """Where the archive of these jars under this Java is, or would be."""
    program = java.resolve()
    identity = f"{program} {program.stat().st_size} {program.stat().st_mtime_ns}"
    return jars.directory / f"broker-{hashlib.sha256(identity.encode()).hexdigest()[:12]}.jsa"


def archive_options(jars: JarSet, java: Path) -> list[str]:
    """JVM flags that use the archive when there is one; what the JVM thinks of it is of no interest to anyone."""
    archive = archive_path(jars, java)
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:disable", "-Xlog:all=error:stderr"] if archive.exists() else []
