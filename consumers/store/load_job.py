"""Files of other logs: a load names one, and the store attaches it when it is here.

A file is fetched into the staging directory of the group, `{data}/staging/{group}`, under its content digest:
`{digest}.parquet`, and `{digest}.series` with what the index of its sender has of it (see `SeriesFile`). From
the load on the catalogue names the file, on every replica at the same version. Where it is not staged yet it is
awaited: later records are applied, scans do not have its rows, and `attach` adds them.

Attaching commits in this order. A crash at any point leaves the file awaited and staged, or attached:

1. The staged file is compared with its digests, synced, and linked under its name. Crash: an orphan, removed
   at opening (pass 4 of headrace.consumers.store.store_directory).
2. One synced batch changes catalogue, series and last rows. Crash before or during it: as in 1.
3. The staged files are removed. Crash: they stay, and are removed by whoever stages files.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.consumers.store.index import BucketKey, IndexChanges
from headrace.consumers.store.last_rows import apply_tombstones, empty_last, encode_last, merge_last, newest_of_file
from headrace.consumers.store.memtable import TableMetadata
from headrace.consumers.store.segment import METADATA_PREFIX, Runs, SegmentEntry
from headrace.consumers.store.segment_files import SEGMENT_SUFFIX, SegmentName, file_digest, translate_errors
from headrace.consumers.store.store_errors import JobSuperseded, StagedFileInvalid
from headrace.consumers.store.store_job import StoreComponents, StoreJob
from headrace.consumers.store.tombstone_set import TombstoneSet
from headrace.consumers.store.tombstones import tombstone
from headrace.schemas.messages import Load

SERIES_SUFFIX = ".series"


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


def awaited_entry(version: int, load: Load) -> SegmentEntry:
    """The catalogue entry of a file that a load names and that is not here."""
    name = SegmentName(
        load.database,
        load.table,
        load.slice_number,
        load.bucket,
        load.era,
        load.first_version,
        load.last_version,
        load.generation,
    )
    table = (load.database, load.table)
    carried = (tombstone(d.version, d.era, table, dict(d.tags), d.start_ns, d.end_ns) for d in load.deletes)
    return SegmentEntry(
        **asdict(name),
        name=name.relative,
        rows=load.rows,
        min_time_ns=load.min_time_ns,
        max_time_ns=load.max_time_ns,
        size_bytes=load.size_bytes,
        content_digest=load.content_digest.hex(),
        file_digest="",
        schema_version=load.schema_version,
        cleaned_version=0,
        loaded_version=version,
        held_since=load.held_since,
        carried=tuple(carried),
        awaited=True,
    )


class LoadJob(StoreJob):
    """Adds a file of another log to the catalogue, with its rows if it is here."""

    def __init__(self, components: StoreComponents, version: int, entry: SegmentEntry, known: TableMetadata) -> None:
        """Created by `Store.load`."""
        super().__init__(components, version)
        self._entry = entry
        self._known = known

    def _execute(self) -> None:
        components, table = self._components, (self._entry.database, self._entry.table)
        if self.version <= components.view.loaded_version:
            # Applied before a crash, and read again. By its version and not by its name: since then the file may
            # have been merged, or released.
            return
        changes = IndexChanges(tables={table: self._known}, loaded_version=self.version)
        if (conflict := self._conflict()) is not None:
            # Committed all the same: read again after a crash, it must not fit a later catalogue.
            components.commit(changes)
            raise JobSuperseded(f"load at version {self.version} of {self._entry.name}: {conflict}")
        try:
            staged = prepare(components, self._entry, self._known)
        except StagedFileInvalid:
            # One replica's bad copy changes nothing for the group: the file is awaited here, and fetched again.
            staged = None
        changes.added.append((self._entry, None) if staged is None else (staged.entry, staged.runs))
        if staged is not None:
            changes.last[staged.bucket] = encode_last(staged.last)
        components.commit(changes)
        if staged is not None:
            discard(components, self._entry.content_digest)

    def _conflict(self) -> str | None:
        """Why the file cannot be one of this store. It follows from the log alone."""
        entry, database = self._entry, self._known.database
        slices = {time // database.slice_ns for time in (entry.min_time_ns, entry.max_time_ns)}
        if slices != {entry.slice_number} or entry.bucket >= database.buckets:
            return f"its rows are not of slice {entry.slice_number} and bucket {entry.bucket}"
        # Rows of one slot and era are of one log (see `compaction.are_neighbours`), so ranges that overlap are
        # the same rows twice, or those of an origin that never held the slot.
        for other in self._components.view.catalogue():
            same = other.location == entry.location and other.era == entry.era
            if same and entry.first_version <= other.last_version and other.first_version <= entry.last_version:
                return f"{other.name} has rows of its ranks"
        return None


@dataclass(frozen=True, slots=True)
class _Attached:
    """A file that is durable under its name, with what a commit adds for it."""

    entry: SegmentEntry
    runs: Runs
    bucket: BucketKey
    last: pa.RecordBatch


def attach(components: StoreComponents, content_digest: str) -> int:
    """Attaches a staged file wherever it is awaited; returns the number of segments.

    Raises StagedFileInvalid (the staged files are then removed), StoreFull or StoreUnwritable.
    """
    attached = 0
    # Not while a job runs: a seal that has read the last rows would commit them without those of the file.
    with components.work_lock:
        for entry in components.view.awaited(of_cuts=True):
            if entry.content_digest != content_digest:
                continue
            known = components.view.metadata((entry.database, entry.table))
            assert known is not None, entry.name
            staged = prepare(components, entry, known)
            if staged is None:
                return attached
            last = {staged.bucket: encode_last(staged.last)}
            components.commit(IndexChanges(added=[(staged.entry, staged.runs)], last=last))
            attached += 1
        discard(components, content_digest)
    return attached


def prepare(components: StoreComponents, entry: SegmentEntry, known: TableMetadata) -> _Attached | None:
    """Links a staged file under its name and computes what is committed with it; None if it is not staged."""
    segment, series = (components.staging / name for name in staged_names(entry.content_digest))
    if not segment.exists() or not series.exists():
        return None
    try:
        found, runs = _checked(segment, series, entry)
    except StagedFileInvalid:
        discard(components, entry.content_digest)
        raise
    components.files.link(entry.name, segment)
    components.files.sync_directories([entry.name])
    present = replace(entry, awaited=False, size_bytes=found.size_bytes, file_digest=found.file_digest)
    bucket = (entry.database, entry.table, entry.bucket)
    return _Attached(present, runs, bucket, _last_rows(components, present, runs, known))


def discard(components: StoreComponents, content_digest: str) -> None:
    """Removes staged files."""
    with translate_errors(components.staging):
        for name in staged_names(content_digest):
            (components.staging / name).unlink(missing_ok=True)


def _checked(segment: Path, series: Path, entry: SegmentEntry) -> tuple[SeriesFile, Runs]:
    """The content of a series file, after everything staged was compared with the entry of the load."""
    try:
        found = SeriesFile.from_bytes(series.read_bytes())
        runs = Runs.from_bytes(found.runs)
        times = (int(runs.first_ns.min()), int(runs.last_ns.max()), int(runs.lengths.sum()))
        footer = pq.read_metadata(segment)
        written = (footer.metadata or {}).get(f"{METADATA_PREFIX}content_digest".encode(), b"").decode()
    # A damaged footer or stream fails in many ways, depending on the byte that changed.
    except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
        raise StagedFileInvalid(f"the staged file {segment} cannot be read: {error!r}", retriable=True) from error
    same_rows = times == (entry.min_time_ns, entry.max_time_ns, entry.rows) and footer.num_rows == entry.rows
    if not same_rows or {found.content_digest, written} != {entry.content_digest}:
        raise StagedFileInvalid(f"the staged file {segment} has other rows than {entry.name}", retriable=True)
    # The content digest is not computed again, since that decodes every column. The bytes are those that the
    # sender sealed, and its catalogue and the footer name the content.
    if segment.stat().st_size != found.size_bytes or file_digest(segment) != found.file_digest:
        raise StagedFileInvalid(f"the staged file {segment} has other bytes than its sender sealed", retriable=True)
    return found, runs


def _last_rows(components: StoreComponents, entry: SegmentEntry, runs: Runs, known: TableMetadata) -> pa.RecordBatch:
    """The last rows of the file's bucket, with those of the file."""
    view, table = components.view, (entry.database, entry.table)
    fields = known.schema.field_types()
    earlier = components.last((*table, entry.bucket))
    if earlier is None:
        earlier = empty_last(fields)
    if view.is_held(entry):
        return earlier
    tombstones = view.tombstones_by_table().get(table, TombstoneSet())
    # Before the rows of the file join them: a delete that came before the file removes a last row together with
    # all older ones, and those of the file may be older and not its concern.
    earlier = apply_tombstones(earlier, tombstones.newer_than(view.frontier), view.era_max)
    path = components.files.path(entry.name)
    newest = newest_of_file(path, entry, runs, tombstones.unapplied(entry), earlier, fields)
    return merge_last([earlier, newest], fields)
