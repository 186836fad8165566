"""The same rows in every format of raw messages, with bad messages that each format has."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import fastavro
import pyarrow as pa

from headrace.pipeline.job_arguments import message_options
from headrace.pipeline.jobs.ingest import parser
from headrace.workload.encode import to_json_lines, to_line_protocol
from tests.schema_registry import SchemaRegistry
from tests.spark.conftest import IngestCluster

ROWS_A_MESSAGE = 10
JUNK = b"\xff\x00 no reading"
FRAME = b"\0\0\0\0\x07"


@dataclass(frozen=True)
class FormatCase:
    """A format as a user names it: options of the command, the messages of all rows, and bad messages."""

    form: str
    options: tuple[str, ...]
    messages: tuple[bytes, ...]
    bad: tuple[bytes, ...]

    def mixed(self) -> list[bytes]:
        """All messages, the bad ones spread over them."""
        step, mixed = max(1, len(self.messages) // len(self.bad)), list(self.messages)
        for number, each in enumerate(self.bad):
            mixed.insert(number * (step + 1), each)
        return mixed

    def arguments(self, cluster: IngestCluster, topic: str) -> list[str]:
        """The options of `headrace ingest run` and of the job for `spark-submit`."""
        given = ["--cluster", cluster.topics.cluster, "--bootstrap", cluster.bootstrap, "--topic", topic]
        given += ["--checkpoint", str(cluster.directory / f"checkpoint-{topic}"), "--format", self.form]
        return [*given, "--database", "db", "--any-time", "--time-resolution", "ns", *self.options]

    def format_options(self, cluster: IngestCluster, topic: str) -> Any:
        """The same as values."""
        return message_options(parser().parse(self.arguments(cluster, topic)))[1]


Rows = Sequence[dict[str, Any]]


def cases(rows: pa.Table, tags: Sequence[str], directory: Path, registry: SchemaRegistry) -> dict[str, FormatCase]:
    """A case for each name; each writes the table of its name, with `_` for `-`."""
    documents = rows.to_pylist()
    plain: dict[str, Callable[[str], FormatCase]] = {
        "influx": lambda name: _influx(name, rows),
        "json": lambda name: _case(name, "json", tags, [each.encode() for each in to_json_lines(rows).to_pylist()]),
        "json-mapped": lambda name: _mapped(name, documents, tags, directory),
        "csv": lambda name: _csv(name, documents, tags),
        "avro": lambda name: _avro(name, documents, tags, directory),
        "confluent-avro": lambda name: _confluent_avro(name, documents, tags, registry),
        "confluent-json": lambda name: _confluent_json(name, rows, tags),
        "arrow": lambda name: _arrow(name, rows, tags),
    }
    return {name: make(name) for name, make in plain.items()}


def table_of(name: str) -> str:
    """The table that a case writes."""
    return name.replace("-", "_")


def _case(
    name: str, form: str, tags: Sequence[str], messages: Sequence[bytes], bad: Sequence[bytes] = (), *more: str
) -> FormatCase:
    options = ("--table", table_of(name), "--tags", ",".join(tags), *more)
    return FormatCase(form, options, tuple(messages), (JUNK, messages[0][:-4], *bad))


def _influx(name: str, rows: pa.Table) -> FormatCase:
    lines = [line.encode() for line in to_line_protocol(table_of(name), rows).to_pylist()]
    return FormatCase("influx", (), tuple(lines), (JUNK, b"no field", b"t,a=b x= 5"))


def _mapped(name: str, rows: Rows, tags: Sequence[str], directory: Path) -> FormatCase:
    fields = [each for each in rows[0] if each not in (*tags, "time")]
    lines = ['[topics."json-mapped"]', f'table = "{table_of(name)}"', 'time = { path = "at.ns" }']
    lines += ["tags = { " + ", ".join(f'{tag} = "meta.{tag}"' for tag in tags) + " }"]
    lines += ['[topics."json-mapped".fields]', *(f'{field} = "values.{field}"' for field in fields)]
    (directory / "mapping.toml").write_text("\n".join(lines))
    messages = [
        json.dumps(
            {
                "meta": {tag: row[tag] for tag in tags if row[tag] is not None},
                "at": {"ns": row["time"]},
                "values": {field: row[field] for field in fields},
                "ignored": [1, {"deep": None}],
            }
        ).encode()
        for row in rows
    ]
    options = ("--mapping", str(directory / "mapping.toml"))
    return FormatCase("json", options, tuple(messages), (JUNK, messages[0][:-4], b'{"values": {}}'))


def _csv(name: str, rows: Rows, tags: Sequence[str]) -> FormatCase:
    columns = list(rows[0])
    lines = [",".join("" if row[name] is None else str(row[name]) for name in columns) for row in rows]
    messages = ["\n".join(lines[at : at + ROWS_A_MESSAGE]).encode() for at in range(0, len(lines), ROWS_A_MESSAGE)]
    options = ("--table", table_of(name), "--tags", ",".join(tags), "--columns", ",".join(columns))
    return FormatCase("csv", options, tuple(messages), (JUNK, b"1,2", b'"open'))


def _schema(rows: Rows, tags: Sequence[str], optional: Callable[[Any], Any] = lambda kind: kind) -> dict[str, Any]:
    fields: list[dict[str, Any]] = [{"name": tag, "type": ["null", "string"]} for tag in tags]
    fields.append({"name": "time", "type": "long"})
    fields += [{"name": name, "type": optional("double")} for name in rows[0] if name not in (*tags, "time")]
    return {"type": "record", "name": "Reading", "fields": fields}


def _encoded(schema: dict[str, Any], rows: Rows, frame: bytes = b"") -> list[bytes]:
    parsed, messages = fastavro.parse_schema(schema), []
    for row in rows:
        out = io.BytesIO(frame)
        out.seek(len(frame))
        fastavro.schemaless_writer(out, parsed, row)
        messages.append(out.getvalue())
    return messages


def _avro(name: str, rows: Rows, tags: Sequence[str], directory: Path) -> FormatCase:
    schema = _schema(rows, tags)
    (directory / "reading.avsc").write_text(json.dumps(schema))
    messages = _encoded(schema, rows)
    return _case(name, "avro", tags, messages, [messages[0] + b"\0"], "--schema-dir", str(directory / "reading.avsc"))


def _confluent_avro(name: str, rows: Rows, tags: Sequence[str], registry: SchemaRegistry) -> FormatCase:
    """In mid-topic the schema changes: other order, and doubles that may be null."""
    first, later = _schema(rows, tags), _schema(rows, tags, lambda kind: ["null", kind])
    later["fields"].reverse()
    half, messages = len(rows) // 2, []
    for schema, part in ((first, rows[:half]), (later, rows[half:])):
        messages += _encoded(schema, part, b"\0" + registry.register(schema).to_bytes(4, "big"))
    bad = [b"\0\0\0\1\xff" + messages[0][5:], messages[-1] + b"\0"]
    return _case(name, "confluent-avro", tags, messages, bad, "--registry", registry.url)


def _confluent_json(name: str, rows: pa.Table, tags: Sequence[str]) -> FormatCase:
    lines = [FRAME + line.encode() for line in to_json_lines(rows).to_pylist()]
    return _case(name, "confluent-json", tags, lines, [lines[0][5:]])


def _arrow(name: str, rows: pa.Table, tags: Sequence[str]) -> FormatCase:
    messages = []
    for at in range(0, rows.num_rows, ROWS_A_MESSAGE):
        part, sink = rows.slice(at, ROWS_A_MESSAGE).combine_chunks(), pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, part.schema) as writer:
            writer.write_table(part)
        messages.append(sink.getvalue().to_pybytes())
    return _case(name, "arrow", tags, messages, [messages[0][: len(messages[0]) // 2]])
