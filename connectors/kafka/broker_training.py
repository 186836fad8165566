"""Makes the class-data archive of `broker_archive`, by running a broker once."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from connectors.kafka.broker import EmbeddedBroker
from connectors.kafka.broker_archive import archive_path
from connectors.kafka.jars import Progress, resolve_jars
from connectors.kafka.java import find_java

STOP_TIMEOUT_S = 120.0


def make_archive(progress: Progress | None = None) -> Path:
    """Run a broker once and keep the classes it loaded. Does nothing when that was done before. Raises what a start raises."""
    jars = resolve_jars(progress=progress)
    archive = archive_path(jars, find_java())
    if archive.exists():
        return archive
    if progress is not None:
        progress("starting a broker once, so that every later start is faster")
    with tempfile.TemporaryDirectory(prefix="headrace-archive.") as temporary:
        # Beside the jars, since a rename works within one file system only.
        partial = archive.with_suffix(f".{os.getpid()}.partial")
        try:
            embedded = EmbeddedBroker(Path(temporary, "broker"), jvm_options=[f"-XX:ArchiveClassesAtExit={partial}"])
            embedded.start()
            embedded.stop(STOP_TIMEOUT_S)
            if partial.exists():
                partial.replace(archive)
        finally:
            partial.unlink(missing_ok=True)
    return archive
