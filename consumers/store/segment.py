"""A segment: one Parquet file of sealed rows of one table, slice and bucket, and its entry in the index.

The file. Rows are sorted by (series key, time), each once. Columns:

- the tags of the table in order of name: string, dictionary pages, null where a series does not carry the
  tag;
- `time`: TIMESTAMP without zone, values in UTC, DELTA_BINARY_PACKED; MICROS or NANOS, the resolution of the
  table. A table of 0.1.0 has none: MICROS when every value of the file is a whole microsecond, else NANOS;
- the fields in order of name: INT64, DOUBLE, BOOLEAN, string, each in the encoding that suits its values (see
  headrace.consumers.store.encoding). Files of 0.1.0 have BYTE_STREAM_SPLIT doubles, which Spark refuses.

Compression is zstd, row groups have `row_group_rows` rows. `time` and the tag with the most values have
statistics. Key-value metadata of the footer (all text):

    headrace.format           1
    headrace.group            data group that sealed the file
    headrace.database, .table, .slice, .bucket
    headrace.era              era of every row
    headrace.versions         first-last version of the rows, both included
    headrace.schema_version   version of the table's schema that the columns follow
    headrace.content_digest   see headrace.consumers.store.digest

The runs. The index holds for each segment its series in file order, as an Arrow IPC stream (zstd) of one
batch: `key` (utf8, a series key), `rows` (int64, its number of rows), `first` and `last` (int64 ns, its first
and last time). From it a reader knows the series of every row without decoding a tag column and prunes row
groups by tags exactly. It also shows for most pairs of files that they share no row, without reading either.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from headrace.consumers.store.batch_columns import Int64s, repeated_tags, values_of_tags
from headrace.consumers.store.digest import content_digest
from headrace.consumers.store.encoding import ColumnEncoding, Encoding, choose_encodings, writer_options
from headrace.consumers.store.segment_files import SegmentName
from headrace.consumers.store.settings import StoreSettings
from headrace.consumers.store.tag_index import TagIndex
from headrace.consumers.store.tombstones import Tombstone
from headrace.schemas.messages import SyncedRows
from headrace.schemas.tables import TIME_COLUMN, TableSchema, TimeResolution

SEGMENT_FORMAT = 1

METADATA_PREFIX = "headrace."

MICROSECOND_NS = 1_000

_PAGE_ROWS = 16_384
"""Larger than the Parquet writer's own step: it computes statistics of a tag once a step, 0.5 ns a point."""

_TEXT_PAGE_ROWS = 1_024
"""The writer's own step, for tables with text: of the rows of a step it makes no page smaller than all of them."""

