"""Divides a statement into what members of other groups compute and what runs here. Pure.

Each SELECT that aggregates one table becomes a fragment with partial aggregates. A table that one other SELECT names
gives rows, without those that its WHERE rejects. The text of a statement changes only where a divided SELECT is.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from sqlglot import exp

from headrace.consumers.query.guard import Statement
from headrace.consumers.query.parameters import READER, BoundStatement
from headrace.consumers.query.partial_plan import DividedSelect, Span, divide, span_of
from headrace.consumers.query.planner import Parsed, ScanPlan, combine, occurrence_of, path_of, tree_of
from headrace.consumers.query.predicates import Evaluate, mark_texts
from headrace.consumers.query.row_fragments import RowFragment, is_filter, row_fragment
from headrace.consumers.query.scope import joins_many, select_of, sources_of
from headrace.consumers.query.sql_nodes import sql_of
from headrace.consumers.query.table_names import Resolved, TableKey
from headrace.schemas.tables import TableSchema

_PARAMETER_PREFIX = "p"
_NUMBER = re.compile(r"(\d+)$")


@dataclass(frozen=True, slots=True)
class PartialPart:
    """A SELECT of a statement that is divided: its place, its parts, and what it reads of its table."""

    key: TableKey
    span: Span
    divided: DividedSelect
    plan: ScanPlan


@dataclass(frozen=True, slots=True)
class Distribution:
    """The divided SELECTs of a statement in the order of their places, and what is read of the other tables."""

    parts: tuple[PartialPart, ...]
    plans: Mapping[TableKey, ScanPlan]
    rows: Mapping[TableKey, RowFragment]

    def spliced(self, sql: str, texts: Sequence[str]) -> str:
        """A statement with these texts in place of its divided SELECTs."""
        for part, text in reversed(list(zip(self.parts, texts, strict=True))):
            # Behind a line break: a comment that begins before the place ends there.
            sql = f"{sql[: part.span.start]}{text}\n{sql[part.span.end :]}"
        return sql


def distribute(
    statement: Statement,
    resolved: Resolved,
    schemas: Mapping[TableKey, TableSchema],
    evaluate: Evaluate,
    texts: Mapping[str, str] = MappingProxyType({}),
    parsed: Parsed | None = None,
    *,
    partial: bool = True,
) -> Distribution | None:
    """What of a statement others can do; None where it is not understood, and all rows are fetched.

    `partial`: aggregates are divided.
    """
    if statement.described or statement.verb or resolved.shadowed:
        return None
    with tree_of(statement, texts, parsed) as tree:
        if tree is None:
            return None
        mark_texts(tree, texts)
        try:
            return _distribution(statement.sql, tree, resolved, schemas, evaluate, partial=partial)
        except RecursionError:
            return None


def _distribution(
    sql: str,
    tree: exp.Expression,
    resolved: Resolved,
    schemas: Mapping[TableKey, TableSchema],
    evaluate: Evaluate,
    *,
    partial: bool,
) -> Distribution:
    parts, others = list[PartialPart](), dict[TableKey, list[exp.Table]]()
    for table in tree.find_all(exp.Table):
        key = resolved.by_path.get(path_of(table))
        if key is None:
            continue
        part = _partial(sql, tree, table, key, schemas[key], evaluate) if partial else None
        if part is None:
            others.setdefault(key, []).append(table)
        else:
            parts.append(part)
    plans = {
        key: combine([occurrence_of(tree, table, schemas[key], evaluate) for table in tables], schemas[key])
        for key, tables in others.items()
    }
    rows = {key: _rows(tables[0], schemas[key]) for key, tables in others.items() if len(tables) == 1}
    return Distribution(tuple(sorted(parts, key=lambda part: part.span.start)), plans, rows)


def _partial(
    sql: str, tree: exp.Expression, table: exp.Table, key: TableKey, schema: TableSchema, evaluate: Evaluate
) -> PartialPart | None:
    select = select_of(table)
    divided = None if select is None else divide(select, table, schema)
    span = None if select is None or divided is None else span_of(sql, select, table)
    if divided is None or span is None:
        return None
    return PartialPart(key, span, divided, combine([occurrence_of(tree, table, schema, evaluate)], schema))


def only_filters(statement: Statement, parsed: Parsed | None = None) -> bool:
    """Whether a statement gives rows of its only table, each by itself; see `is_filter`."""
    if statement.explain or statement.verb or statement.has_subquery:
        return False
    with tree_of(statement, {}, parsed) as tree:
        return isinstance(tree, exp.Select) and isinstance(sources_of(tree)[0], exp.Table) and is_filter(tree)


def _rows(table: exp.Table, schema: TableSchema) -> RowFragment:
    select = select_of(table)
    if select is None or table.alias_column_names or joins_many(select):
        return RowFragment()
    return row_fragment(select, table, schema)


class NamedParameters:
    """Writes SQL that reads parameters by name, instead of from variables of this session, and keeps their values."""

    def __init__(self, bound: BoundStatement) -> None:
        self._bound = bound
        self.values: dict[str, object] = {}

    def sql(self, node: exp.Expression) -> str:
        """The SQL of an expression."""
        copy = exp.Paren(this=node.copy())
        for each in list(copy.find_all(exp.Anonymous)):
            if each.name.lower() == READER:
                number = _NUMBER.search(each.expressions[0].name)
                assert number is not None, each
                name = f"{_PARAMETER_PREFIX}{number[1]}"
                self.values[name] = self._bound.values[int(number[1])]
                each.replace(exp.Placeholder(this=name))
        return sql_of(copy.this)
