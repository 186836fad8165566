"""Class-data archives of the broker's and Spark's JVM: classes are parsed once and mapped into memory by
every later start.

Loading classes takes half of the processor time of a broker's start and more than half of Spark's. An archive
is an accelerator, never needed: the JVM ignores one that is damaged, or of another Java or other jars.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

from headrace.connectors.kafka.jars import JarSet

# Without these the JVM warns on stdout about every archive that it ignores.
_QUIET_OPTIONS = ("-Xlog:disable", "-Xlog:all=error:stderr")


def archive_digest(java: Path, *parts: object) -> str:
    """Names an archive: it is valid for one build of one Java, and for what `parts` identify."""
    program = java.resolve()
    # An upgraded Java keeps its path, and would reject the old archive at every start.
    identity = [program, program.stat().st_size, program.stat().st_mtime_ns, *parts]
    return hashlib.sha256(" ".join(map(str, identity)).encode()).hexdigest()[:12]


def broker_archive(jars: JarSet, java: Path) -> Path:
    """Path of the broker's archive for these jars and this Java; it need not exist."""
    return jars.directory / f"broker-{archive_digest(java)}.jsa"


def archive_options(archive: Path) -> list[str]:
    """JVM flags that use an archive; none when it does not exist."""
    return [f"-XX:SharedArchiveFile={archive}", *_QUIET_OPTIONS] if archive.exists() else []


def recording_options(partial: Path) -> list[str]:
    """JVM flags that write the classes loaded by this JVM to `partial` when it exits."""
    return [f"-XX:ArchiveClassesAtExit={partial}", *_QUIET_OPTIONS]


def record_archive(archive: Path, run_jvm: Callable[[Path, Path], None]) -> None:
    """Make `archive` by `run_jvm(partial, directory)`: one run of a JVM that records to `partial` and may use
    `directory`.
    """
    archive.parent.mkdir(exist_ok=True)
    # Beside the archive, since a rename is atomic within one file system only; two processes that record at
    # once do not meet.
    partial = archive.with_suffix(f".{os.getpid()}.partial")
    try:
        with tempfile.TemporaryDirectory(prefix="headrace-archive.") as directory:
            run_jvm(partial, Path(directory))
        # A JVM that was killed has written nothing: the next start simply goes without an archive.
        if partial.exists():
            partial.replace(archive)
    finally:
        partial.unlink(missing_ok=True)
