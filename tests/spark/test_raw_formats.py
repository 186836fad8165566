"""Confluent-framed Avro through Spark, with a schema registry, to the forward logs."""

from __future__ import annotations

import io
import json
from typing import Any

import fastavro
import pytest
from pyspark.sql import SparkSession

from headrace.connectors.formats.interface import FormatOptions, SchemaPlace
from headrace.pipeline.dry_run import dry_run
from tests.schema_registry import SchemaRegistry, schema_registry
from tests.spark.conftest import IngestCluster
from tests.spark.stored import stored_tables

ROWS = 2_000
T0_MS = 1_767_225_600_000
FIELDS: list[dict[str, Any]] = [
    {"name": "site", "type": "string"},
    {"name": "ts", "type": {"type": "long", "logicalType": "timestamp-millis"}},
    {"name": "temp", "type": "double"},
    {
        "name": "meta",
        "type": {"type": "record", "name": "Meta", "fields": [{"name": "fw", "type": ["null", "string"]}]},
    },
]
EARLIER = {"type": "record", "name": "Reading", "fields": FIELDS}
LATER = {**EARLIER, "fields": [*FIELDS, {"name": "hum", "type": ["null", "float"], "default": None}]}


def reading(number: int, schema: object) -> dict[str, Any]:
    """The record of a number."""
    record = {"site": f"s{number % 3}", "ts": T0_MS + number, "temp": number / 4, "meta": {"fw": "v1"}}
    return {**record, "hum": 0.5} if schema is LATER else record


def encoded(registry: SchemaRegistry, schema: dict[str, Any], numbers: range) -> list[bytes]:
    """Records as Confluent's own serializer writes them where it is installed, else in our frames."""
    try:
        from confluent_kafka.schema_registry import SchemaRegistryClient
        from confluent_kafka.schema_registry.avro import AvroSerializer
        from confluent_kafka.serialization import MessageField, SerializationContext
    except ImportError:
        frame = b"\0" + registry.register(schema).to_bytes(4, "big")
        outputs = [io.BytesIO() for _ in numbers]
        for number, out in zip(numbers, outputs, strict=True):
            fastavro.schemaless_writer(out, schema, reading(number, schema))
        return [frame + out.getvalue() for out in outputs]
    serializer = AvroSerializer(SchemaRegistryClient({"url": registry.url}), json.dumps(schema))
    context = SerializationContext("readings", MessageField.VALUE)
    return [serializer(reading(number, schema), context) for number in numbers]


@pytest.mark.slow(20)
def test_avro_of_a_registry_becomes_rows_and_bad_messages_dead_letters(
    spark: SparkSession, cluster: IngestCluster
) -> None:
    """Two schemas in one topic, values in records, half a message and an unknown id; a dry run shows the same before
    anything is written.
    """
    with schema_registry() as registry:
        good = [*encoded(registry, EARLIER, range(ROWS // 2)), *encoded(registry, LATER, range(ROWS // 2, ROWS))]
        bad = [good[-1][:-3], b"\0\0\0\1\xff" + good[-1][5:], b"junk"]
        cluster.create_raw(partitions=2)
        cluster.produce([*good[:100], *bad, *good[100:]], partitions=2)
        paths = (("site",), ("ts",), ("temp",), ("meta", "fw"), ("hum",))
        names = ("site", "time", "temp", "fw", "hum")
        options = FormatOptions(
            table="t",
            tags=("site", "fw"),
            sources=tuple(zip(paths, names, strict=True)),
            schemas=SchemaPlace(registry=registry.url),
        )
        job = cluster.job("confluent-avro", options)
        shown = dry_run(job)
        assert (1_000, 3) == (shown.messages, shown.rejected)
        assert [("t", ("fw", "site"), False)] == [(each.name, each.tags, each.known) for each in shown.tables]
        assert 5 == len(shown.tables[0].first)
        done = cluster.run(spark, job)
    assert (ROWS, 3) == (done.counts.rows, done.counts.rejected)
    found = stored_tables(cluster.log, cluster.topics)["t"].sort_by("time").to_pylist()
    assert [
        {"site": f"s{number % 3}", "fw": "v1", "time": (T0_MS + number) * 10**6, "temp": number / 4}
        for number in range(ROWS)
    ] == [{name: row[name] for name in ("site", "fw", "time", "temp")} for row in found]
    assert [None] * (ROWS // 2) + [0.5] * (ROWS // 2) == [row["hum"] for row in found]
    assert sorted(bad) == sorted(record.value for record in cluster.dead_letters())
