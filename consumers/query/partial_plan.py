"""Divides a SELECT that aggregates one table into fragments and a final statement. Pure.

A fragment computes partial aggregates where rows are, as a table of keys and plain columns (see `aggregates`). The
final SELECT has the names, the conditions, the order and the limit of the original, and reads the tables of all
fragments. A SELECT is divided only if every part of it is understood; else its rows are fetched, as before.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import sqlglot
from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

from headrace.consumers.query.aggregates import divided, is_aggregate
from headrace.consumers.query.scope import folded, position_of
from headrace.consumers.query.sql_nodes import is_of_row, parsed_expression, quoted_column, sql_of
from headrace.schemas.tables import TIME_COLUMN, TableSchema

KEY_PREFIX = "__key_"
PARTIAL_PREFIX = "__partial_"
_CLAUSES = frozenset(
    {"kind", "hint", "expressions", "from_", "where", "group", "having", "order", "limit", "offset", "distinct"}
)
_QUOTED = "quoted"
_COARSER = (exp.DateBin, exp.TimestampTrunc, exp.DateTrunc, exp.Cast)
"""What makes keys of time that many rows share."""


class _NotDivisible(Exception):
    """A part of a SELECT that is not understood. Never leaves this module."""


@dataclass(frozen=True, slots=True)
class DividedSelect:
    """A SELECT in its two parts.

    `columns` are those of the fragment, by name, and `partials` their expressions over the rows of the table; the
    first `keys` of them are keys. `condition` is that of WHERE. `names` are the result's: None where the original gives
    an expression no name.
    """

    columns: tuple[str, ...]
    partials: tuple[exp.Expression, ...]
    keys: int
    names: tuple[str | None, ...]
    condition: exp.Expression | None
    _final: exp.Select

    @property
    def is_coarse(self) -> bool:
        """Whether many rows have the same keys: none of them is as fine as time itself."""
        return all(_is_within(column, _COARSER) for key in self.partials[: self.keys] for column in _times(key))

    def fragment(self, table: str, write: Callable[[exp.Expression], str] = sql_of) -> str:
        """SQL of the fragment over a table, by its SQL name; `write` gives the SQL of an expression."""
        listed = ", ".join(f'{write(each)} AS "{name}"' for name, each in zip(self.columns, self.partials, strict=True))
        where = f" WHERE {write(self.condition)}" if self.condition is not None else ""
        by = ", ".join(str(number) for number in range(1, self.keys + 1))
        return f"SELECT {listed} FROM {table}{where}{f' GROUP BY {by}' if by else ''}"

    def final(self, table: str, names: Sequence[str]) -> str:
        """SQL of the final statement over the rows of all fragments, its columns named as given."""
        select = self._final.copy()
        select.set("expressions", [_named(item, name) for item, name in zip(select.expressions, names, strict=True)])
        return sql_of(select.from_(table, dialect="duckdb"))


def divide(select: exp.Select, table: exp.Table, schema: TableSchema) -> DividedSelect | None:
    """The parts of a SELECT whose only source is a table, or None where it must run over rows."""
    try:
        return _Division(select, table, schema).result()
    except _NotDivisible:
        return None


@dataclass(slots=True)
class _Division:
    """The work on one SELECT."""

    select: exp.Select
    table: exp.Table
    schema: TableSchema
    spelled: dict[str, str] = field(default_factory=dict)
    aliases: dict[str, exp.Expression] = field(default_factory=dict)
    keys: list[exp.Expression] = field(default_factory=list)
    partials: dict[str, exp.Expression] = field(default_factory=dict)

    def result(self) -> DividedSelect:
        self._check_form()
        columns = (*self.schema.tags, TIME_COLUMN, *(name for name, _ in self.schema.fields))
        self.spelled = {folded(name): name for name in columns}
        for item in self.select.expressions:
            if isinstance(item, exp.Alias):
                # Two items of one name: which of them another clause means, only DuckDB knows.
                _require(folded(item.alias) not in self.aliases)
                self.aliases[folded(item.alias)] = item.this
        where = self.select.args.get("where")
        condition = self._of_row(where.this) if where is not None else None
        self.keys = self._found_keys()
        items = [self._item(item) for item in self.select.expressions]
        names = tuple(_name(item) for item in self.select.expressions)
        final = self._final_select(items)
        _require(bool(self.keys or self.partials))
        keys = tuple(f"{KEY_PREFIX}{number}" for number in range(len(self.keys)))
        return DividedSelect(
            (*keys, *(f"{PARTIAL_PREFIX}{number}" for number in range(len(self.partials)))),
            (*self.keys, *self.partials.values()),
            len(self.keys),
            names,
            condition,
            final,
        )

    def _check_form(self) -> None:
        select = self.select
        _require(not {name for name, value in select.args.items() if value} - _CLAUSES)
        _require(not select.args.get("kind") and not select.args.get("hint"))
        extra = {name for name, value in self.table.args.items() if value} - {"this", "db", "alias"}
        _require(not extra and not self.table.alias_column_names)
        distinct = select.args.get("distinct")
        _require(distinct is None or not distinct.args.get("on"))
        for clause in ("limit", "offset"):
            found = select.args.get(clause)
            # FETCH FIRST is parsed as the LIMIT of a SELECT.
            _require(found is None or isinstance(found, exp.Limit | exp.Offset))
            _require(found is None or (is_of_row(found.expression) and not found.find(exp.Column)))
            _require(found is None or not {name for name, value in found.args.items() if value} - {"expression"})

    def _found_keys(self) -> list[exp.Expression]:
        group = self.select.args.get("group")
        if group is None:
            return self._keys_without_group()
        _require(not {name for name, value in group.args.items() if value} - {"expressions", "all"})
        if group.args.get("all"):
            _require(not group.expressions)
            return _unique(self._key(_content(item)) for item in self.select.expressions if not _aggregates(item))
        return _unique(self._grouped(each) for each in group.expressions)

    def _keys_without_group(self) -> list[exp.Expression]:
        """Those of SELECT DISTINCT without aggregates: its items. Other statements without GROUP BY have none."""
        if any(_aggregates(item) for item in self.select.expressions) or self.select.args.get("having"):
            return []
        _require(self.select.args.get("distinct") is not None)
        return _unique(self._key(_content(item)) for item in self.select.expressions)

    def _grouped(self, each: exp.Expression) -> exp.Expression:
        if isinstance(each, exp.Literal) and not each.is_string:
            number = int(each.this) if str(each.this).isdigit() else 0
            _require(1 <= number <= len(self.select.expressions))
            return self._key(_content(self.select.expressions[number - 1]))
        name = folded(each.name) if isinstance(each, exp.Column) and not each.table else ""
        if name in self.aliases and name not in self.spelled:
            return self._key(self.aliases[name])
        return self._key(each)

    def _key(self, expression: exp.Expression) -> exp.Expression:
        """A key over the columns of the table. Only tags and time: keys of fields may be as many as rows."""
        key = self._of_row(expression)
        names = {column.name for column in key.find_all(exp.Column)}
        _require(bool(names) and names <= {*self.schema.tags, TIME_COLUMN})
        return key

    def _of_row(self, expression: exp.Expression, strict: bool = False) -> exp.Expression:
        """An expression with every column by its name in the table. `strict`: where an alias might be meant instead."""
        _require(is_of_row(expression))
        copy = expression.copy()
        holder = exp.Paren(this=copy)
        for column in list(holder.find_all(exp.Column)):
            column.replace(self._resolved(column, strict))
        return holder.this  # type: ignore[no-any-return]

    def _resolved(self, column: exp.Column, strict: bool) -> exp.Expression:
        name = self._own(column)
        if name is None:
            alias = self.aliases.get(folded(column.name)) if not column.table else None
            # An alias of an alias: not followed, so that none can refer to itself.
            _require(alias is not None and is_of_row(alias))
            assert alias is not None
            inner = alias.copy()
            holder = exp.Paren(this=inner)
            for each in list(holder.find_all(exp.Column)):
                own = self._own(each)
                _require(own is not None)
                each.replace(quoted_column(own or ""))
            return holder
        _require(not strict or bool(column.table) or not self._means_another(folded(column.name)))
        return quoted_column(name)

    def _own(self, column: exp.Column) -> str | None:
        """The spelling of a column of the table, None for other names. One of another table is not divisible."""
        _require(not column.args.get("catalog") and isinstance(column.this, exp.Identifier))
        if column.table:
            _require(folded(column.table) == folded(self.table.alias_or_name))
            _require(not column.db or (not self.table.alias and folded(column.db) == folded(self.table.db)))
        return self.spelled.get(folded(column.name))

    def _means_another(self, name: str) -> bool:
        """Whether the select list gives the name of a column to something else."""
        alias = self.aliases.get(name)
        return alias is not None and not (isinstance(alias, exp.Column) and folded(alias.name) == name)

    def _item(self, item: exp.Expression) -> exp.Expression:
        """An item of the select list over the columns of the fragments."""
        _require(not isinstance(item, exp.Star) and not item.is_star)
        content = self._over_partials(_content(item), strict=False, ordered=False)
        return _aliased(content, item.alias) if isinstance(item, exp.Alias) else content

    def _over_partials(self, expression: exp.Expression, strict: bool, ordered: bool) -> exp.Expression:
        """An expression with its keys and aggregates replaced by columns of the fragments."""
        holder = exp.Paren(this=expression.copy())
        self._replace(holder.this, strict)
        found: exp.Expression = holder.this
        for node in found.walk():
            if isinstance(node, exp.Column) and not node.meta.get(_QUOTED):
                # What is left names an item of the select list, which the final statement has too.
                _require(not node.table and folded(node.name) in self.aliases)
                _require(folded(node.name) not in self.spelled or ordered)
        return found

    def _replace(self, node: exp.Expression, strict: bool) -> None:
        if is_aggregate(node):
            node.replace(self._aggregate(node, strict))
            return
        if (key := self._matching(node, strict)) is not None:
            node.replace(_final_column(f"{KEY_PREFIX}{key}"))
            return
        _require(is_of_row_itself(node))
        for child in list(node.iter_expressions()):
            self._replace(child, strict)

    def _matching(self, node: exp.Expression, strict: bool) -> int | None:
        """The number of the key that an expression is."""
        if not node.find(exp.Column) or not is_of_row(node):
            return None
        try:
            resolved = self._of_row(node, strict)
        except _NotDivisible:
            return None
        return next((number for number, key in enumerate(self.keys) if key == resolved), None)

    def _aggregate(self, node: exp.Expression, strict: bool) -> exp.Expression:
        call = node.this if isinstance(node, exp.Filter) else node
        copy = node.copy()
        for part in list(call.iter_expressions()) + ([node.expression.this] if call is not node else []):
            _require(isinstance(part, exp.Star) or is_of_row(part))
        holder = exp.Paren(this=copy)
        for column in list(holder.find_all(exp.Column)):
            column.replace(self._resolved(column, strict))
        found = divided(holder.this, lambda each: isinstance(each, exp.Column) and each.name == TIME_COLUMN)
        _require(found is not None)
        assert found is not None
        for partial in found.partials:
            self.partials.setdefault(partial, parsed_expression(partial))
        numbers = {partial: number for number, partial in enumerate(self.partials)}
        final = found.final([f'"{PARTIAL_PREFIX}{numbers[partial]}"' for partial in found.partials])
        for column in final.find_all(exp.Column):
            column.meta[_QUOTED] = True
        return final

    def _final_select(self, items: Sequence[exp.Expression]) -> exp.Select:
        final = exp.Select(expressions=list(items))
        if self.keys:
            group = [_final_column(f"{KEY_PREFIX}{number}") for number in range(len(self.keys))]
            final.set("group", exp.Group(expressions=group))
        having, order = self.select.args.get("having"), self.select.args.get("order")
        if having is not None:
            final.set("having", exp.Having(this=self._over_partials(having.this, strict=True, ordered=False)))
        if order is not None:
            final.set("order", self._order(order))
        for clause in ("limit", "offset", "distinct"):
            if self.select.args.get(clause) is not None:
                final.set(clause, self.select.args[clause].copy())
        return final

    def _order(self, order: exp.Order) -> exp.Order:
        copy = order.copy()
        for each in copy.expressions:
            _require(isinstance(each, exp.Ordered) and not each.args.get("with_fill"))
            content = each.this
            if isinstance(content, exp.Literal) or self._names_item(content):
                continue
            each.set("this", self._over_partials(content, strict=True, ordered=True))
        return copy

    def _names_item(self, content: exp.Expression) -> bool:
        """Whether an ORDER BY names an item of the select list, which comes before a column of the table."""
        return isinstance(content, exp.Column) and not content.table and folded(content.name) in self.aliases


def is_of_row_itself(node: exp.Expression) -> bool:
    """Whether a node alone is of the allow-list, whatever is below it."""
    shell = node.copy()
    for child in list(shell.iter_expressions()):
        child.replace(exp.Null())
    return is_of_row(shell) if not isinstance(node, exp.DataType) else is_of_row(node)


def _times(key: exp.Expression) -> list[exp.Column]:
    return [column for column in key.find_all(exp.Column) if column.name == TIME_COLUMN]


def _is_within(column: exp.Column, kinds: tuple[type[exp.Expression], ...]) -> bool:
    found = column.find_ancestor(*kinds)
    return found is not None and (not isinstance(found, exp.Cast) or found.to.this == exp.DType.DATE)


def _unique(keys: Iterable[exp.Expression]) -> list[exp.Expression]:
    found: list[exp.Expression] = []
    for key in keys:
        if key not in found:
            found.append(key)
    return found


def _require(condition: bool) -> None:
    if not condition:
        raise _NotDivisible


def _content(item: exp.Expression) -> exp.Expression:
    content: exp.Expression = item.this if isinstance(item, exp.Alias) else item
    return content


def _aggregates(item: exp.Expression) -> bool:
    return any(is_aggregate(node) or isinstance(node, exp.AggFunc) for node in item.walk())


def _name(item: exp.Expression) -> str | None:
    return item.alias if isinstance(item, exp.Alias) else None


def _aliased(content: exp.Expression, name: str) -> exp.Alias:
    return exp.Alias(this=content, alias=exp.to_identifier(name, quoted=True))


def _named(item: exp.Expression, name: str) -> exp.Expression:
    return _aliased(_content(item), name)


def _final_column(name: str) -> exp.Column:
    column = quoted_column(name)
    column.meta[_QUOTED] = True
    return column


@dataclass(frozen=True, slots=True)
class Span:
    """The characters of a SELECT in a statement: from `start` up to `end`."""

    start: int
    end: int


def span_of(sql: str, select: exp.Select, table: exp.Table) -> Span | None:
    """Where a SELECT is in the SQL that its tree was parsed from; None where its place is not certain."""
    if select.parent is None:
        return Span(0, len(sql))
    if not isinstance(select.parent, exp.Subquery | exp.CTE):
        return None
    place, tokens = position_of(table), sqlglot.tokenize(sql, dialect="duckdb")
    # The token there decides which SELECT is replaced.
    if place is None or not any(token.start == place and token.text in (table.db, table.name) for token in tokens):
        return None
    bounds = _brackets_around(tokens, place)
    if bounds is None or tokens[bounds[0] + 1].token_type is not TokenType.SELECT:
        return None
    return Span(tokens[bounds[0]].end + 1, tokens[bounds[1]].start)


def _brackets_around(tokens: Sequence[Token], place: int) -> tuple[int, int] | None:
    """The tokens of the innermost brackets around a character."""
    opened: list[int] = []
    for number, token in enumerate(tokens):
        if token.token_type is TokenType.L_PAREN:
            opened.append(number)
        elif token.token_type is TokenType.R_PAREN:
            if not opened:
                return None
            begin = opened.pop()
            if tokens[begin].start < place < token.start:
                return begin, number
    return None
