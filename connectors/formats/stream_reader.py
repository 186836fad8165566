"""Reads a whole Arrow IPC stream that somebody sent. What it takes in memory is known before it takes it."""

from __future__ import annotations

import pyarrow as pa

from headrace.schemas.arrow_stream import StreamInvalid, stream_size

_MARK = b"\xff\xff\xff\xff"
"""Of each message of a stream. The last one has no bytes."""
_END = pa.py_buffer(_MARK + bytes(4))


class StreamUnreadable(ValueError):
    """What bytes are instead of a stream, such as "cut"."""


class StreamTooLarge(StreamUnreadable):
    """They would take too much memory."""


def ends_whole(data: pa.Buffer) -> bool:
    """Whether the last bytes are the mark of the end of a stream."""
    return data.size >= _END.size and bool(data.slice(data.size - _END.size).equals(_END))


def read_stream(data: pa.Buffer, bytes_max: int) -> tuple[pa.Schema, list[pa.RecordBatch]]:
    """The schema and the batches of a stream that takes at most so many bytes, and has at most so many values.

    The arrays are not checked. Raises StreamUnreadable.
    """
    if data.slice(0, min(len(_MARK), data.size)) != pa.py_buffer(_MARK):
        raise StreamUnreadable("no Arrow stream: it does not begin as one")
    # Arrow takes the end of the bytes for the end of the stream: a cut between two batches would go unseen.
    if not ends_whole(data):
        raise StreamUnreadable("cut: the mark of the end of its Arrow stream is missing")
    try:
        size = stream_size(data)
        if max(size) > bytes_max:
            raise StreamTooLarge(
                f"too large: its {size.values} values take {size.size_bytes} bytes once they are decoded,"
                f" {bytes_max} is the most of either"
            )
        with pa.ipc.RecordBatchStreamReader(pa.BufferReader(data)) as reader:
            return reader.schema, list(reader)
    except (pa.ArrowException, OSError, UnicodeDecodeError, StreamInvalid) as error:
        raise StreamUnreadable(f"no Arrow stream: {str(error)[:200]}") from None
