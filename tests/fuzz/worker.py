"""One process of the fuzzer: `python -m tests.fuzz.worker SEED PROGRESS KIND:FIRST:COUNT…`.

A crash ends this process and not the test; the file PROGRESS then has the case. Whatever a case
raises but a HeadraceError ends it too.
"""

from __future__ import annotations

import faulthandler
import gzip
import io
import logging
import os
import random
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import structlog

from headrace.connectors.formats import FormatOptions, parse_buffer
from headrace.connectors.formats.file_blocks import iterate_file
from headrace.connectors.formats.interface import ParseResult
from headrace.connectors.formats.time_rules import as_timestamps
from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import Record
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import join_cluster
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.replication.actions import ApplyWrite, Ignored
from headrace.consumers.replication.admission import RowAdmission
from headrace.consumers.replication.founding import Founding
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_state import LogHasGap
from headrace.consumers.replication.heartbeat import StatusWatch
from headrace.consumers.replication.journal import JournalEntry
from headrace.consumers.replication.replica import Replica
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.consumers.store import Store, TableUnknown
from headrace.producers.cluster import Cluster, FixedRouting
from headrace.producers.writer import TableWriter, WriterSettings
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import format_headers
from headrace.schemas.group_changes import Slots
from headrace.schemas.messages import Gap, TableVersion, Write, decode_message
from headrace.schemas.payload import PayloadInvalid, decode_rows
from headrace.schemas.records import Create
from headrace.schemas.series import parse_series_key
from headrace.schemas.tables import ROW_TIME_MAX_NS, ROW_TIME_MIN_NS, FieldType, RecordName, TimeResolution
from tests.fuzz import topics
from tests.fuzz.mutation import TEXTS, Case, Messages, arrow_streams, mutated, parquet_files
from tests.poison import SCHEMA

HEADERS = tuple(format_headers())
TOPICS = Topics("c")
GROUP_RECORDS = 250


class ImpatientTables(SchemaLog):
    """A table log that refuses every record of an unknown version at once."""

    def accepts(self, record: RecordName, tables: Sequence[TableVersion], timeout_s: float) -> bool | None:
        """See SchemaLog."""
        del timeout_s
        return bool(super().accepts(record, tables, 0.0))


def check_rows(rows: pa.RecordBatch | pa.Table) -> None:
    """What was let in is safe to read: every value converts, every time is in range."""
    rows.validate(full=True)
    rows.to_pylist()
    assert all(ROW_TIME_MIN_NS <= time <= ROW_TIME_MAX_NS for time in rows.column("time").to_pylist())


def messages() -> Case:
    """Messages through replica and admission, without a store."""
    drawn, replicas = Messages(), fresh_replicas(0)
    admission = RowAdmission()

    def admitted(replica: Replica, action: ApplyWrite, number: int) -> None:
        try:
            rows = admission.admit(SCHEMA, action.write)
        except PayloadInvalid as error:
            replica.reject(Ignored.INVALID, error.message)
            return
        # In Python, and so only for a part of them.
        if number % 16 == 0:
            check_rows(rows)
        for key in rows.column(0).dictionary.to_pylist():
            parse_series_key(key)

    def case(chance: random.Random, number: int) -> None:
        value = drawn.draw(chance, number)
        for replica in replicas:
            try:
                for action in replica.apply(number, value, HEADERS):
                    if isinstance(action, ApplyWrite) and action.write.table == "pumps":
                        admitted(replica, action, number)
            except LogHasGap:
                continue
        if number % 1_000 == 999:
            assert all(replica.ignored == replicas[0].ignored for replica in replicas)
            assert all(replica.state.to_bytes() == replicas[0].state.to_bytes() for replica in replicas)
            replicas[:] = fresh_replicas(number + 1)

    return case


