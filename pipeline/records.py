"""What the ingest task hands to Spark's Kafka sink: Arrow batches of Kafka records, and beside each record what it counts for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from connectors.log.topics import (
    DLQ_LINE_HEADER,
    DLQ_OFFSET_HEADER,
    DLQ_PARTITION_HEADER,
    DLQ_REASON_HEADER,
    DLQ_TOPIC_HEADER,
    dlq,
)
from schemas.framing import format_headers

HEADER_TYPE = pa.struct([("key", pa.string()), ("value", pa.binary())])
RECORD_COLUMNS = ("topic", "partition", "key", "value", "headers")
COUNT_COLUMNS = ("rows", "points", "rejected", "bytes", "newest_ms")
RECORD_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(HEADER_TYPE)),
        *((name, pa.int64()) for name in COUNT_COLUMNS),
    ]
)
RECORD_DDL = (
    "topic string, partition int, key binary, value binary, headers array<struct<key: string, value: binary>>, "
    "rows bigint, points bigint, rejected bigint, bytes bigint, newest_ms bigint"
)
"""`RECORD_SCHEMA` as Spark writes it."""

REASON_BYTES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class Counts:
    """What was read and written: rows and points in forward messages, bad lines, bytes read, the newest Kafka timestamp (-1 before any)."""

    rows: int = 0
    points: int = 0
    rejected: int = 0
    bytes: int = 0
    newest_ms: int = -1

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            self.rows + other.rows,
            self.points + other.points,
            self.rejected + other.rejected,
            self.bytes + other.bytes,
            max(self.newest_ms, other.newest_ms),
        )


def forward_record(topic: str, value: bytes, counts: Counts) -> pa.RecordBatch:
    """One forward message as a record of partition 0."""
    headers = [{"key": name, "value": content} for name, content in format_headers()]
    columns = [[topic], [0], [None], [value], [headers], *([getattr(counts, name)] for name in COUNT_COLUMNS)]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, RECORD_SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def dead_letters(topic: str, raw: pa.RecordBatch, rejected: pa.Table) -> pa.RecordBatch:
    """One record for every raw message with bad lines: key and value byte for byte, the reason in headers.

    `raw` has the columns `key`, `value`, `partition` and `offset` of the raw messages; `rejected` names (message, line, reason), lines from 0,
    and is in order of message. A message with several bad lines becomes one record that names the first of them and how many there are.
    """
    grouped = rejected.group_by("message", use_threads=False).aggregate(
        [("line", "min"), ("reason", "first"), ("line", "count")]
    )
    messages = grouped["message"].combine_chunks()
    bad_lines = grouped["line_count"].combine_chunks()
    chosen = raw.take(messages)
    count = len(messages)
    headers = {
        DLQ_REASON_HEADER: _reasons(grouped["reason_first"].combine_chunks(), bad_lines),
        DLQ_TOPIC_HEADER: pa.repeat(pa.scalar(topic), count),
        DLQ_PARTITION_HEADER: chosen["partition"].cast(pa.string()),
        DLQ_OFFSET_HEADER: chosen["offset"].cast(pa.string()),
        DLQ_LINE_HEADER: pc.add(grouped["line_min"].combine_chunks(), 1).cast(pa.string()),
    }
    columns = {
        "topic": pa.repeat(pa.scalar(dlq(topic)), count),
        "partition": pa.nulls(count, pa.int32()),
        "key": chosen["key"].cast(pa.binary()),
        "value": chosen["value"].cast(pa.binary()),
        "headers": _headers(headers, count),
        "rejected": bad_lines.cast(pa.int64()),
        "newest_ms": pa.repeat(pa.scalar(-1, pa.int64()), count),
    }
    zero = pa.repeat(pa.scalar(0, pa.int64()), count)
    return pa.RecordBatch.from_arrays([columns.get(name, zero) for name in RECORD_SCHEMA.names], schema=RECORD_SCHEMA)


def _reasons(first: pa.Array, bad_lines: pa.Array) -> pa.Array:
    more = pc.subtract(bad_lines, 1)
    suffix = pc.binary_join_element_wise(" (and ", more.cast(pa.string()), " more bad lines)", "")
    texts = pc.utf8_slice_codeunits(first.cast(pa.string()), 0, REASON_BYTES_MAX)
    return pc.binary_join_element_wise(texts, pc.if_else(pc.greater(more, 0), suffix, ""), "")


def _headers(values: Mapping[str, pa.Array], count: int) -> pa.ListArray:
    """The same header names for every record, with a value of its own each."""
    width = len(values)
    texts: Sequence[pa.Array] = [column.cast(pa.binary()) for column in values.values()]
    # Column after column becomes record after record.
    order = np.arange(width * count).reshape(width, count).T.ravel()
    content = pa.concat_arrays(texts).take(pa.array(order))
    names = pa.array(list(values) * count, pa.string())
    pairs = pa.StructArray.from_arrays([names, content], fields=list(HEADER_TYPE))
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * width)
    return pa.ListArray.from_arrays(offsets, pairs)
