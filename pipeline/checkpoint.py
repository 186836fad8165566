"""The folder in which a query keeps how far it came: one query and one process at a time, and never another job's.

Spark's own files lie in it beside a folder of ours. A checkpoint on a distributed file system (`hdfs://…`) is left to Spark alone.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

from connectors.files import DirectoryLock, create_directories, write_atomically
from pipeline.job import IngestJob
from schemas.errors import HeadraceError

OWN_FOLDER = "headrace"
IDENTITY_FILE = "job.json"
LOG_FILE = "spark.log"
LOG_BYTES_MAX = 16 * 1024 * 1024


class CheckpointForeign(HeadraceError):
    """A checkpoint that belongs to another job; to go on from it would skip that job's data or this one's."""


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


@contextmanager
def held_checkpoint(checkpoint: str, job: IngestJob) -> Iterator[Path | None]:
    """Hold a checkpoint for this process and this job, made with its parents; gives the file for Spark's log (None: not local).

    Raises CheckpointForeign, DirectoryHeld.
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
        yield log_file


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
