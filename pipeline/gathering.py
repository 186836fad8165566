"""Joins the messages that come as they come from Kafka to input batches that depend on the messages alone. Pure.

What becomes one input batch decides what becomes one forward message, so a task that is run again must cut where it did before, although Kafka hands
over other pieces. Many lines at once are the cheapest to parse.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

MESSAGES_MAX = 65_536
BYTES_MAX = 32 * 1024 * 1024


def gather(
    pieces: Iterable[pa.RecordBatch], messages_max: int = MESSAGES_MAX, bytes_max: int = BYTES_MAX
) -> Iterator[pa.RecordBatch]:
    """The messages in order, none twice, none left out. Each batch but the last ends with the message that makes it `messages_max` messages or
    `bytes_max` bytes of values; never an empty one."""
    held: list[pa.RecordBatch] = []
    messages = size_bytes = 0
    for piece in pieces:
        lengths = _lengths(piece)
        while piece.num_rows:
            count = min(piece.num_rows, messages_max - messages)
            filled = size_bytes + int(lengths[:count].sum()) >= bytes_max
            if filled:
                count = 1 + int(np.searchsorted(np.cumsum(lengths[:count]), bytes_max - size_bytes))
            held.append(piece.slice(0, count))
            messages += count
            size_bytes += int(lengths[:count].sum())
            piece, lengths = piece.slice(count), lengths[count:]
            if filled or messages == messages_max:
                yield pa.concat_batches(held)
                held, messages, size_bytes = [], 0, 0
    if held:
        yield pa.concat_batches(held)


def _lengths(piece: pa.RecordBatch) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.asarray(pc.fill_null(pc.binary_length(piece["value"]), 0), dtype=np.int64)
