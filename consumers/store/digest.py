"""The content digest of a segment: xxh3-128 over the values of its columns, whatever library wrote the file.

Replicas are compared by it. Bytes of Parquet files differ between versions of the libraries; decoded values
do not.

The digest covers these records: one for the series, one for the time and one for each field in order of name.
A record is `name` `0x00` `type` `0x00`, then the xxh3-128 (16 bytes) of each stream of the column:

    series   lengths of the runs of one series (int64 LE) · lengths of the series keys in bytes (int64 LE)
             · the keys, UTF-8, concatenated
    time     values (int64 LE, nanoseconds)
    float64  values (IEEE 754 LE, 0 where null) · positions of nulls (int64 LE)
    int64    values (int64 LE, 0 where null) · positions of nulls
    bool     values (one byte each, 0 where null) · positions of nulls
    string   lengths in bytes (int64 LE, 0 where null) · UTF-8, concatenated · positions of nulls

`type` is `series`, `time` or the field type's name. Hex, as xxhash prints it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import xxhash

from headrace.schemas.tables import TIME_COLUMN, FieldType

Bytes = memoryview | bytes
_NO_POSITIONS = np.empty(0, np.int64)


def content_digest(
    keys: pa.Array, lengths: npt.NDArray[np.int64], times: npt.NDArray[np.int64], fields: Mapping[str, pa.Array]
) -> str:
    """The digest of rows sorted by (series, time).

    `keys` and `lengths` describe the runs of one series each, `times` are in ns, `fields` are in order of
    name.
    """
    total = xxhash.xxh3_128()
    _add(total, "", "series", [lengths.data, *_strings(keys)])
    _add(total, TIME_COLUMN, "time", [times.data])
    for name, values in fields.items():
        _add(total, name, _kind(values.type), _streams(values))
    return total.hexdigest()


def _add(total: xxhash.xxh3_128, name: str, kind: str, streams: list[Bytes]) -> None:
    total.update(name.encode() + b"\0" + kind.encode() + b"\0")
    for stream in streams:
        total.update(xxhash.xxh3_128_digest(stream))


def _kind(arrow_type: pa.DataType) -> str:
    # string and large_string are two layouts of the same values.
    kind = FieldType.of_arrow(pa.string() if arrow_type == pa.large_string() else arrow_type)
    assert kind is not None, arrow_type
    return kind.value


def _streams(values: pa.Array) -> list[Bytes]:
    nulls = np.flatnonzero(values.is_null().to_numpy(zero_copy_only=False)) if values.null_count else _NO_POSITIONS
    if pa.types.is_large_string(values.type) or pa.types.is_string(values.type):
        return [*_strings(values), nulls.data]
    # The bytes under a null are undefined and differ between writers, so they count as zero.
    if pa.types.is_boolean(values.type):
        whole = values.fill_null(False) if values.null_count else values
        return [whole.to_numpy(zero_copy_only=False).view(np.uint8).data, nulls.data]
    if not len(values):
        return [b"", nulls.data]
    # The bits of floats too: by value NaN would differ from itself, and -0.0 would equal 0.0.
    numbers = np.frombuffer(values.buffers()[1], np.int64)[values.offset : values.offset + len(values)]
    if len(nulls):
        numbers = numbers.copy()
        numbers[nulls] = 0
    return [numbers.data, nulls.data]


def _strings(values: pa.Array) -> list[Bytes]:
    if values.null_count:
        values = values.fill_null("")
    # Lengths instead of offsets: a slice of a longer column and a copy of it have the same digest.
    large = pc.cast(values, pa.large_string())
    data, offset = large.buffers(), large.offset
    ends = np.frombuffer(data[1], np.int64)[offset : offset + len(large) + 1] if len(large) else np.zeros(1, np.int64)
    text = memoryview(data[2])[int(ends[0]) : int(ends[-1])] if data[2] is not None else b""
    return [np.diff(ends).data, text]
