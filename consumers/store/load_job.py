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

Each step is one for many files: loads that follow each other are one commit, and so are files that are attached
together. A sync for each file would take longer than its transfer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace

import pyarrow as pa

from headrace.consumers.store.index import BucketKey, IndexChanges
from headrace.consumers.store.last_rows import (
    apply_tombstones,
    empty_last,
    encode_last,
    known_times,
    merge_last,
    newest_of_file,
)
from headrace.consumers.store.memtable import TableMetadata
from headrace.consumers.store.segment import Runs, SegmentEntry
from headrace.consumers.store.segment_files import SegmentName, translate_errors
from headrace.consumers.store.slots import without_held
from headrace.consumers.store.staged_file import read_staged, staged_in, staged_names
from headrace.consumers.store.store_errors import JobSuperseded, StagedFileInvalid, StoreUnwritable
from headrace.consumers.store.store_job import StoreComponents, StoreJob
from headrace.consumers.store.synced import place_of, ranked, share_ranks
from headrace.consumers.store.tombstone_set import NO_TOMBSTONES, TombstoneSet
from headrace.consumers.store.tombstones import tombstone
from headrace.schemas.messages import Load, SyncedRows
from headrace.schemas.tables import FieldType

READ_THREADS = 4
"""Buckets whose last rows are read at once, when files join them."""


def awaited_entry(version: int, load: Load) -> SegmentEntry:
    """The catalogue entry of a file that a load names and that is not here.

    That of a sync sender has the ranks which it has there; `LoadJob` finds those that it gets here.
    """
    place = (load.database, load.table, load.slice_number, load.bucket)
    ranks = (load.era, load.first_version, load.last_version, place_of(load))
    name = SegmentName(*place, *ranks, generation=load.generation)
    own = (SyncedRows(load.sender, load.order, load.settled),) if load.sender else load.synced
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
        # Of this log's deletes, those that came before the file of a sender do not concern it, whatever its rank.
        cleaned_version=version if load.sender else 0,
        loaded_version=version,
        held_since=load.held_since,
        carried=tuple(carried),
        awaited=True,
        synced=own,
        stores=load.stores,
        loaded_rank=(load.loaded_era, load.loaded_version),
    )