_PAGE_STEP_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class SegmentEntry:
    """The catalogue entry of one segment. Times are ns, both ends included; digests are xxh3-128 in hex.

    `content_digest` covers the rows and is equal on every replica. `file_digest` covers the bytes and
    protects only transfer and disk. This log's tombstones of versions up to `cleaned_version` have been
    applied to the file permanently. That version counts this group's log, while the versions of the rows count
    the log that first took them; the two are never compared.

    A file that a `Load` brought has four fields more, and one of rows that were handed over has `held_since`.
    `loaded_version` is that record's version. `held_since` is the era since which this group holds the slot: its
    tombstones of lower eras do not concern the rows, since another group decided about them then. `carried` are
    the deletes of the earlier holders that are not applied to the file yet. `awaited`: the file is not here; it
    then has no size and no file digest. `handed_version` is the version at which the newest of handed rows were sealed.

    A segment with rows of sync senders has `synced`, with one value for each of them, and `stores`, the clusters that
    rows have passed. One file of a sender has the place among those of its version in `order`. `loaded_rank` is the
    (era, version) of its newest such load, in the log that carried it out: deletes below it came before the rows.
    """

    name: str
    database: str
    table: str
    slice_number: int
    bucket: int
    era: int
    first_version: int
    last_version: int
    generation: int
    rows: int
    min_time_ns: int
    max_time_ns: int
    size_bytes: int
    content_digest: str
    file_digest: str
    schema_version: int
    cleaned_version: int
    loaded_version: int = 0
    held_since: int = 0
    carried: tuple[Tombstone, ...] = ()
    awaited: bool = False
    order: str = ""
    synced: tuple[SyncedRows, ...] = ()
    stores: tuple[str, ...] = ()
    handed_version: int = 0
    loaded_rank: tuple[int, int] = (0, 0)

    def to_json(self) -> bytes:
        """The value of the entry in the index."""
        # Not `asdict` of the whole entry: it copies each value, and a seal has an entry for every file.
        values = {each.name: getattr(self, each.name) for each in fields(self)}
        values["carried"] = [tombstone.values() for tombstone in self.carried]
        values["synced"] = [asdict(rows) for rows in self.synced]
        # Fields that only a loaded file has are left out of the others: earlier builds read those still.
        for each in fields(self):
            if getattr(self, each.name) == each.default:
                del values[each.name]
        return json.dumps(values, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, data: bytes) -> SegmentEntry:
        """The inverse of `to_json`."""
        values = json.loads(data)
        values["carried"] = tuple(Tombstone.from_values(each) for each in values.get("carried", ()))
        values["synced"] = tuple(SyncedRows(**each) for each in values.get("synced", ()))
        values["stores"] = tuple(values.get("stores", ()))
        values["loaded_rank"] = tuple(values.get("loaded_rank", (0, 0)))
        return cls(**values)

    @property
    def location(self) -> tuple[str, str, int, int]:
        """Database, table, slice and bucket, which together are in one slot."""
        return self.database, self.table, self.slice_number, self.bucket

    @property
    def came_at(self) -> int:
        """The version of this group's log at which the file was made or loaded here."""
        return max(self.cleaned_version, self.loaded_version)

    @property
    def rows_version(self) -> int:
        """The version of this group's log up to which its rows came, whatever merges have done with the file since."""
        # Versions of handed rows count another log, and the rank of a loaded file may be below the place of its load.
        own = 0 if self.held_since else self.last_version
        return max(own, self.loaded_version, self.handed_version)

    def is_subject_to(self, tombstone: Tombstone) -> bool:
        """Whether a tombstone of this group's log deletes those rows of the segment that it matches."""
        if self.synced and tombstone.came_at <= self.cleaned_version:
            # Its rank may be below that of a delete that came before the file.
            return False
        return tombstone.era >= self.held_since and tombstone.outranks(self.era, self.last_version)

    def overlaps(self, start_ns: int | None, end_ns: int | None) -> bool:
        """True if a row of the segment can have a time in [start_ns, end_ns)."""
        return (start_ns is None or self.max_time_ns >= start_ns) and (end_ns is None or self.min_time_ns < end_ns)


