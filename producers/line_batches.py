"""Writes a batch of line requests: parses them together, and appends their rows to the tables they name.

One thread owns it. `scanned_max` bounds how many lines of one request are read one by one: a request with more raises
ScansRefused, and nothing of the batch is written.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa
import pyarrow.compute as pc
import structlog

from headrace.connectors.formats.interface import LINE_COLUMN, MESSAGE_COLUMN, NS_PER_UNIT, FormatOptions
from headrace.connectors.formats.time_rules import TimeRules, as_timestamps, instant, looks_like
from headrace.producers.cluster import Cluster
from headrace.producers.declared import DeclaredTags, DeclaredTypes
from headrace.producers.line_requests import (
    REFUSED_SHOWN,
    LineAnswer,
    LineRequest,
    answers,
    parse_requests,
    rejected_lines,
)
from headrace.producers.writer import TableWriter, WriterSettings
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import TIME_COLUMN, SchemaError, TypeClash

WRITERS_MAX = 256
"""Tables whose writer is kept open; the one that was not used for longest is closed."""
_log = structlog.get_logger(__name__)


class LinesRefused(HeadraceError):
    """Lines of a request that is written whole or not at all; nothing of it was written."""

    exit_code = 3

    def __init__(self, message: str, answer: LineAnswer) -> None:
        super().__init__(message, action="correct these lines")
        self.answer = answer


class LineBatches:
    """See the module."""

    def __init__(self, cluster: Cluster, settings: WriterSettings, scanned_max: int | None) -> None:
        self._cluster = cluster
        self._settings = settings
        self._scanned_max = scanned_max
        self._writers: OrderedDict[tuple[str, str], TableWriter] = OrderedDict()

    def write(self, requests: Sequence[LineRequest]) -> list[LineAnswer]:
        """Write requests with one `batch_key`, and wait for the log.

        Lines whose table or columns cannot be are refused, and the others are written. Raises ScansRefused,
        LinesRefused, WriteFailed, WriteUnknown and QuorumTimeout.
        """
        database, catalogue = requests[0].database, self._cluster.tables.catalogue
        options = FormatOptions(
            declared=DeclaredTypes(catalogue, database),
            declared_tags=DeclaredTags(catalogue, database),
            explained_max=REFUSED_SHOWN,
            scanned_max=self._scanned_max,
        )
        parsed = parse_requests(requests, options)
        tables, rejected = dict[str, pa.Table](), [parsed.rejected]
        for name, rows in parsed.tables.items():
            tables[name], refused = self._fitting(database, name, rows)
            rejected += refused
            self._note_unit(requests[0], name, tables[name])
        tables = _by_first_line(tables)
        # Such a request is alone in its batch (`GroupWriter._take`).
        if requests[0].whole:
            self._check_whole(database, tables, rejected, requests)
        writers: list[TableWriter] = []
        for name, rows in tables.items():
            tables[name], refused = self._append(database, name, rows)
            rejected += refused
            if tables[name].num_rows:
                writers.append(self._writer(database, name))
        # One wait for all tables: their messages are in the log's queue already.
        offsets = dict[str, int]()
        for writer in writers:
            for topic, offset in writer.flush().items():
                offsets[topic] = max(offset, offsets.get(topic, -1))
        found = answers(requests, list(tables.values()), pa.concat_tables(rejected))
        for answer in found:
            answer.offsets = offsets if answer.rows else {}
        return found

    def close(self) -> None:
        """Close the writers."""
        for writer in self._writers.values():
            _close(writer)

    def _fitting(self, database: str, table: str, rows: pa.Table) -> tuple[pa.Table, list[pa.Table]]:
        """(rows whose times the table can have, the others as rejected lines)."""
        schema = self._cluster.tables.catalogue.newest(database, table)
        rejected: list[pa.Table] = []
        for mask, reason in TimeRules(table, self._settings.resolution_of(schema), any_time=True).refusals(rows):
            rejected.append(rejected_lines(rows.filter(pa.array(mask)), reason))
            rows = rows.filter(pa.array(~mask))
        return rows, rejected

    def _note_unit(self, request: LineRequest, table: str, rows: pa.Table) -> None:
        """Log that the times of a table which is about to be made look like another unit than that of its request."""
        # Once: clients of InfluxDB that forget their precision are answered as there, and see no row of this year.
        is_new = self._cluster.tables.catalogue.newest(request.database, table).version == 0
        if not is_new or not rows.num_rows or request.unit is None:
            return
        time_ns = rows.column(TIME_COLUMN)[0].as_py()
        unit = looks_like(time_ns, NS_PER_UNIT[request.unit])
        if unit not in (None, request.unit):
            _log.warning(
                "the times of a new table look like another unit",
                table=f"{request.database}.{table}",
                time=instant(time_ns),
                precision=request.unit,
                looks_like=unit,
            )

    def _check_whole(
        self,
        database: str,
        tables: Mapping[str, pa.Table],
        rejected: Sequence[pa.Table],
        requests: Sequence[LineRequest],
    ) -> None:
        """Raises LinesRefused unless all lines of the only request can be written; none of them is."""
        refused = list(rejected)
        for name, rows in tables.items():
            # Rows that are none extend the schema, or say why that cannot be.
            _, others = self._append(database, name, rows, none=True)
            refused += others
        (found,) = answers(requests, list(tables.values()), pa.concat_tables(refused))
        if found.refused:
            first = found.refused[0]
            raise LinesRefused(f"line {first.line}: {first.reason}", replace(found, rows=0))

    def _append(
        self, database: str, table: str, rows: pa.Table, *, none: bool = False
    ) -> tuple[pa.Table, list[pa.Table]]:
        """(rows that are queued, the others as rejected lines); `none`: those that would be."""
        if not rows.num_rows:
            return rows, []
        # A time that looks like another unit is one that a device has sent: line protocol names the unit.
        bare = as_timestamps(rows.drop_columns([MESSAGE_COLUMN, LINE_COLUMN]))
        tags = [column.name for column in bare.schema if pa.types.is_dictionary(column.type)]
        try:
            self._writer(database, table).write(bare.slice(0, 0) if none else bare, tags)
        except (SchemaError, TypeClash) as error:
            # Nothing of them is queued, and lines without the columns at fault are good.
            known = self._cluster.tables.catalogue.newest(database, table)
            odd = _odd_columns(bare.column_names, (*known.tags, *(name for name, _ in known.fields)))
            good = _without(bare, odd)
            kept, others = self._append(database, table, rows.filter(good).drop_columns(odd), none=none)
            return kept, [rejected_lines(rows.filter(pc.invert(good)), str(error)), *others]
        return rows, []

    def _writer(self, database: str, table: str) -> TableWriter:
        key = database, table
        if key not in self._writers:
            if len(self._writers) >= WRITERS_MAX:
                _close(self._writers.popitem(last=False)[1])
            self._writers[key] = TableWriter(self._cluster, database, table, self._settings)
        self._writers.move_to_end(key)
        return self._writers[key]


def _by_first_line(tables: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """The tables, by their first lines where names differ only in case: the first of them is made, as of columns."""
    if len({name.lower() for name in tables}) == len(tables):
        return tables
    return dict(sorted(tables.items(), key=lambda item: _first_line(item[1])))


def _first_line(rows: pa.Table) -> tuple[int, int]:
    """The first request that has rows of a table, and its first line of them."""
    if not rows.num_rows:
        return 0, 0
    requests = rows.column(MESSAGE_COLUMN)
    first = pc.min(requests)
    return first.as_py(), pc.min(rows.column(LINE_COLUMN).filter(pc.equal(requests, first))).as_py()


def _odd_columns(names: Sequence[str], known: Iterable[str]) -> list[str]:
    """Columns that differ from a known one, or an earlier one, only in case."""
    first = {name.lower(): name for name in known}
    return [name for name in names if first.setdefault(name.lower(), name) != name]


def _without(rows: pa.Table, columns: Sequence[str]) -> pa.ChunkedArray | pa.Array:
    """Which rows have no value in any of these columns; no row if there are no such columns."""
    good = pa.repeat(pa.scalar(bool(columns)), rows.num_rows)
    for name in columns:
        good = pc.and_(good, pc.is_null(rows.column(name)))
    return good


def _close(writer: TableWriter) -> None:
    # Everything that it wrote was flushed, or its error was reported with the batch.
    try:
        writer.close()
    except HeadraceError as error:
        _log.warning("a writer was closed with an error", table=writer.table, error=str(error))
