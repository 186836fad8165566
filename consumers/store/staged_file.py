"""Files of other logs in the staging directory of a group: a segment, and what travels beside it.

What is read of a file once it was fetched is kept for its load: a load of hundreds of files, for which queries wait,
would read each series and footer again.
"""

from __future__ import annotations

import json
import os
import threading
from dataclasses import asdict, dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.consumers.store.segment import METADATA_PREFIX, Runs, SegmentEntry
from headrace.consumers.store.segment_files import SEGMENT_SUFFIX, file_digest, store_error
from headrace.consumers.store.store_errors import StagedFileInvalid

SERIES_SUFFIX = ".series"
KEPT_BYTES_MAX = 64 << 20
"""What is kept of the staged files of one group until their loads."""


@dataclass(frozen=True, slots=True)
class SeriesFile:
    """What travels beside a segment: the digest and size of its bytes, and its runs.

    One line of JSON, then the runs as the index has them. The digest is the sender's: the bytes of two replicas
    may differ, and those that were fetched must be the bytes that their sender sealed.
    """

    content_digest: str
    file_digest: str
    size_bytes: int
    rows: int
    runs: bytes

    @classmethod
    def of(cls, entry: SegmentEntry, runs: bytes) -> SeriesFile:
        """The series file of a segment that is here."""
        return cls(entry.content_digest, entry.file_digest, entry.size_bytes, entry.rows, runs)

    def to_bytes(self) -> bytes:
        """The content of the file."""
        values = asdict(self)
        del values["runs"]
        return json.dumps(values, separators=(",", ":")).encode() + b"\n" + self.runs

    @classmethod
    def from_bytes(cls, data: bytes) -> SeriesFile:
        """The inverse of `to_bytes`. Raises ValueError, KeyError or TypeError for other bytes."""
        line, _, runs = data.partition(b"\n")
        return cls(**json.loads(line), runs=runs)


def staged_names(content_digest: str) -> tuple[str, str]:
    """The names of a segment and of its series in a staging directory or an export."""
    return content_digest + SEGMENT_SUFFIX, content_digest + SERIES_SUFFIX


def staged_in(staging: Path) -> set[str]:
    """The names in a staging directory, none if it does not exist. Raises StoreUnwritable."""
    try:
        return set(os.listdir(staging))
    except FileNotFoundError:
        # Before anything was fetched, or swept at this moment.
        return set()
    except OSError as error:
        raise store_error(error, staging) from error


@dataclass(frozen=True, slots=True)
class StagedFile:
    """What was read of a staged file. `written` is the content digest in the footer of the segment."""

    segment: Path
    series: SeriesFile
    runs: Runs
    rows: int
    written: str

    @property
    def kept_bytes(self) -> int:
        """Bytes in memory, about."""
        return self.runs.nbytes + len(self.series.runs)

    def compare(self, entry: SegmentEntry, *, verified: bool) -> None:
        """Compare it with the entry of its load, and its bytes with their digest unless that was done.

        Raises StagedFileInvalid.
        """
        times = (int(self.runs.first_ns.min()), int(self.runs.last_ns.max()), int(self.runs.lengths.sum()))
        same_rows = times == (entry.min_time_ns, entry.max_time_ns, entry.rows) and self.rows == entry.rows
        if not same_rows or {self.series.content_digest, self.written} != {entry.content_digest}:
            raise StagedFileInvalid(f"the staged file {self.segment} has other rows than {entry.name}", retriable=True)
        # The content digest is not computed again, since that decodes every column. The bytes are those that the
        # sender sealed, and its catalogue and the footer name the content.
        try:
            same_bytes = self.segment.stat().st_size == self.series.size_bytes
        except OSError as error:
            raise StagedFileInvalid(f"{self.segment} cannot be read: {error!r}", retriable=True) from error
        if not same_bytes or (not verified and file_digest(self.segment) != self.series.file_digest):
            raise StagedFileInvalid(
                f"the staged file {self.segment} has other bytes than its sender sealed", retriable=True
            )


def read_staged(segment: Path, series: Path) -> StagedFile:
    """Read a series file and the footer of its segment. Raises StagedFileInvalid."""
    try:
        found = SeriesFile.from_bytes(series.read_bytes())
        runs = Runs.from_bytes(found.runs)
        footer = pq.read_metadata(segment)
        written = (footer.metadata or {}).get(f"{METADATA_PREFIX}content_digest".encode(), b"").decode()
        if not len(runs.lengths):
            raise ValueError("it has no rows")
    # A damaged footer or stream fails in many ways, depending on the byte that changed.
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise StagedFileInvalid(f"the staged file {segment} cannot be read: {error!r}", retriable=True) from error
    return StagedFile(segment, found, runs, footer.num_rows, written)


class VerifiedFiles:
    """Staged files whose bytes this process has compared with the digest of their sender, and synced, by content.

    What was read of them is kept up to `KEPT_BYTES_MAX`. Thread-safe.
    """

    def __init__(self) -> None:
        """None."""
        self._lock = threading.Lock()
        self._files: dict[str, StagedFile | None] = {}
        self._kept_bytes = 0

    def __contains__(self, content_digest: str) -> bool:
        """Whether a file was verified."""
        return content_digest in self._files

    def note(self, content_digest: str, found: StagedFile) -> None:
        """A file is verified; one with other bytes may have taken its place since it was noted before."""
        self.discard(content_digest)
        with self._lock:
            fits = self._kept_bytes + found.kept_bytes <= KEPT_BYTES_MAX
            self._files[content_digest] = found if fits else None
            self._kept_bytes += found.kept_bytes if fits else 0

    def get(self, content_digest: str) -> StagedFile | None:
        """What was read of a file, None if that is not kept."""
        return self._files.get(content_digest)

    def discard(self, content_digest: str) -> None:
        """A file is not staged any more."""
        with self._lock:
            if (found := self._files.pop(content_digest, None)) is not None:
                self._kept_bytes -= found.kept_bytes

    def clear(self) -> None:
        """No file is staged any more."""
        with self._lock:
            self._files, self._kept_bytes = {}, 0