@dataclass(frozen=True, slots=True)
class Runs:
    """The series of a segment in file order, how many rows each has, and its first and last time."""

    keys: pa.StringArray
    lengths: Int64s
    first_ns: Int64s
    last_ns: Int64s
    _tags: list[TagIndex] = field(default_factory=list, repr=False, compare=False)
    _ends: list[Int64s] = field(default_factory=list, repr=False, compare=False)

    @property
    def ends(self) -> Int64s:
        """The row behind each series; made when it is asked for, and kept with the runs."""
        if not self._ends:
            self._ends.append(np.cumsum(self.lengths))
        return self._ends[0]

    @property
    def tags(self) -> TagIndex:
        """Which series have which values of tags; made when it is asked for, and kept with the runs."""
        if not self._tags:
            self._tags.append(TagIndex(self.keys))
        return self._tags[0]

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return int(self.keys.nbytes + self.lengths.nbytes + self.first_ns.nbytes + self.last_ns.nbytes)

    @classmethod
    def of_times(cls, keys: pa.StringArray, lengths: Int64s, times: Int64s) -> Runs:
        """The runs of rows sorted by (series, time)."""
        ends = np.cumsum(lengths)
        return cls(keys, lengths, times[ends - lengths], times[ends - 1])

    def rows_near(self, wanted: npt.NDArray[np.bool_], block_rows: int) -> int:
        """The rows of those blocks of the file, of so many rows each, that hold wanted series."""
        ends, places = self.ends, np.flatnonzero(wanted)
        if not len(places):
            return 0
        first, last = (ends[places] - self.lengths[places]) // block_rows, (ends[places] - 1) // block_rows
        # Series follow each other in the file, so two of them share one block at most.
        blocks = int((last - first + 1).sum()) - int((first[1:] == last[:-1]).sum())
        return min(blocks * block_rows, int(ends[-1]))

    def to_bytes(self) -> bytes:
        """The value of the runs in the index."""
        batch = pa.record_batch({"key": self.keys, "rows": self.lengths, "first": self.first_ns, "last": self.last_ns})
        options = pa.ipc.IpcWriteOptions(compression="zstd", use_threads=False)
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, batch.schema, options=options) as writer:
            writer.write_batch(batch)
        return bytes(sink.getvalue().to_pybytes())

    @classmethod
    def from_bytes(cls, data: bytes) -> Runs:
        """The inverse of `to_bytes`."""
        # One thread: a hand-over to others costs more than to decode a few series, and scans read many of these.
        with pa.ipc.open_stream(data, options=pa.ipc.IpcReadOptions(use_threads=False)) as reader:
            batch = reader.read_next_batch()
        return cls(batch.column(0), *(batch.column(index).to_numpy() for index in (1, 2, 3)))


@dataclass(frozen=True, slots=True)
class SegmentRows:
    """The rows of one segment in memory: runs of series, times in ns, fields in order of name.

    `tags` has the values of the series, null where one does not carry the tag, if they are known beside its keys.
    """

    runs: Runs
    times: Int64s
    fields: Mapping[str, pa.Array]
    tags: Mapping[str, pa.StringArray] | None = None


@dataclass(frozen=True, slots=True)
class EncodedSegment:
    """A segment as bytes, with its entry and runs for the index."""

    entry: SegmentEntry
    runs: Runs
    data: pa.Buffer


def encode_segment(
    group: str,
    name: SegmentName,
    schema: TableSchema,
    rows: SegmentRows,
    cleaned_version: int,
    settings: StoreSettings,
    encodings: Mapping[str, ColumnEncoding] | None = None,
    between: Callable[[], None] = lambda: None,
) -> EncodedSegment:
    """The Parquet file of `rows` and its entry; without `encodings` of its fields the values decide.

    `between` is called before each row group, and ends the work by an error.
    """
    digest = content_digest(rows.runs.keys, rows.runs.lengths, rows.times, rows.fields)
    table, selective = _file_table(schema, rows)
    if encodings is None:
        kinds = schema.field_types()
        encodings = choose_encodings(rows.fields, kinds, settings.row_group_rows, settings.compression_level)
    metadata = _metadata(group, name, schema, digest)
    data = _write_parquet(table, schema, selective, metadata, settings, encodings, between)
    entry = SegmentEntry(
        name=name.relative,
        database=name.database,
        table=name.table,
        slice_number=name.slice_number,
        bucket=name.bucket,
        era=name.era,
        first_version=name.first_version,
        last_version=name.last_version,
        generation=name.generation,
        rows=len(rows.times),
        min_time_ns=int(rows.times.min()),
        max_time_ns=int(rows.times.max()),
        size_bytes=data.size,
        content_digest=digest,
        file_digest=xxhash.xxh3_128_hexdigest(data),
        schema_version=schema.version,
        cleaned_version=cleaned_version,
    )
    return EncodedSegment(entry, rows.runs, data)


def _metadata(group: str, name: SegmentName, schema: TableSchema, digest: str) -> dict[str, str]:
    values = {
        "format": SEGMENT_FORMAT,
        "group": group,
        "database": name.database,
        "table": name.table,
        "slice": name.slice_number,
        "bucket": name.bucket,
        "era": name.era,
        "versions": f"{name.first_version}-{name.last_version}",
        "schema_version": schema.version,
        "content_digest": digest,
    }
    return {METADATA_PREFIX + key: str(value) for key, value in values.items()}


