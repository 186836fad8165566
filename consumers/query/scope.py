"""Which names of a SELECT mean columns of a table, and which conditions hold for the table's rows. Pure.

`planner` and the modules of fragments ask here, so that all of them take a doubtful name for one of another table.
"""

from __future__ import annotations

import string
from collections.abc import Mapping
from dataclasses import dataclass

from sqlglot import exp

from headrace.schemas.tables import TIME_COLUMN, TableSchema

SOURCES_MAX = 32
"""Tables that one SELECT joins: of more no name is looked up, since each may be a column of any of them."""
_LOWER = str.maketrans(string.ascii_uppercase, string.ascii_lowercase)


def folded(name: str) -> str:
    """A name in the form in which DuckDB compares it: the case of letters beyond ASCII counts."""
    return name.translate(_LOWER)


def column_names(schema: TableSchema) -> tuple[str, ...]:
    """The columns of a table in the order in which `SELECT *` gives them: tags, time, fields."""
    return (*schema.tags, TIME_COLUMN, *(name for name, _ in schema.fields))


def select_of(table: exp.Table) -> exp.Select | None:
    """The SELECT whose FROM or JOIN names the table directly."""
    clause = table.parent
    select = clause.parent if isinstance(clause, exp.From | exp.Join) else None
    return select if isinstance(select, exp.Select) else None


def position_of(table: exp.Table) -> int | None:
    """Where the name of a table begins in the text of its tree; None where that is not known."""
    return _first_name(table).meta.get("start")


def set_position(table: exp.Table, position: int) -> None:
    """The tree is that of another text now."""
    _first_name(table).meta["start"] = position


def _first_name(table: exp.Table) -> exp.Expression:
    first: exp.Expression = table.args.get("db") or table.this
    return first


def rows_depend_on_each_other(select: exp.Select) -> bool:
    """True where leaving out a row that WHERE rejects changes which other rows are joined or sampled."""
    if select.args.get("sample") or any(
        source.args.get("sample") or source.args.get("pivots") for source in sources_of(select)
    ):
        return True
    return any(join.method.upper() in ("ASOF", "POSITIONAL") for join in select.args.get("joins") or ())


def sources_of(select: exp.Expression) -> list[exp.Expression]:
    """What a SELECT reads: each item of its FROM, with joins and laterals."""
    clause = select.args.get("from_") or select.args.get("from")
    first = [clause.this] if clause is not None else []
    return [*first, *(join.this for join in select.args.get("joins") or ()), *(select.args.get("laterals") or ())]


def joins_many(select: exp.Select) -> bool:
    """Whether it would take longer to find out what names in a SELECT mean than to read whole tables."""
    return len(select.args.get("joins") or ()) >= SOURCES_MAX


def conditions_of(select: exp.Select, table: exp.Table) -> list[exp.Expression]:
    """Conditions that hold for every row that is used of `table` in `select`."""
    where = select.args.get("where")
    found = [where.this] if where is not None else []
    for join in select.args.get("joins") or ():
        condition = join.args.get("on")
        kind, side, method = join.kind.upper(), join.side.upper(), join.method.upper()
        if condition is None or method or kind not in ("", "INNER", "CROSS", "OUTER"):
            continue
        # An ON condition of an outer join drops rows only of the side that may be null.
        if (not side and kind != "OUTER") or (side == "LEFT" and join.this is table):
            found.append(condition)
    return found


@dataclass(slots=True)
class Scope:
    """Decides whether a column name inside `select` means a column of `table`."""

    table: exp.Table
    select: exp.Select
    spelled: Mapping[str, str]

    @classmethod
    def of(cls, table: exp.Table, select: exp.Select, schema: TableSchema) -> Scope:
        """The scope of a table in the SELECT that names it."""
        return cls(table, select, {folded(name): name for name in column_names(schema)})

    def belongs(self, column: exp.Column) -> str | None:
        """The catalogue's spelling of the column, None when it is or may be one of another table."""
        name = self.names(column)
        return name if column.table or not self._shadowed(folded(column.name)) else None

    def names(self, column: exp.Column) -> str | None:
        """The same where a column comes before an item of the select list that has its name: within these items."""
        name = self.spelled.get(folded(column.name))
        if name is None or column.args.get("catalog"):
            return None
        known = self._qualified(column) if column.table else len(sources_of(self.select)) == 1
        return name if known else None

    def _qualified(self, column: exp.Column) -> bool:
        exposed = folded(self.table.alias_or_name)
        if sum(folded(source.alias_or_name) == exposed for source in sources_of(self.select)) != 1:
            return False
        database = folded(self.table.db) if not self.table.alias else ""
        return folded(column.table) == exposed and (not column.db or folded(column.db) == database)

    def _shadowed(self, name: str) -> bool:
        """True if the select list gives the name another meaning, which DuckDB also accepts in WHERE."""
        return any(isinstance(item, exp.Alias) and folded(item.alias) == name for item in self.select.expressions)