def fresh_replicas(number: int) -> list[Replica]:
    """One replica, or two that are compared for every eighth thousand of records."""

    def first_version_only(_offset: int, _digest: bytes, tables: tuple[TableVersion, ...]) -> bool:
        return all(each.schema_version == 1 for each in tables)

    def slots_of(_write: Write, slots_total: int) -> Slots:
        # Without a cluster that has slots nobody may ask. No HeadraceError: those end a case in silence.
        assert slots_total > 0
        return (0,)

    return [
        Replica(("n1",), knows_tables=first_version_only, slots_of=slots_of)
        for _ in range(2 if number // 1_000 % 8 == 0 else 1)
    ]


def groups() -> Case:
    """Messages through a group with its store: applied, sealed and read."""
    drawn, log = Messages(), MemoryLog()
    log.create_topic(TOPICS.table, {})
    tables = ImpatientTables(log, TOPICS)
    tables.ensure_database("plant")
    tables.ensure("plant", "pumps", ["pump"], {"flow": FieldType.FLOAT64, "note": FieldType.STRING})

    def case(chance: random.Random, number: int) -> None:
        values = [drawn.draw(chance, index) for index in range(GROUP_RECORDS)]
        values = [value for value in values if not is_gap(value)]
        with tempfile.TemporaryDirectory() as directory:
            store = Store.open(Path(directory), "n1")
            group = Group("n1", Founding(("n1",)), store, tables, ReplicationLimits(), lambda _group, _version: None)
            group.start()
            records = [Record("t", offset, number, None, value, HEADERS) for offset, value in enumerate(values)]
            group.enqueue([JournalEntry.of("n1", version, record) for version, record in enumerate(records, start=1)])
            try:
                applied = group.wait_for(lambda: group.applied.offset >= len(values) - 1, 120.0)
                assert applied, f"stopped: {group.health.reason}"
                group.store_jobs.drain()
                assert not group.health.reason, group.health.reason
                store.freeze(group.version + 1, 1, b"").run()
                with store.scan("plant", "pumps") as scan:
                    check_rows(scan.table)
            except TableUnknown:
                pass
            finally:
                group.stop()
                store.close()

    return case


def is_gap(value: bytes) -> bool:
    """Whether a record stops a group by design."""
    try:
        return isinstance(decode_message(value).body, Gap)
    except HeadraceError:
        return False


class WrittenRows:
    """A writer over a memory log, and a check of all that it acknowledged."""

    def __init__(self) -> None:
        self._log = MemoryLog()
        table = join_cluster(self._log, TOPICS, Create(("n1",), 1, 100))
        tables = SchemaLog(self._log, TOPICS)
        watch = StatusWatch(self._log, TOPICS)
        self._cluster = Cluster(self._log, TOPICS, FixedRouting(table), tables, watch, self._log.appender())
        self._tables = tables

    def write(self, rows: pa.Table, tags: Sequence[str], table: str) -> None:
        """Write rows; what reaches the log is admitted by every replica."""
        topic = TOPICS.forward("n1")
        before = self._log.describe(topic).end
        with TableWriter(self._cluster, "db", table, WriterSettings(resolution=TimeResolution.NS)) as writer:
            writer.write(rows, tags)
        counted = 0
        for record in self._log.topic(topic).records:
            if record.offset >= before:
                body = decode_message(record.value).body
                assert isinstance(body, Write)
                schema = self._tables.catalogue.at("db", table, body.schema_version)
                assert schema is not None
                counted += RowAdmission().admit(schema, body).num_rows
                check_rows(decode_rows(body.rows))
        assert counted == rows.num_rows, f"{counted} of {rows.num_rows} rows are in the log"
        self._log.trim(topic, self._log.describe(topic).end)


def parsed_by(form: str, data: bytes, options: FormatOptions, chance: random.Random) -> list[ParseResult]:
    """The result of the parser of buffers, or those of the one of files."""
    if form != "parquet" and chance.random() < 0.05:
        data = mutated(gzip.compress(data), chance)
        return [block.parsed for block in iterate_file(io.BytesIO(data), form, options)][:0]
    if chance.random() < 0.5:
        return [parse_buffer(form, data, options, keep_lines=True)]
    return [block.parsed for block in iterate_file(io.BytesIO(data), form, options, keep_lines=True)]


def parquet() -> Case:
    """Mutated Parquet files through the parser and a writer."""
    files = parquet_files()

    def case(chance: random.Random, number: int) -> None:
        del number
        data = mutated(chance.choice(files), chance)
        for parsed in parsed_by("parquet", data, FormatOptions(table="t", tags=("h", "d")), chance):
            rows = parsed.tables["t"]
            assert rows.num_rows + parsed.rejected.num_rows == parsed.lines
            check_rows(rows)
            WrittenRows().write(as_timestamps(rows.drop_columns(["__line"])), ["h", "d"], "t")

    return case


def arrow() -> Case:
    """Tables of mutated Arrow streams, as a caller of Python may have them, through a writer."""
    streams = arrow_streams()

    def case(chance: random.Random, number: int) -> None:
        del number
        try:
            with pa.ipc.open_stream(mutated(chance.choice(streams), chance)) as reader:
                rows = reader.read_all()
        # What Arrow itself refuses never reaches Headrace.
        except Exception:
            return
        WrittenRows().write(rows, chance.choice((["h", "d"], ["h"], [])), "t")

    return case


def text() -> Case:
    """Mutated lines of every text format through the parser and a writer."""

    def case(chance: random.Random, number: int) -> None:
        del number
        form = chance.choice(list(TEXTS))
        data = mutated(TEXTS[form] * chance.randint(1, 3), chance)
        options = FormatOptions() if form == "influx" else FormatOptions(table="t", tags=("h",))
        for parsed in parsed_by(form, data, options, chance):
            check_lines(form, data, parsed)
            written = WrittenRows()
            for name, rows in parsed.tables.items():
                check_rows(rows)
                tags = [column.name for column in rows.schema if pa.types.is_dictionary(column.type)]
                written.write(as_timestamps(rows.drop_columns(["__line"])), tags, name)

    return case


def check_lines(form: str, data: bytes, parsed: ParseResult) -> None:
    """Every line that is not blank or a comment is in a table or rejected, and none is in both."""
    physical = data.removeprefix(b"\xef\xbb\xbf").removesuffix(b"\n").split(b"\n")
    lines = [line.rstrip(b"\r").strip(b" \t") for line in physical]
    expected = {index for index, line in enumerate(lines) if line and not (form == "influx" and line[:1] == b"#")}
    if form == "json":
        # Elements of a document may share a line: they are counted. Only an array has more readings than lines.
        found = parsed.rows + parsed.rejected.num_rows
        assert found >= parsed.lines - (len(lines) - len(expected)), f"{found} of {parsed.lines} elements"
        assert found <= parsed.lines or b"[" in data, f"{found} of {parsed.lines} elements"
        return
    taken = {number for table in parsed.tables.values() for number in table["__line"].to_pylist()}
    rejected = set(parsed.rejected["line"].to_pylist())
    assert not taken & rejected
    # A quoted record may span lines, and the first line of CSV is its header.
    if b'"' not in data and form != "csv":
        assert expected <= taken | rejected, f"lost lines {sorted(expected - taken - rejected)}"


KINDS: dict[str, Callable[[], Case]] = {
    "messages": messages,
    "groups": groups,
    "parquet": parquet,
    "arrow": arrow,
    "text": text,
    **topics.KINDS,
}


def main(seed: str, progress: str, *parts: str) -> None:
    """Run the cases of each part, KIND:FIRST:COUNT; each is drawn from kind, seed and number alone."""
    faulthandler.enable()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    descriptor = os.open(progress, os.O_WRONLY | os.O_CREAT)
    for part in parts:
        kind, first, count = part.split(":")
        case = KINDS[kind]()
        for number in range(int(first), int(first) + int(count)):
            os.pwrite(descriptor, f"{kind}:{number}:1".ljust(40).encode(), 0)
            with suppress(HeadraceError):
                case(random.Random(f"{kind}/{seed}/{number}"), number)
    os.pwrite(descriptor, b"done".ljust(40), 0)


if __name__ == "__main__":
    main(*sys.argv[1:])
