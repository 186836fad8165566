"""Timestamps of 96 bits in Parquet files: Spark writes them unless it is set otherwise, and so do Impala and Hive.

Arrow reads them as int64 nanoseconds. Outside of those it gives another time, without an error: 9999-12-31, which often
stands for "no end", becomes a day of 1816.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from headrace.connectors.formats.interface import TIME_MAX_NS, TIME_MIN_NS, TimeRangeError

INT96_REASON = "INT96 times outside the years 1677 to 2262"
_NS_PER_MS = 1_000_000
_BATCH_ROWS = 262_144


def wrapped_columns(source: BinaryIO | pa.NativeFile, metadata: pq.FileMetaData) -> set[str]:
    """The columns of an open Parquet file in which some time does not fit nanoseconds. Nested ones are no readings."""
    columns = [metadata.schema.column(index) for index in range(metadata.num_columns)]
    names = [each.name for each in columns if each.physical_type == "INT96" and each.path == each.name]
    found: set[str] = set()
    if not names:
        return found
    # Without threads, as in `parse_parquet`: those of a broken file may still hold its bytes when the process ends.
    with pq.ParquetFile(source, metadata=metadata, coerce_int96_timestamp_unit="ms") as file:
        for batch in file.iter_batches(_BATCH_ROWS, columns=names, use_threads=False):
            found.update(name for name in names if _beyond_nanoseconds(batch.column(name)))
    return found


def _beyond_nanoseconds(times_ms: pa.Array) -> bool:
    ends = pc.min_max(times_ms.cast(pa.int64()))
    low, high = ends["min"].as_py(), ends["max"].as_py()
    # Arrow has cut off the digits below a millisecond, so the last one of either end counts as outside.
    return low is not None and (low <= TIME_MIN_NS // _NS_PER_MS + 1 or high >= TIME_MAX_NS // _NS_PER_MS)


def check_int96(wrapped: Collection[str]) -> None:
    """Raises TimeRangeError, which names the first of the columns, unless there is none."""
    for name in sorted(wrapped)[:1]:
        action = "write the column as TIMESTAMP_MICROS, or times between these years"
        raise TimeRangeError(f"column {name!r} has {INT96_REASON}", action=action)
