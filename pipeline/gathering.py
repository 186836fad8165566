"""Joins the small Arrow batches that come from the JVM. Pure.

The JVM hands over small batches, which stay in the processor's cache on their way through the socket; many lines at once are the cheapest to parse.
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

ROWS_MAX = 65_536
BYTES_MAX = 32 * 1024 * 1024


def gather(
    batches: Iterator[pa.RecordBatch], rows_max: int = ROWS_MAX, bytes_max: int = BYTES_MAX
) -> Iterator[pa.RecordBatch]:
    """Batches of at least `rows_max` rows or `bytes_max` bytes, but for the last one; no row twice, none left out, in order. Never an empty one."""
    held: list[pa.RecordBatch] = []
    rows = size_bytes = 0
    for batch in batches:
        if batch.num_rows == 0:
            continue
        held.append(batch)
        rows += batch.num_rows
        size_bytes += batch.nbytes
        if rows >= rows_max or size_bytes >= bytes_max:
            yield pa.concat_batches(held)
            held, rows, size_bytes = [], 0, 0
    if held:
        yield pa.concat_batches(held)
