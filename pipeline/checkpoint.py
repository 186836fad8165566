"""The checkpoint folder of a query: one process and one JVM at a time, and always the same job.

Our files are in a folder of their own beside Spark's. A checkpoint on a distributed file system (`hdfs://…`)
is left to Spark alone.
"""

from __future__ import annotations

import fcntl
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from headrace.connectors.deadline import Deadline
from headrace.connectors.files import DirectoryLock, create_directories, fsync_directory, fsync_file
from headrace.pipeline.checkpoint_file import OWN_FOLDER, CheckpointFile, local_folder
from headrace.schemas.errors import HeadraceError

if TYPE_CHECKING:
    from headrace.pipeline.job import IngestJob

IDENTITY_FILE, SINK_FILE, CLUSTER_FILE = "job.json", "sink.json", "cluster.json"
LOG_FILE = "spark.log"
WRITER_LOCK = "writer.lock"
LOG_BYTES_MAX = 16 * 1024 * 1024
WRITER_WAIT_S = 60.0
POLL_S = 0.1
JAVA_LIVES = "waiting for the Java process of the run before to end"


class CheckpointForeign(HeadraceError):
    """A checkpoint that belongs to another job: to continue from it would skip data of either job."""


class CheckpointBusy(HeadraceError):
    """The JVM of an earlier run still writes to the checkpoint."""


def default_checkpoint(data_directory: Path, job: IngestJob) -> str:
    """`{data dir}/{cluster}/ingest/{topic}-{database}`."""
    name = re.sub(r"[^A-Za-z0-9._-]", "_", f"{job.topic}-{job.database}")
    return str(data_directory / job.cluster / "ingest" / name)


@dataclass(frozen=True, slots=True)
class HeldCheckpoint:
    """A locked local checkpoint: the file for Spark's log, and the descriptors that Spark's JVM must keep
    open as long as it lives.
    """

    log_file: Path
    descriptors: tuple[int, ...]


@contextmanager
def held_checkpoint(
    checkpoint: str,
    job: IngestJob,
    *,
    wait_s: float = WRITER_WAIT_S,
    notify: Callable[[str], None] = lambda _message: None,
) -> Iterator[HeldCheckpoint | None]:
    """Lock a checkpoint for this process, its JVM and this job, or create it; None unless it is local.

    Waits up to `wait_s` for the JVM of an earlier run. Raises CheckpointForeign, DirectoryHeld,
    CheckpointBusy.
    """
    folder = local_folder(checkpoint)
    if folder is None:
        yield None
        return
    own = create_directories(folder / OWN_FOLDER)
    with DirectoryLock(own, purpose="checkpoint"):
        _check_identity(folder, CheckpointFile(own / IDENTITY_FILE), job)
        log_file = own / LOG_FILE
        if log_file.exists() and log_file.stat().st_size > LOG_BYTES_MAX:
            log_file.replace(own / f"{LOG_FILE}.1")
        # A driver that is killed leaves its JVM running for some seconds, which writes records and checkpoint
        # files. So the JVM inherits a second lock, which outlives the driver's.
        descriptor = os.open(own / WRITER_LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _wait_for_writer(descriptor, folder, wait_s, notify)
            yield HeldCheckpoint(log_file, (descriptor,))
        finally:
            os.close(descriptor)


def check_sink(checkpoint: str, cluster: str, table: str) -> None:
    """Bind a local checkpoint to the table that a stream writes; the first one counts. Raises CheckpointForeign."""
    file, mine = CheckpointFile.of(checkpoint, SINK_FILE), {"cluster": cluster, "table": table}
    found = file.read(dict)
    if found is None:
        file.write(mine)
    elif found != mine:
        raise CheckpointForeign(
            f"checkpoint {checkpoint} is that of table {found.get('table')} of cluster {found.get('cluster')}, "
            f"not of {table} of {cluster}: rows that it has passed would be in neither",
            action="name another checkpointLocation",
        )


class BoundCluster:
    """The cluster that a query writes, by the id of its membership topic; a local checkpoint remembers it over restarts.

    A cluster that was made again under the same name lacks all rows that the checkpoint has passed. A checkpoint of an
    earlier build is bound to the cluster that its next run finds.
    """

    def __init__(self, cluster: str, checkpoint: str) -> None:
        """Raises CheckpointDamaged."""
        self._file = CheckpointFile.of(checkpoint, CLUSTER_FILE)
        self._cluster = cluster
        self._known = self._file.read(lambda found: str(found["membership_id"])) or ""

    def compare(self, membership_id: str) -> None:
        """Raises CheckpointForeign for another cluster than the known one."""
        if self._known and membership_id != self._known:
            raise CheckpointForeign(
                f"cluster {self._cluster} was made again: rows that the checkpoint has passed are not in it",
                action="begin with a new checkpoint",
            )

    def check(self, membership_id: str) -> None:
        """As `compare`, and remember it; the first one counts. In the process of the driver."""
        self.compare(membership_id)
        if not self._known:
            self._file.write({"membership_id": membership_id})
        self._known = membership_id


def make_batch_durable(checkpoint: str, batch: int | None = None) -> None:
    """Sync the offsets of a micro-batch, which Spark writes without a sync; None is the newest one.

    To be called before its first message is sent. A checkpoint on another file system is left to that.
    """
    # Without it Spark may use the numbers of batches twice after a power cut, and replicas would drop those that are
    # older than what they have seen.
    folder = local_folder(checkpoint) if checkpoint else None
    # Without a scheme it may be a folder of another file system, which is Spark's default.
    if folder is None or not (offsets := folder / "offsets").is_dir():
        return
    # Spark makes the writer of a sink once the offsets are written, and does not name the batch.
    batches = [int(name) for name in os.listdir(offsets) if name.isdigit()] if batch is None else [batch]
    if not batches:
        return
    for path in (folder / "metadata", offsets / str(max(batches))):
        fsync_file(path)
    for directory in (offsets, folder):
        fsync_directory(directory)


def _wait_for_writer(descriptor: int, folder: Path, wait_s: float, notify: Callable[[str], None]) -> None:
    deadline = Deadline(wait_s)
    notified = False
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
        if not notified:
            notify(JAVA_LIVES)
            notified = True
        time.sleep(POLL_S)


def _check_identity(folder: Path, file: CheckpointFile, job: IngestJob) -> None:
    """Raises CheckpointForeign unless the job is that of the checkpoint's first run, which is recorded here."""
    # Options of the format are left out: they may be corrected, and a replayed batch that is cut differently
    # is applied again.
    mine = {"cluster": job.cluster, "topic": job.topic, "database": job.database, "format": job.format}
    found = file.read(dict)
    if found is None:
        file.write(mine)
        return
    differing = [
        f"{name} {found.get(name)!r}, not {value!r}" for name, value in mine.items() if found.get(name) != value
    ]
    if differing:
        raise CheckpointForeign(
            f"checkpoint {folder} is that of {'; '.join(differing)}", action="name another --checkpoint"
        )