class LoadJob(StoreJob):
    """Adds a file of another log to the catalogue, with its rows if it is here.

    The loads that wait right behind it are committed with it.
    """

    urgent = True

    def __init__(
        self,
        components: StoreComponents,
        version: int,
        entry: SegmentEntry,
        known: TableMetadata,
        synced_era: int | None = None,
    ) -> None:
        """Created by `Store.load`. A file of a sync sender has the era of the group at the load."""
        super().__init__(components, version)
        self._entry = entry
        self._known = known
        self._synced_era = synced_era
        # Those known at this version: a cut that came since has taken files away that this job must still see.
        self._held = components.view.holds
        self._void = ""

    def run(self) -> None:
        """See StoreJob. Raises JobSuperseded for a file that cannot be one of this store, also when it is called again."""
        # A look without locks: hundreds of loads are done with the first of them.
        if not self.done:
            super().run()
        if self._void:
            raise JobSuperseded(self._void)

    def _execute(self) -> None:
        components, batch = self._components, [self, *self._followers()]
        # Applied before a crash, and read again. By its version and not by its name: since then the file may
        # have been merged, or released.
        new = [job for job in batch if job.version > components.view.loaded_version]
        view, attaching = components.view, _Attaching(components)
        every = (*view.catalogue(), *view.cut_entries()) if new else ()
        files = _by_location(every)
        for job in new:
            present = without_held(files.get(job._entry.location, ()), job._held)
            entry = job._ranked(present)
            if conflict := job._conflict(entry, present):
                # Counted all the same: read again after a crash, it must not fit a later catalogue.
                job._void = f"load at version {job.version} of {entry.name}: {conflict}"
                continue
            files.setdefault(entry.location, []).append(entry)
            attaching.load(entry, job._known)
        if new:
            attaching.commit(loaded_version=new[-1].version)
        for job in batch[1:]:
            job.done = True
            components.queue.remove(job)

    def _followers(self) -> Iterator[LoadJob]:
        """The loads right behind this one in the queue."""
        # A copy of the queue, which the apply thread extends meanwhile.
        for job in tuple(self._components.queue)[1:]:
            if not isinstance(job, LoadJob):
                return
            yield job

    def _ranked(self, present: Sequence[SegmentEntry]) -> SegmentEntry:
        """The file with its ranks here."""
        if self._synced_era is None:
            return self._entry
        return ranked(self._entry, self._synced_era, self.version, present)

    def _conflict(self, entry: SegmentEntry, present: Sequence[SegmentEntry]) -> str:
        """Why the file cannot be one of this store, empty if it can. It follows from the log alone."""
        database = self._known.database
        slices = {time // database.slice_ns for time in (entry.min_time_ns, entry.max_time_ns)}
        if slices != {entry.slice_number} or entry.bucket >= database.buckets:
            return f"its rows are not of slice {entry.slice_number} and bucket {entry.bucket}"
        # Rows of one slot and era are of one log (see `compaction.are_neighbours`), so ranges that overlap are
        # the same rows twice, or those of an origin that never held the slot.
        for other in present:
            if other.era == entry.era and share_ranks(entry, other):
                return f"{other.name} has rows of its ranks"
        return ""


def _by_location(entries: Iterable[SegmentEntry]) -> dict[tuple[str, str, int, int], list[SegmentEntry]]:
    found: dict[tuple[str, str, int, int], list[SegmentEntry]] = {}
    for entry in entries:
        found.setdefault(entry.location, []).append(entry)
    return found


@dataclass(slots=True)
class _Attaching:
    """Files that one commit adds to the catalogue: those that are staged with their rows, the others as awaited."""

    components: StoreComponents
    changes: IndexChanges = field(default_factory=IndexChanges)
    names: list[str] = field(default_factory=list)
    digests: set[str] = field(default_factory=set)
    rows: list[tuple[SegmentEntry, Runs, TableMetadata]] = field(default_factory=list)
    staged: set[str] | None = None
    """The names in the staging directory: a look at it costs less than one at each of hundreds of files."""

    def load(self, entry: SegmentEntry, known: TableMetadata) -> None:
        """Adds a file of a load. Raises StoreFull or StoreUnwritable."""
        self.changes.tables[entry.database, entry.table] = known
        try:
            here = self.attach(entry, known)
        except StagedFileInvalid:
            # One replica's bad copy changes nothing for the group: the file is awaited here, and fetched again.
            here = False
        if not here:
            self.changes.added.append((entry, None))

    def attach(self, entry: SegmentEntry, known: TableMetadata, *, verified: bool = False) -> bool:
        """Links a staged file under its name; whether it is staged.

        Raises StagedFileInvalid (the staged files are then removed), StoreFull or StoreUnwritable.
        """
        components = self.components
        if self.staged is None:
            self.staged = staged_in(components.staging)
        names = staged_names(entry.content_digest)
        if not self.staged.issuperset(names):
            return False
        segment, series = (components.staging / name for name in names)
        try:
            verified = verified or entry.content_digest in components.verified
            found = components.verified.get(entry.content_digest) or read_staged(segment, series)
            found.compare(entry, verified=verified)
        except StagedFileInvalid:
            discard(components, entry.content_digest)
            raise
        # A link and no rename: until the commit the file has to be staged, for a crash, and two tables may await one
        # content.
        try:
            components.files.link(entry.name, segment, synced=verified)
        except StoreUnwritable as error:
            if segment.exists():
                raise
            # Removed at this moment, since nobody knew of the load that names it.
            raise StagedFileInvalid(f"the staged file {segment} has left", retriable=True) from error
        sent = found.series
        present = replace(entry, awaited=False, size_bytes=sent.size_bytes, file_digest=sent.file_digest)
        self.rows.append((present, found.runs, known))
        self.changes.added.append((present, sent.runs))
        self.names.append(entry.name)
        self.digests.add(entry.content_digest)
        return True

    def commit(self, loaded_version: int | None = None) -> None:
        """Makes all of it durable and visible. Raises StoreFull or StoreUnwritable, and may then be made anew."""
        self.components.files.sync_directories(self.names)
        self.changes.last = {bucket: encode_last(rows) for bucket, rows in self._last_rows().items()}
        self.changes.loaded_version = loaded_version
        self.components.commit(self.changes)
        # Behind the commit: after a crash before it the files are attached from here once more.
        for content_digest in self.digests:
            discard(self.components, content_digest)

    def _last_rows(self) -> dict[BucketKey, pa.RecordBatch]:
        """The last rows of the buckets that the files join."""
        view = self.components.view
        joining = defaultdict[BucketKey, list[tuple[SegmentEntry, Runs]]](list)
        for entry, runs, _ in self.rows:
            if not view.is_held(entry):
                joining[entry.database, entry.table, entry.bucket].append((entry, runs))
        tombstones = view.tombstones_by_table()
        # The schema of the newest load has the columns of all of them, whichever is read last.
        known = {(entry.database, entry.table): known for entry, _, known in self.rows} | self.changes.tables
        fields = {table: metadata.schema.field_types() for table, metadata in known.items()}

        def joined(bucket: BucketKey) -> pa.RecordBatch:
            table = bucket[:2]
            of_table = tombstones.get(table, NO_TOMBSTONES)
            return _joined(self.components, bucket, joining[bucket], of_table, fields[table])

        if len(joining) == 1:
            return {bucket: joined(bucket) for bucket in joining}
        # Each file that is read waits for a processor several times, beside threads that keep them busy.
        with ThreadPoolExecutor(READ_THREADS, "last-rows") as threads:
            return dict(zip(joining, threads.map(joined, joining), strict=True))


def _joined(
    components: StoreComponents,
    bucket: BucketKey,
    files: Sequence[tuple[SegmentEntry, Runs]],
    tombstones: TombstoneSet,
    fields: Mapping[str, FieldType],
) -> pa.RecordBatch:
    """The last rows of a bucket: those known before, with those of files that join it."""
    view, sealed = components.view, components.last(bucket)
    # Before the rows of a file join them: a delete that came before the file removes a last row together with all
    # older ones, and those of the file may be older and not its concern.
    rows = empty_last(fields) if sealed is None else sealed
    rows = apply_tombstones(rows, tombstones.newer_than(view.frontier), view.era_max)
    keys, times = None, None
    # Newest first: the last rows that are known from them spare reading older files.
    for entry, runs in sorted(files, key=lambda each: each[0].max_time_ns, reverse=True):
        # Most files of a bucket share their series.
        if times is None or not runs.keys.equals(keys):
            keys, times = runs.keys, known_times(rows, runs.keys)
        if not (runs.last_ns >= times).any():
            continue
        path = components.files.path(entry.name)
        newest = newest_of_file(path, entry, runs, tombstones.unapplied(entry), rows, fields)
        if newest is not None:
            rows, times = merge_last([rows, newest], fields), None
    return rows


def attach(components: StoreComponents, content_digests: Collection[str], verified: Collection[str] = ()) -> int:
    """Attaches staged files wherever they are awaited; returns the number of segments. A closed store takes none.

    The bytes of those in `verified` were compared with the digest of their sender, and synced, since this process
    began. Raises StagedFileInvalid when all others are attached (the staged files are then removed), StoreFull or
    StoreUnwritable.
    """
    invalid: dict[str, StagedFileInvalid] = {}
    # Not while a job runs: a seal that has read the last rows would commit them without those of the file.
    with components.work_lock:
        if components.closed:
            return 0
        attaching = _Attaching(components)
        awaited = [each for each in components.view.awaited(of_cuts=True) if each.content_digest in content_digests]
        for entry in awaited:
            digest = entry.content_digest
            if digest in invalid:
                continue
            known = components.view.metadata((entry.database, entry.table))
            assert known is not None, entry.name
            try:
                attaching.attach(entry, known, verified=digest in verified)
            except StagedFileInvalid as error:
                invalid[digest] = error
        if attaching.names:
            attaching.commit()
    if invalid:
        raise StagedFileInvalid("; ".join(each.message for each in invalid.values()), retriable=True, digests=invalid)
    return len(attaching.names)


def discard(components: StoreComponents, content_digest: str) -> None:
    """Removes staged files."""
    components.verified.discard(content_digest)
    with translate_errors(components.staging):
        for name in staged_names(content_digest):
            (components.staging / name).unlink(missing_ok=True)
