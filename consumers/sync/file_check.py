"""Whether a file that was received is what its manifest says: bytes, footer, columns, rows, devices.

Damage is one thing: bytes that are not those of the digests. A file whose digests are right and whose content is
another one comes from a sender that is wrong, or lies, and would be as wrong the next time.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import xxhash

from headrace.consumers.store import SeriesFile
from headrace.consumers.store.batch_columns import one_array
from headrace.consumers.store.segment import METADATA_PREFIX, MICROSECOND_NS, SEGMENT_FORMAT, Runs
from headrace.consumers.store.segment_reader import runs_of_tags
from headrace.consumers.store.staged_file import SERIES_SUFFIX
from headrace.consumers.sync.manifest_rules import FormatTooNew, ManifestInvalid
from headrace.schemas.errors import HeadraceError
from headrace.schemas.series import SeriesInvalid, check_series_keys
from headrace.schemas.sync_records import SyncFile
from headrace.schemas.tables import TIME_COLUMN, FieldType


class FileDamaged(HeadraceError):
    """Bytes that are not those that the sender announced: the file is sent again."""


@dataclass(frozen=True, slots=True)
class CheckedFile:
    """A file that is what its manifest says; `devices` are its series keys."""

    devices: list[str]


def series_path(segment: Path) -> Path:
    """Where the series of a segment is at a receiver."""
    return segment.with_suffix(SERIES_SUFFIX)


def check_file(path: Path, body: SyncFile) -> CheckedFile:
    """The devices of a segment whose digest, and that of its series, were compared with those of its manifest.

    Raises ManifestInvalid, FormatTooNew, FileDamaged.
    """
    with pa.memory_map(str(path)) as data:
        try:
            runs = _check_series(series_path(path).read_bytes(), body)
            with pq.ParquetFile(data, read_dictionary=sorted(body.tags), page_checksum_verification=True) as file:
                _check_footer(file.metadata, body)
                _check_columns(file.schema_arrow, body)
                _check_rows(file, runs, body)
        # A foreign file fails in many ways, depending on its bytes.
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError, SeriesInvalid) as error:
            # Errors of Arrow about bytes have no number. Those of this machine do, as when it is short of descriptors.
            if isinstance(error, OSError) and error.errno is not None:
                raise FileDamaged(f"the file {body.file} cannot be read here: {error}", retriable=True) from error
            raise ManifestInvalid(f"the file {body.file} is no segment of this product: {error!r}") from error
    return CheckedFile(runs.keys.to_pylist())


def _check_series(data: bytes, body: SyncFile) -> Runs:
    found = SeriesFile.from_bytes(data)
    named = (found.content_digest, found.file_digest, found.size_bytes, found.rows)
    announced = (body.content_digest.hex(), body.segment_digest.hex(), body.segment_bytes, body.rows)
    _check(body, named == announced, "its series file is that of another segment")
    runs = Runs.from_bytes(found.runs)
    check_series_keys(body.table, body.tags, runs.keys)
    buckets = {xxhash.xxh3_64_intdigest(key) % body.buckets for key in pc.cast(runs.keys, pa.binary()).to_pylist()}
    _check(body, buckets == {body.bucket}, f"it has series of other buckets than {body.bucket}")
    return runs


def _check_footer(footer: pq.FileMetaData, body: SyncFile) -> None:
    metadata: dict[str, str] = {key.decode(): value.decode() for key, value in (footer.metadata or {}).items()}

    def value(name: str) -> str:
        return metadata.get(METADATA_PREFIX + name, "")

    if int(value("format") or 0) > SEGMENT_FORMAT:
        raise FormatTooNew(
            f"the file {body.file} has format {value('format')}; this build reads up to {SEGMENT_FORMAT}",
            action="upgrade the centre first",
        )
    found = (value("database"), value("table"), value("slice"), value("bucket"), value("content_digest"))
    announced = (
        *(body.database, body.table, str(body.slice_number), str(body.bucket)),
        body.content_digest.hex(),
    )
    _check(body, found == announced, f"its footer names {found}, its manifest {announced}")
    _check(body, footer.num_rows == body.rows, f"it has {footer.num_rows} rows, its manifest {body.rows}")


def _check_columns(schema: pa.Schema, body: SyncFile) -> None:
    split = schema.names.index(TIME_COLUMN)
    fields = tuple((name, str(FieldType.of_arrow(schema.field(name).type))) for name in schema.names[split + 1 :])
    _check(body, tuple(schema.names[:split]) == tuple(sorted(body.tags)), "its tags are not those of its manifest")
    _check(body, fields == tuple(sorted(body.fields)), "its fields are not those of its manifest")
    texts = (pa.types.is_dictionary(each.type) and pa.types.is_string(each.type.value_type) for each in schema)
    _check(body, all(islice(texts, split)), "its tags are no texts")
    time = schema.field(TIME_COLUMN).type
    _check(body, time in (pa.timestamp("us"), pa.timestamp("ns")), "its times have an unknown type")
    _check(body, time == pa.timestamp(body.resolution) or body.resolution == "ns", "its times are finer than announced")


def _check_rows(file: pq.ParquetFile, runs: Runs, body: SyncFile) -> None:
    """Compare tags and times with the runs: by these alone the store finds the series of a row, and its owner."""
    table = file.read(columns=[*sorted(body.tags), TIME_COLUMN], use_threads=False)
    column = one_array(table.column(TIME_COLUMN))
    times = column.view(pa.int64()).to_numpy(zero_copy_only=True)
    times = times * MICROSECOND_NS if column.type.unit == "us" else times
    _check(body, (int(times.min()), int(times.max())) == (body.min_time_ns, body.max_time_ns), "it has other times")
    tags = {name: one_array(table.column(name)) for name in sorted(body.tags)}
    found = runs_of_tags(body.table, tags, times)
    same = found.keys.equals(runs.keys) and all(
        np.array_equal(mine, theirs)
        for mine, theirs in (
            (found.lengths, runs.lengths),
            (found.first_ns, runs.first_ns),
            (found.last_ns, runs.last_ns),
        )
    )
    _check(body, same, "its series file names other devices than its rows")
    keys = runs.keys
    ordered = len(keys) < 2 or bool(pc.all(pc.less(keys[:-1], keys[1:])).as_py())
    rising = np.diff(times) > 0
    rising[np.cumsum(runs.lengths)[:-1] - 1] = True
    _check(body, ordered and bool(rising.all()), "its rows are not sorted by series and time")


def _check(body: SyncFile, holds: bool, what: str) -> None:
    if not holds:
        raise ManifestInvalid(f"the file {body.file} is not that of its manifest: {what}")