def _file_table(schema: TableSchema, rows: SegmentRows) -> tuple[pa.Table, str | None]:
    """The table in the columns of the file, and the tag with the most distinct values."""
    known = values_of_tags(rows.runs.keys, schema.tags) if rows.tags is None else rows.tags
    tags = repeated_tags(known, rows.runs.lengths)
    columns: list[pa.Array] = list(tags.values())
    names: list[pa.Field] = [pa.field(tag, column.type) for tag, column in tags.items()]
    distinct = {tag: len(column.dictionary) for tag, column in tags.items()}
    times = _file_times(schema, rows.times)
    columns.append(times)
    names.append(pa.field(TIME_COLUMN, times.type, nullable=False))
    columns.extend(rows.fields.values())
    names.extend(pa.field(name, values.type) for name, values in rows.fields.items())
    table = pa.Table.from_arrays(columns, schema=pa.schema(names))
    return table, max(distinct, key=lambda tag: distinct[tag]) if distinct else None


def _file_times(schema: TableSchema, times_ns: Int64s) -> pa.Array:
    """The times in the unit of the table, so that a reader sees one type in all of its files."""
    if schema.recorded_resolution is TimeResolution.NS:
        return pa.array(times_ns).view(pa.timestamp("ns"))
    # NumPy divides by a constant several times faster than it takes the remainder.
    micros = times_ns // MICROSECOND_NS
    whole = bool(np.array_equal(micros * MICROSECOND_NS, times_ns))
    # Admission refuses finer times. A file that loses their digits would be damage that no digest shows.
    assert whole or schema.recorded_resolution is None, f"{schema.database}.{schema.table} has times finer than 1 us"
    # Without a recorded resolution the values decide: the files of such a table stay as they are, and Spark,
    # which refuses NANOS, reads those that it did.
    return pa.array(micros if whole else times_ns).view(pa.timestamp("us" if whole else "ns"))


def _page_rows(table: pa.Table) -> int:
    """Rows that the Parquet writer adds to a page before it looks at the page's size."""
    # A page ends at 2 GiB, and the writer looks at its size after each such step only.
    texts = [column for column in table.columns if pa.types.is_large_string(column.type)]
    if not texts:
        return _PAGE_ROWS
    longest = max(pc.max(pc.binary_length(column)).as_py() or 0 for column in texts)
    return max(1, min(_TEXT_PAGE_ROWS, _PAGE_STEP_BYTES // max(1, longest)))


def _write_parquet(
    table: pa.Table,
    schema: TableSchema,
    selective: str | None,
    metadata: dict[str, str],
    settings: StoreSettings,
    fields: Mapping[str, ColumnEncoding],
    between: Callable[[], None],
) -> pa.Buffer:
    level = settings.compression_level
    # Neighbouring times of one series differ by little, so their deltas need few bits.
    encodings = {**fields, TIME_COLUMN: ColumnEncoding(Encoding.DELTA_BINARY_PACKED, level)}
    encodings |= dict.fromkeys(schema.tags, ColumnEncoding(Encoding.DICTIONARY, level))
    # Statistics only where they prune: fields are not sorted, so minimum and maximum of a row group exclude
    # little. With page checksums a reader reports a flipped bit instead of returning a wrong value.
    sink = pa.BufferOutputStream()
    with pq.ParquetWriter(
        sink,
        table.schema,
        **writer_options(encodings),
        write_batch_size=_page_rows(table),
        write_statistics=[TIME_COLUMN, *([selective] if selective else [])],
        write_page_checksum=True,
        store_schema=False,
    ) as writer:
        for start in range(0, len(table), settings.row_group_rows):
            between()
            group = table.slice(start, settings.row_group_rows)
            writer.write_table(group, row_group_size=settings.row_group_rows)
        writer.add_key_value_metadata(metadata)
    return sink.getvalue()
