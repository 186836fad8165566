"""Which statements want the first rows or groups by time, such as the newest ten, and the part of a table to look at. Pure.

Rows of a segment are sorted by series, so only a range of time leaves segments out. If the rows of such a range are as
many as the statement wants, no row outside it can be among them: the statement orders by time, and each row or group
has one time. Otherwise a wider range is read, and at last the whole table.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import sqlglot
from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.tokenizer_core import TokenType

from headrace.consumers.query.constants import moment_sql
from headrace.consumers.query.planner import PLANNED_BYTES_MAX, ScanPlan
from headrace.consumers.query.predicates import DAY_NS, MICROSECOND_NS, SLACK_NS, Evaluate, time_measure
from headrace.consumers.query.scope import Scope, folded, rows_depend_on_each_other, sources_of
from headrace.consumers.query.sql_nodes import ROW_FUNCTIONS, is_of_row, quoted_column, sql_of
from headrace.consumers.query.table_source import TableExtent
from headrace.schemas.tables import TIME_COLUMN, TableSchema

WANTED_ROWS_MAX = 10_000
"""A statement that wants more rows is run at once."""
TABLE_ROWS_MIN = 200_000
"""Sealed rows of a table: fewer are read sooner than a range is tried."""
SURPLUS, GROWTH = 4, 8
"""A first range has this many times the rows that are wanted, by the mean rate of the table. Each next one is this many
times as wide."""
SPAN_NS_MAX = 3_660 * DAY_NS
"""Keys of longer spans leave nothing out."""
_ORDER, _LIMIT = (re.compile(pattern, re.IGNORECASE) for pattern in (r"\bORDER\s+BY\b", r"\bLIMIT\b"))
_CLAUSES = frozenset({"kind", "expressions", "from_", "where", "group", "having", "order", "limit", "offset"})
_BEHIND_WHERE = frozenset({TokenType.GROUP_BY, TokenType.HAVING, TokenType.ORDER_BY, TokenType.LIMIT, TokenType.OFFSET})
_OPENING = frozenset({TokenType.L_PAREN, TokenType.L_BRACKET, TokenType.L_BRACE})
_CLOSING = frozenset({TokenType.R_PAREN, TokenType.R_BRACKET, TokenType.R_BRACE})
HOUR_NS = 3_600_000_000_000


def may_want_top(sql: str) -> bool:
    """Whether a text has the form of such a statement. A comment or an unusual text in it is not looked into."""
    # Two searches: one pattern for both begins again at each ORDER BY, which took seconds for a long text of them.
    if len(sql) > PLANNED_BYTES_MAX or _ORDER.search(sql) is None or _LIMIT.search(sql) is None:
        return False
    return not any(mark in sql for mark in ("--", "/*", "$$", "\\"))


@dataclass(frozen=True, slots=True)
class TopRows:
    """A statement that wants the first rows by a key, which is the time of a row, or begins a span around it.

    It shows `limit` rows behind `offset` others. `key` is the SQL of the key and `column` that of time. `width_ns` is
    the longest span, 0 for time itself. A row of the result is a group where `grouped`. The condition of WHERE is in
    [begin, end) of the text; of a statement without, both are where one belongs.
    """

    sql: str
    limit: int
    offset: int
    newest: bool
    key: str
    column: str
    width_ns: int
    grouped: bool
    begin: int
    end: int

    def until(self, bound_ns: int) -> str:
        """The statement over the rows whose key is at or behind a bound, seen from the end at which it begins."""
        conditions = [f"{self.key} {'>=' if self.newest else '<='} {moment_sql(bound_ns)}"]
        if self.width_ns:
            # DuckDB compares this one while it reads a segment. Rollups know of hours only.
            unit_ns = HOUR_NS if self.width_ns >= HOUR_NS else MICROSECOND_NS
            near_ns = bound_ns - SLACK_NS if self.newest else bound_ns + self.width_ns + SLACK_NS + unit_ns
            sign = ">=" if self.newest else "<"
            conditions.append(f"{self.column} {sign} {moment_sql(near_ns // unit_ns * unit_ns)}")
        condition, given = " AND ".join(conditions), self.sql[self.begin : self.end]
        clause = f" WHERE {condition} " if self.begin == self.end else f" ({given}) AND {condition} "
        return self.sql[: self.begin] + clause + self.sql[self.end :]


def top_rows(
    sql: str, tree: exp.Expression, table: exp.Table, schema: TableSchema, evaluate: Evaluate
) -> TopRows | None:
    """What a statement over one table wants, by its tree; None for any other statement."""
    if not isinstance(tree, exp.Select) or not _is_plain(tree, table):
        return None
    limit, offset = _count(tree.args.get("limit")), _count(tree.args.get("offset"))
    if not limit or offset is None or limit + offset > WANTED_ROWS_MAX:
        return None
    first = tree.args["order"].expressions[0]
    key = _meant(first.this, tree)
    scope = Scope.of(table, tree, schema)
    measure = time_measure(key, scope.names, evaluate) if key is not None and is_of_row(key) else None
    places = _places(sql)
    if key is None or measure is None or measure[0] or measure[1] > SPAN_NS_MAX or places is None:
        return None
    grouped = tree.args.get("group") is not None
    if not (_has_key(tree, key, scope) if grouped else _is_of_rows(tree)):
        return None
    column = exp.Column(this=quoted_column(TIME_COLUMN).this, table=exp.to_identifier(table.alias_or_name, quoted=True))
    written = key.transform(lambda node: column.copy() if isinstance(node, exp.Column) else node)
    begin, end = places
    newest = bool(first.args.get("desc"))
    return TopRows(sql, limit, offset, newest, sql_of(written), sql_of(column), measure[1], grouped, begin, end)


def bounds_ns(top: TopRows, plan: ScanPlan, extent: TableExtent) -> list[int]:
    """The bounds to try, the narrowest range first. Behind the last of them the whole table is read."""
    begin_ns = extent.oldest_ns if plan.start_ns is None else max(extent.oldest_ns, plan.start_ns)
    end_ns = extent.newest_ns if plan.end_ns is None else min(extent.newest_ns, plan.end_ns)
    span_ns, table_ns = end_ns - begin_ns, extent.newest_ns - extent.oldest_ns
    if plan.newest is not None or extent.rows < TABLE_ROWS_MIN or span_ns <= 0:
        return []
    rows = top.limit + top.offset
    first_ns = rows * top.width_ns if top.grouped and top.width_ns else SURPLUS * rows * table_ns // extent.rows
    # Of rows with some tags nobody knows how many there are.
    widths_ns = [] if plan.tags else [max(first_ns, SLACK_NS)]
    width_ns = max(extent.slice_ns, *(GROWTH * each for each in widths_ns), first_ns)
    while width_ns < span_ns:
        widths_ns.append(width_ns)
        width_ns *= GROWTH
    # One that is nearly the whole table is no gain.
    tried = [each for each in widths_ns if GROWTH * each <= span_ns]
    return [end_ns - each if top.newest else begin_ns + each for each in tried]


def _is_plain(select: exp.Select, table: exp.Table) -> bool:
    """Whether a SELECT reads one table, has an order, and none of the parts that compare rows with each other."""
    if {name for name, value in select.args.items() if value} - _CLAUSES or select.args.get("kind"):
        return False
    if not select.args.get("order") or len(sources_of(select)) != 1 or rows_depend_on_each_other(select):
        return False
    extra = {name for name, value in table.args.items() if value} - {"this", "db", "alias"}
    return not (extra or table.alias_column_names or select.find(exp.Window, exp.Subquery, exp.Unnest)) and (
        len(list(select.find_all(exp.Select))) == 1
    )


def _count(clause: exp.Expression | None) -> int | None:
    """The number of LIMIT or OFFSET, 0 without one; None if it is none."""
    if clause is None:
        return 0
    number = clause.expression
    plain = not {name for name, value in clause.args.items() if value} - {"expression"}
    is_number = plain and isinstance(number, exp.Literal) and not number.is_string
    return int(number.this) if is_number and str(number.this).isdigit() else None


def _meant(item: exp.Expression, select: exp.Select) -> exp.Expression | None:
    """What an item of ORDER BY or GROUP BY means: an item of the select list, by its number or name, or itself."""
    listed = select.expressions
    if isinstance(item, exp.Literal):
        number = int(item.this) if not item.is_string and str(item.this).isdigit() else 0
        is_known = 1 <= number <= len(listed) and not any(each.is_star for each in listed)
        return listed[number - 1].unalias() if is_known else None
    if isinstance(item, exp.Column) and not item.table:
        named = [each for each in listed if isinstance(each, exp.Alias) and folded(each.alias) == folded(item.name)]
        if named:
            return named[0].this if len(named) == 1 else None
    return item


def _has_key(select: exp.Select, key: exp.Expression, scope: Scope) -> bool:
    """Whether all rows of a group have one key: it is grouped by it, or by time itself."""
    group = select.args["group"]
    if {name for name, value in group.args.items() if value} - {"expressions", "all"}:
        return False
    if group.args.get("all"):
        return any(item.unalias() == key for item in select.expressions)
    return any(_is_key(item, select, key, scope) for item in group.expressions)


def _is_key(item: exp.Expression, select: exp.Select, key: exp.Expression, scope: Scope) -> bool:
    # A name of a column and of an item means the one or the other: both must do.
    meant = [_meant(item, select)]
    if isinstance(item, exp.Column) and folded(item.name) in scope.spelled:
        meant.append(item)
    return all(
        each is not None and (each == key or (isinstance(each, exp.Column) and scope.names(each) == TIME_COLUMN))
        for each in meant
    )


def _is_of_rows(select: exp.Select) -> bool:
    """Whether each row of the result is one of the table."""
    functions = select.find_all(exp.AggFunc, exp.Anonymous)
    known = all(isinstance(each, exp.Anonymous) and each.name.lower() in ROW_FUNCTIONS for each in functions)
    return known and not select.args.get("having")


def _places(sql: str) -> tuple[int, int] | None:
    """Where the condition of WHERE begins and ends in a text that has one SELECT."""
    try:
        tokens = sqlglot.tokenize(sql, dialect="duckdb")
    except SqlglotError:
        return None
    depth, begin = 0, None
    for token in tokens:
        kind = token.token_type
        depth += (kind in _OPENING) - (kind in _CLOSING)
        if depth == 0 and kind is TokenType.WHERE:
            begin = token.end + 1
        elif depth == 0 and kind in _BEHIND_WHERE:
            return (token.start if begin is None else begin), token.start
    return None
