"""Writes a batch of line requests: parses them together, and appends their rows to the tables they name.

One thread owns it. `scanned_max` bounds how many lines of one request are read one by one: a request with more raises
ScansRefused, and nothing of the batch is written.
"""

from __future__ import annotations

from collections import OrderedDict, defaultdict
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
from headrace.producers.router import RowTooLarge
from headrace.producers.writer import TableWriter, WriterSettings, fields_of
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import (
    COLUMNS_MAX,
    TIME_COLUMN,
    FieldType,
    SchemaError,
    TableSchema,
    TypeClash,
    widened,
)

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
        append = self._append if requests[0].whole else self._append_fitting
        writers: list[TableWriter] = []
        for name, rows in tables.items():
            tables[name], refused = append(database, name, rows)
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

    def _append_fitting(self, database: str, table: str, rows: pa.Table) -> tuple[pa.Table, list[pa.Table]]:
        """As `_append`; a row that is too large for a message costs its line alone."""
        try:
            return self._append(database, table, rows)
        except RowTooLarge as error:
            if rows.num_rows == 1:
                return rows.slice(0, 0), [rejected_lines(rows, str(error))]
        # What is queued already of many rows is queued again, and replaces itself.
        half = rows.num_rows // 2
        parts = [self._append_fitting(database, table, part) for part in (rows.slice(0, half), rows.slice(half))]
        kept = pa.concat_tables((part for part, _ in parts), promote_options="default")
        return kept, [each for _, refused in parts for each in refused]

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
            unfit = _unfit_columns(tags, fields_of(bare.schema, tags), known)
            if not unfit:
                return rows.slice(0, 0), [rejected_lines(rows, str(error))]
            rows, refused = _without(rows, unfit)
            kept, others = self._append(database, table, rows, none=none)
            return kept, [*refused, *others]
        return rows, []

    def _writer(self, database: str, table: str) -> TableWriter:
        key = database, table
        if key not in self._writers:
            if len(self._writers) >= WRITERS_MAX:
                # It may have rows of this batch: what keeps them from the log is an error of the batch.
                self._writers.popitem(last=False)[1].close()
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


def _unfit_columns(
    tags: Iterable[str], fields: Mapping[str, FieldType], known: TableSchema
) -> Mapping[str, Sequence[str]]:
    """The columns that a table cannot have, by the reason: another one has the name in another case, role or type, or
    it has as many as it may.
    """
    where, types = f"{known.database}.{known.table}", known.field_types()
    spellings = {name.lower(): name for name in (*known.tags, *types)}
    found = defaultdict[str, list[str]](list)
    for name, kind in (*((tag, None) for tag in tags), *fields.items()):
        other, held = spellings.get(name.lower()), types.get(name)
        if other is None and len(spellings) < COLUMNS_MAX:
            spellings[name.lower()] = name
        elif other is None:
            found[f"{where} has {COLUMNS_MAX:,} columns, and that is the most"].append(name)
        elif other != name:
            found[f"columns {other!r} and {name!r} of {where} differ only in case"].append(name)
        elif (kind is None) != (held is None):
            roles = "a field and the line has it as a tag" if held else "a tag and the line has it as a field"
            found[f"column {name!r} of {where} is {roles}"].append(name)
        elif kind and held and widened(held, kind) is None:
            found[f"field {name!r} of {where} is {held} and the line has {kind}"].append(name)
    return found


def _without(rows: pa.Table, unfit: Mapping[str, Sequence[str]]) -> tuple[pa.Table, list[pa.Table]]:
    """(the rows that have no value in such columns, with the columns of which they have some; the others)."""
    good, rejected = pa.repeat(pa.scalar(value=True), rows.num_rows), list[pa.Table]()
    for reason, names in unfit.items():
        before = good
        for name in names:
            good = pc.and_(good, pc.is_null(rows.column(name)))
        numbers = rows.select([MESSAGE_COLUMN, LINE_COLUMN])
        rejected.append(rejected_lines(numbers.filter(pc.and_not(before, good)), reason))
    rows = rows.filter(good)
    # What rejected rows alone have is no column of the table.
    empty = [name for name in rows.column_names if 0 < rows.column(name).null_count == rows.num_rows]
    return rows.drop_columns(empty), rejected


def _close(writer: TableWriter) -> None:
    # Everything that it wrote was flushed, or its error was reported with the batch.
    try:
        writer.close()
    except HeadraceError as error:
        _log.warning("a writer was closed with an error", table=writer.table, error=str(error))
