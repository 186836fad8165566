"""Resolves the names in a statement to tables.

A table is `database.table`; its bare name suffices where only one database has it. SQL ignores the case of
names, and the catalogue has no two names that differ only by case, so resolving folds case. A bare name that
a WITH clause defines, and that no database has, is not a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlglot import exp

from headrace.consumers.query.guard import TableName
from headrace.consumers.query.query_errors import UnknownTable
from headrace.schemas.near_names import near_tables

TableKey = tuple[str, str]
Tables = Sequence[TableKey]
"""Database and table in the catalogue's spelling."""


@dataclass(frozen=True, slots=True)
class Resolved:
    """The tables of a statement by folded path; `shadowed` are those whose bare name is also a CTE's."""

    by_path: Mapping[tuple[str, ...], TableKey]
    shadowed: frozenset[TableKey]

    @property
    def tables(self) -> tuple[TableKey, ...]:
        """Every table once, in order of name."""
        return tuple(sorted(set(self.by_path.values())))

    @property
    def bare(self) -> frozenset[TableKey]:
        """The tables that the statement names without their database."""
        return frozenset(key for path, key in self.by_path.items() if len(path) == 1)


def resolve(names: Sequence[TableName], cte_names: frozenset[str], known: Iterable[TableKey]) -> Resolved:
    """The tables of `names`. Raises UnknownTable, with similar names, for one of no table or of several."""
    tables = sorted(known)
    by_path: dict[tuple[str, ...], TableKey] = {}
    shadowed: set[TableKey] = set()
    for name in names:
        path = fold(name.path)
        found = _candidates(path, tables)
        # Inside the CTE of that name, and before it, the same name is the table: both meanings may occur.
        is_cte = len(path) == 1 and path[0] in cte_names
        if is_cte and len(found) != 1:
            continue
        if len(found) != 1:
            raise _unknown(name.path, found, tables)
        by_path[path] = found[0]
        if is_cte:
            shadowed.add(found[0])
    return Resolved(by_path, frozenset(shadowed))


def fold(path: Iterable[str]) -> tuple[str, ...]:
    """A path in the form in which SQL compares it."""
    return tuple(part.lower() for part in path)


def sql_path(path: Iterable[str]) -> str:
    """A path as SQL has it, each name quoted that would be something else without it."""
    return ".".join(exp.to_identifier(part).sql("duckdb") for part in path)


def _candidates(path: tuple[str, ...], tables: Sequence[TableKey]) -> list[TableKey]:
    if len(path) == 1:
        return [key for key in tables if key[1].lower() == path[0]]
    return [key for key in tables if fold(key) == path]


def _unknown(path: tuple[str, ...], found: Sequence[TableKey], tables: Sequence[TableKey]) -> UnknownTable:
    shown = ".".join(path)
    if found:
        return UnknownTable(
            f"several databases have a table {shown!r}", action=f"write {' or '.join(map(sql_path, found))}"
        )
    near = near_tables(path, tables, sql_path)
    if near:
        return UnknownTable(f"there is no table {shown!r}", action=f"did you mean {', '.join(near)}?")
    return UnknownTable(
        f"there is no table {shown!r}",
        action="SHOW TABLES lists what there is" if tables else "nothing has been written yet",
    )
