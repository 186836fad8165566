"""Kafka records as Arrow batches in the columns of Spark's Kafka sink: forward messages and dead letters, and the
counts of the task that makes them.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.log.topics import (
    DLQ_LINE_HEADER,
    DLQ_OFFSET_HEADER,
    DLQ_PARTITION_HEADER,
    DLQ_REASON_HEADER,
    DLQ_TIMESTAMP_HEADER,
    DLQ_TOPIC_HEADER,
    dlq,
)
from headrace.pipeline.ingest_progress import UNKNOWN, Counts
from headrace.schemas.framing import format_headers

MILLISECONDS = pa.timestamp("ms", "UTC")
HEADER_TYPE = pa.struct([("key", pa.string()), ("value", pa.binary())])
RECORD_SCHEMA = pa.schema(
    [
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("headers", pa.list_(HEADER_TYPE)),
    ]
)
COUNT_FIELDS = ("messages", "rows", "points", "rejected", "bytes", "newest_ms")
COUNTED_SCHEMA = pa.schema(
    [*RECORD_SCHEMA, *(pa.field(name, pa.int64()) for name in COUNT_FIELDS), pa.field("reasons", pa.string())]
)
# Headers count towards a record's size: a reason must not make a record too large that a topic has held.
REASON_BYTES_MAX = 1_000


def forward_record(topic: str, value: bytes) -> pa.RecordBatch:
    """One forward message as a record of partition 0, the only one of a forward topic."""
    headers = [{"key": name, "value": content} for name, content in format_headers()]
    columns = [[topic], [0], [None], [value], [headers]]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, RECORD_SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RECORD_SCHEMA)


def dead_letters(topic: str, raw: pa.RecordBatch, rejected: pa.Table) -> pa.RecordBatch:
    """One record for every raw message with bad lines: key and value byte for byte, the reason in headers.

    `raw` has the columns `key`, `value`, `partition`, `offset` and `timestamp` of the raw messages. `rejected` has
    (message, line, reason), lines from 0, in order of message. A message with several bad lines becomes one
    record with the first of them and their number.
    """
    # One thread: with several "first" is arbitrary, and a replayed batch would give other reasons.
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
        # A replay gives lines without a time the one that they had: others would make rows of their own.
        DLQ_TIMESTAMP_HEADER: chosen["timestamp"].cast(MILLISECONDS).cast(pa.int64()).cast(pa.string()),
    }
    columns = [
        pa.repeat(pa.scalar(dlq(topic)), count),
        pa.nulls(count, pa.int32()),
        chosen["key"].cast(pa.binary()),
        chosen["value"].cast(pa.binary()),
        _headers(headers, count),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA)


def _reasons(first: pa.Array, bad_lines: pa.Array) -> pa.Array:
    more = pc.subtract(bad_lines, 1)
    suffix = pc.binary_join_element_wise(" (and ", more.cast(pa.string()), " more bad lines)", "")
    texts = pc.utf8_slice_codeunits(first.cast(pa.string()), 0, REASON_BYTES_MAX)
    return pc.binary_join_element_wise(texts, pc.if_else(pc.greater(more, 0), suffix, ""), "")


def _headers(values: Mapping[str, pa.Array], count: int) -> pa.ListArray:
    """The headers of all records: the same names for each, with its own values."""
    width = len(values)
    texts: Sequence[pa.Array] = [column.cast(pa.binary()) for column in values.values()]
    # One `take` transposes columns to records: a loop in Python would run once per record.
    order = np.arange(width * count).reshape(width, count).T.ravel()
    content = pa.concat_arrays(texts).take(pa.array(order))
    names = pa.array(list(values) * count, pa.string())
    pairs = pa.StructArray.from_arrays([names, content], fields=list(HEADER_TYPE))
    offsets = pa.array(np.arange(count + 1, dtype=np.int32) * width)
    return pa.ListArray.from_arrays(offsets, pairs)


def counted_records(records: Iterable[pa.RecordBatch], counts: Callable[[], Counts]) -> Iterator[pa.RecordBatch]:
    """The records of a task in `COUNTED_SCHEMA`: the last one carries the counts of all, which others have as 0.

    A task without a record gives one without a topic, so that its messages are counted too; `counts` is called once,
    at the end.
    """
    # The counts go last: Spark drops what a task returned before it failed, but a sum over records that another
    # attempt returns again would be wrong if they were spread over them.
    held: pa.RecordBatch | None = None
    for batch in records:
        if held is not None:
            yield with_counts(held, Counts())
        held = batch
    total = counts()
    if held is None and total.messages:
        held = pa.RecordBatch.from_arrays([pa.nulls(1, kind) for kind in RECORD_SCHEMA.types], schema=RECORD_SCHEMA)
    if held is not None:
        yield with_counts(held, total)


def with_counts(records: pa.RecordBatch, counts: Counts) -> pa.RecordBatch:
    """Records in `RECORD_SCHEMA` with counts, which the last one carries."""
    others = records.num_rows - 1
    numbers = [pa.array([0] * others + [getattr(counts, name)], pa.int64()) for name in COUNT_FIELDS]
    reasons = pa.array([None] * others + [json.dumps(dict(counts.reasons)) if counts.reasons else None], pa.string())
    return pa.RecordBatch.from_arrays([*records.columns, *numbers, reasons], schema=COUNTED_SCHEMA)


def counts_of(records: pa.RecordBatch) -> Counts:
    """The counts that records in `COUNTED_SCHEMA` carry."""
    messages, rows, points, rejected, size = (pc.sum(records[name]).as_py() or 0 for name in COUNT_FIELDS[:5])
    newest_ms = pc.max(records["newest_ms"]).as_py()
    total = Counts(messages, rows, points, rejected, size, UNKNOWN if newest_ms is None else newest_ms)
    for text in records["reasons"].drop_null().to_pylist():
        total += Counts(reasons=json.loads(text))
    return total
