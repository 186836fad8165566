"""The folder in which a query keeps how far it came: one query and one process at a time, and never another job's.

Spark's own files lie in it beside a folder of ours. A checkpoint on a distributed file system (`hdfs://…`) is left to Spark alone.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from connectors.files import DirectoryLock, create_directories, fsync_directory, fsync_file, write_atomically
from connectors.log.deadline import Deadline
from pipeline.job import IngestJob
from schemas.errors import HeadraceError

OWN_FOLDER = "headrace"
IDENTITY_FILE = "job.json"
LOG_FILE = "spark.log"
WRITER_LOCK = "writer.lock"
LOG_BYTES_MAX = 16 * 1024 * 1024
WRITER_WAIT_S = 60.0
POLL_S = 0.1


class CheckpointForeign(HeadraceError):
    """A checkpoint that belongs to another job; to go on from it would skip that job's data or this one's."""


class CheckpointBusy(HeadraceError):
    """What is left of an earlier run still writes to the checkpoint."""


def default_checkpoint(data_directory: Path, job: IngestJob) -> str:
    """`{data dir}/{cluster}/ingest/{topic}-{database}`."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", f"{job.topic}-{job.database}")
    return str(data_directory / job.cluster / "ingest" / name)


def local_folder(checkpoint: str) -> Path | None:
    """The checkpoint as a local path, None when it is a URL of another file system."""
    parts = urlsplit(checkpoint)
    if parts.scheme in ("", "file"):
        return Path(parts.path if parts.scheme else checkpoint).absolute()
    return None


@dataclass(frozen=True, slots=True)
class HeldCheckpoint:
    """A local checkpoint that is ours: where Spark's log goes, and the descriptors that Spark's JVM must keep open as long as it lives."""

    log_file: Path
    descriptors: tuple[int, ...]


@contextmanager
def held_checkpoint(
    checkpoint: str,
    job: IngestJob,
    *,
    wait_s: float = WRITER_WAIT_S,
    say: Callable[[str], None] = lambda _message: None,
) -> Iterator[HeldCheckpoint | None]:
    """Hold a checkpoint, made with its parents, for this process, its JVM and this job; None when it is not local.

    A driver that is killed leaves its JVM running for some seconds, writing records and checkpoint files. So the JVM holds a lock too, which is
    waited for up to `wait_s`. Raises CheckpointForeign, DirectoryHeld, CheckpointBusy.
    """
    folder = local_folder(checkpoint)
    if folder is None:
        yield None
        return
    own = create_directories(folder / OWN_FOLDER)
    with DirectoryLock(own, purpose="checkpoint"):
        _check_identity(folder, own / IDENTITY_FILE, job)
        log_file = own / LOG_FILE
        if log_file.exists() and log_file.stat().st_size > LOG_BYTES_MAX:
            log_file.replace(own / f"{LOG_FILE}.1")
        descriptor = os.open(own / WRITER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _wait_for_writer(descriptor, folder, wait_s, say)
            yield HeldCheckpoint(log_file, (descriptor,))
        finally:
            os.close(descriptor)


def make_batch_durable(folder: Path, batch: int) -> None:
    """Sync what Spark wrote down about a micro-batch, which it does not do itself, before the first message of it is sent.

    Were that lost with the power, Spark would number other messages with batches that replicas already know, and replicas would drop them.
    """
    offsets = folder / "offsets"
    for path in (folder / "metadata", offsets / str(batch)):
        fsync_file(path)
    for directory in (offsets, folder):
        fsync_directory(directory)


def _wait_for_writer(descriptor: int, folder: Path, wait_s: float, say: Callable[[str], None]) -> None:
    deadline = Deadline(wait_s)
    told = False
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if deadline.passed():
                raise CheckpointBusy(
                    f"a Java process of an earlier run still writes checkpoint {folder}",
                    action="end that process first",
                ) from None
        if not told:
            say("waiting for the Java process of the run before to end")
            told = True
        time.sleep(POLL_S)


def _check_identity(folder: Path, path: Path, job: IngestJob) -> None:
    """What decides where a replayed batch goes must be what it was at its first attempt."""
    mine = {"cluster": job.cluster, "topic": job.topic, "database": job.database, "format": job.format}
    if not path.exists():
        write_atomically(path, json.dumps(mine, indent=1) + "\n")
        return
    found = json.loads(path.read_text())
    differing = [
        f"{name} {found.get(name)!r}, not {value!r}" for name, value in mine.items() if found.get(name) != value
    ]
    if differing:
        raise CheckpointForeign(
            f"checkpoint {folder} is that of {'; '.join(differing)}", action="name another --checkpoint"
        )
