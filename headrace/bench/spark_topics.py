"""The raw topics of `headrace bench spark`: the same rows in every format, one a message and many."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.bench.spark_runs import BenchInvalid
from headrace.schemas.tables import TIME_COLUMN
from headrace.workload.encode import to_json_lines, to_line_protocol

TABLE = "cpu"
SCHEMA_ID = 1
FRAME = b"\0" + SCHEMA_ID.to_bytes(4, "big")
PRODUCER = {
    "linger.ms": 20,
    "batch.size": 1_000_000,
    "queue.buffering.max.messages": 2_000_000,
    "compression.type": "lz4",
}


def topic_of(form: str, shape: str) -> str:
    """The raw topic of a format with `one` or `many` rows a message, or of `tiny` batches."""
    return f"{form}.{shape}"


def fill_topics(
    bootstrap: str, rows: pa.Table, tags: Sequence[str], partitions: int, lines: int, tiny: int | None
) -> None:
    """Make the topics; `lines` rows are in a message of many, and `tiny` messages in the topic of tiny batches.

    None for `tiny`: that of JSON with one row a message alone.
    """
    documents = [text.encode() for text in to_json_lines(rows).to_pylist()]
    _produce(bootstrap, topic_of("json", "one"), documents, partitions)
    if tiny is None:
        return
    readings = [text.encode() for text in to_line_protocol(TABLE, rows).to_pylist()]
    _produce(bootstrap, topic_of("influx", "one"), readings, partitions)
    _produce(bootstrap, topic_of("influx", "tiny"), readings[:tiny], partitions)
    for form, encoded in (("influx", readings), ("json", documents)):
        many = [b"\n".join(encoded[at : at + lines]) for at in range(0, len(encoded), lines)]
        _produce(bootstrap, topic_of(form, "many"), many, partitions)
    _produce(bootstrap, topic_of("avro", "one"), avro_records(rows, tags), partitions)
    streams = [_arrow_stream(rows.slice(at, lines)) for at in range(0, rows.num_rows, lines)]
    _produce(bootstrap, topic_of("arrow", "many"), streams, partitions)


def field_names(rows: pa.Table, tags: Sequence[str]) -> tuple[str, ...]:
    """The fields of the rows."""
    return tuple(name for name in rows.column_names if name not in (*tags, TIME_COLUMN))


def avro_schema(rows: pa.Table, tags: Sequence[str]) -> str:
    """The schema of `avro_records`: tags, time in ns, fields as doubles."""
    fields = [{"name": tag, "type": "string"} for tag in tags]
    fields.append({"name": TIME_COLUMN, "type": "long"})
    fields += [{"name": name, "type": "double"} for name in field_names(rows, tags)]
    return json.dumps({"type": "record", "name": "Reading", "fields": fields})


def write_schema(directory: Path, rows: pa.Table, tags: Sequence[str]) -> str:
    """Put the schema into a directory, as `--schema-dir` wants it; the directory."""
    directory.mkdir()
    (directory / f"{SCHEMA_ID}.avsc").write_text(avro_schema(rows, tags))
    return str(directory)


def avro_records(rows: pa.Table, tags: Sequence[str]) -> list[bytes]:
    """One Avro record a row in Confluent's frame."""
    # A record is its values one behind the other. Those of tags and of times repeat, and doubles are their bytes.
    codes = np.zeros(rows.num_rows, np.int64)
    for tag in tags:
        column = rows.column(tag).combine_chunks()
        codes = codes * len(column.dictionary) + column.indices.to_numpy()
    starts: dict[int, bytes] = {}
    tables = [rows.column(tag).to_pylist() for tag in tags]
    for row, code in enumerate(codes.tolist()):
        if code not in starts:
            starts[code] = FRAME + b"".join(_text(column[row]) for column in tables)
    times = rows.column(TIME_COLUMN).to_numpy()
    encoded = {time: _long(time) for time in np.unique(times).tolist()}
    names = field_names(rows, tags)
    values = np.stack([rows.column(name).to_numpy().astype("<f8") for name in names], axis=1).tobytes()
    width = 8 * len(names)
    return [
        starts[code] + encoded[time] + values[row * width : (row + 1) * width]
        for row, (code, time) in enumerate(zip(codes.tolist(), times.tolist(), strict=True))
    ]


def _text(value: str) -> bytes:
    content = value.encode()
    return _long(len(content)) + content


def _long(value: int) -> bytes:
    """An Avro long: zigzag, seven bits a byte, the lowest first."""
    left = (value << 1) ^ (value >> 63)
    out = bytearray()
    while left > 0x7F:
        out.append(left & 0x7F | 0x80)
        left >>= 7
    out.append(left)
    return bytes(out)


def _arrow_stream(rows: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        writer.write_table(rows.unify_dictionaries())
    return bytes(sink.getvalue())


def make_topic(bootstrap: str, topic: str, partitions: int) -> None:
    """Create a topic."""
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(30)


def _produce(bootstrap: str, topic: str, values: Sequence[bytes], partitions: int) -> None:
    make_topic(bootstrap, topic, partitions)
    producer = Producer({"bootstrap.servers": bootstrap, **PRODUCER})
    for number, value in enumerate(values):
        while True:
            try:
                producer.produce(topic, value, partition=number * partitions // len(values))
                break
            except BufferError:
                # The producer's queue is full: its callbacks must run before it takes more.
                producer.poll(0.1)
        if number % 1_000 == 0:
            producer.poll(0)
    if producer.flush(120):
        raise BenchInvalid(f"the raw topic {topic} could not be filled")
