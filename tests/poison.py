"""Row batches and messages that no writer of Headrace makes, for tests of what replicas ignore."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence

import numpy as np
import pyarrow as pa

from headrace.schemas.messages import Message, ProducerPosition, Write, encode_message
from headrace.schemas.payload import SERIES_TYPE
from headrace.schemas.tables import FieldType, TableSchema

SCHEMA = TableSchema("plant", "pumps", 1, ("pump",), (("flow", FieldType.FLOAT64), ("note", FieldType.STRING)))
LATIN_1 = "café".encode("latin-1")


def text_array(values: Sequence[bytes], offsets: Sequence[int] | None = None) -> pa.StringArray:
    """A string array of any bytes, which Arrow does not check; `offsets` replaces the right ones."""
    right = np.cumsum([0, *map(len, values)])
    buffer = np.array(right if offsets is None else offsets, np.int32)
    return pa.StringArray.from_buffers(len(values), pa.py_buffer(buffer.tobytes()), pa.py_buffer(b"".join(values)))


def row_batch(
    keys: pa.StringArray | Sequence[str] = ("pumps,pump=p1",),
    codes: Sequence[int] = (0, 0, 0),
    times: Sequence[int | None] = (1, 2, 3),
    fields: Mapping[str, pa.Array] | None = None,
) -> pa.RecordBatch:
    """A row batch of any content, valid by default."""
    dictionary = keys if isinstance(keys, pa.StringArray) else pa.array(keys, pa.string())
    series = pa.DictionaryArray.from_arrays(pa.array(codes, pa.int32()), dictionary, safe=False)
    columns = {"__series": series, "time": pa.array(times, pa.int64())}
    columns |= {"flow": pa.array([1.0] * len(codes))} if fields is None else fields
    assert series.type == SERIES_TYPE
    return pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))


def encoded(batch: pa.RecordBatch, compression: str | None = None, copies: int = 1) -> bytes:
    """A row batch as `encode_rows` would write it, without its checks."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for _ in range(copies):
            writer.write_batch(batch)
    return bytes(sink.getvalue().to_pybytes())


def poison_payloads() -> dict[str, bytes]:
    """Payloads by what is wrong with them."""
    texts = [b"ab", b"cd", b"ef"]
    batches = {
        "field is not UTF-8": row_batch(fields={"note": text_array([b"a", LATIN_1, b"c"])}),
        "tag is not UTF-8": row_batch(text_array([b"pumps,pump=" + LATIN_1])),
        "offset behind the text": row_batch(fields={"note": text_array(texts, [0, 2, 900_000_000, 6])}),
        "negative offset": row_batch(fields={"note": text_array(texts, [0, 2, -2_000_000_000, 6])}),
        "offset of a series behind the text": row_batch(text_array([b"pumps"] * 3, [0, 900_000_000, 10, 15])),
        "index behind the dictionary": row_batch(codes=(0, 7, 0)),
        "negative index": row_batch(codes=(0, -1, 0)),
        "series without a key": row_batch(pa.array(["pumps", None]), codes=(0, 1, 0)),
        "row without a time": row_batch(times=(1, None, 3)),
        "time is positive infinity": row_batch(times=(1, 2**63 - 1, 3)),
        "time is negative infinity": row_batch(times=(1, -(2**63) + 1, 3)),
        "time is the least integer": row_batch(times=(1, -(2**63), 3)),
        "series of another table": row_batch(["valves,pump=p1"]),
        "series with an unknown tag": row_batch(["pumps,pump=p1,site=a"]),
        "series without a value": row_batch(["pumps,pump="]),
        "series with a bad escape": row_batch(["pumps,pump=a\\b"]),
        "series with a tag twice": row_batch(["pumps,pump=a,pump=b"]),
        "empty series": row_batch([""]),
        "unknown field": row_batch(fields={"depth": pa.array([1.0, 2.0, 3.0])}),
        "field of another type": row_batch(fields={"flow": pa.array([1, 2, 3])}),
        "type that no field has": row_batch(fields={"flow": pa.array([[1], [2], [3]])}),
        "four rows": row_batch(codes=(0, 0, 0, 0), times=(1, 2, 3, 4)),
    }
    found = {name: encoded(batch) for name, batch in batches.items()}
    good = encoded(row_batch())
    found["two batches"] = encoded(row_batch(), copies=2)
    found["bytes behind the end"] = good + b"x"
    found["ends early"] = good[:-9]
    found["no stream"] = b"rows"
    found["nothing"] = b""
    return found


def bomb(size_bytes: int) -> bytes:
    """A valid row batch of one row whose text takes so many bytes in memory, and hardly any on the wire."""
    return encoded(row_batch(codes=(0,), times=(1,), fields={"note": text_array([bytes(size_bytes)])}), "zstd")


def false_length(payload: bytes, claimed: int) -> bytes:
    """A compressed payload in which the first buffer that is compressed declares another length."""
    # The frame of zstd begins with its magic number, and the declared length is before it.
    at = payload.index(b"\x28\xb5\x2f\xfd") - 8
    return payload[:at] + struct.pack("<q", claimed) + payload[at + 8 :]


def write_message(payload: bytes, rows: int = 3, schema_version: int = 1, sequence: int = 0) -> bytes:
    """A payload as the value of a forward record."""
    body = Write("plant", "pumps", schema_version, 1, rows, payload)
    return encode_message(Message(ProducerPosition("poison", 1, sequence), body))
