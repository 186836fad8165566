"""The statements that were checked last, by their text and by their template, and the trees of templates, and the schemas of their answers.

A template is used after two of its texts have come, and after a trial: the guard and the planner's parser must find
the same in a text with other literals. So a literal that is more than a value, such as the name of a file, is found.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import pyarrow as pa
from sqlglot import exp

from headrace.consumers.query.guard import Statement, may_name_now
from headrace.consumers.query.planner import parse
from headrace.consumers.query.scope import position_of, set_position
from headrace.consumers.query.templates import Shifts, Template, moved, template_of, with_probes
from headrace.schemas.tables import TableSchema

CHECKED_MAX, CHECKED_CHARACTERS_MAX = 512, 8 * 1024
"""Checked statements that are remembered, and the longest of them."""
TEMPLATES_MAX = 512
"""Templates that are remembered, also those that can be used for nothing."""
TREES_MAX = 2
"""Trees of one template: as many of its statements can be planned at once."""
PARSED_MAX = 16
"""Trees of texts: one statement is looked at several times, for the scans and wherever it may be divided."""
ValueT = TypeVar("ValueT")


class Recent(Generic[ValueT]):
    """The values that were used last. Not thread-safe."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._values: OrderedDict[str, ValueT] = OrderedDict()

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> ValueT | None:
        """The value of a key."""
        if key in self._values:
            self._values.move_to_end(key)
        return self._values.get(key)

    def take(self, key: str) -> ValueT | None:
        """The value of a key, which is forgotten."""
        return self._values.pop(key, None)

    def put(self, key: str, value: ValueT) -> None:
        """Remember a value."""
        self._values[key] = value
        if len(self._values) > self._limit:
            self._values.popitem(last=False)


@dataclass(frozen=True, slots=True)
class LiteralTree:
    """The tree of one statement, the nodes of its literals in their order, and where the names of its tables are."""

    tree: exp.Expression
    template: Template
    literals: tuple[exp.Literal, ...]
    tables: tuple[tuple[exp.Table, int | None], ...]

    def fill(self, template: Template) -> exp.Expression:
        """The tree of another text."""
        for node, literal in zip(self.literals, template.literals, strict=True):
            node.set("this", _content(literal))
        shifts = Shifts(self.template, template)
        for table, position in self.tables:
            if position is not None:
                set_position(table, shifts.moved(position))
        return self.tree


@dataclass(slots=True)
class _Known:
    """What is known of a template. Without a statement it is not used: it came once, or failed its trial."""

    template: Template
    statement: Statement | None = None
    trees: list[LiteralTree] = field(default_factory=list)
    tried: bool = False
    has_values: bool = False
    """Whether all of its literals are values, and none is a name: of a column, for one, in `AS 'low'`."""


class CheckedStatements:
    """Safe for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._statements: Recent[Statement] = Recent(CHECKED_MAX)
        self._templates: Recent[_Known] = Recent(TEMPLATES_MAX)
        self._schemas: Recent[tuple[TableSchema, pa.Schema]] = Recent(TEMPLATES_MAX)
        self._parsed: Recent[tuple[exp.Expression | None]] = Recent(PARSED_MAX)

    @property
    def templates(self) -> int:
        """Templates that are remembered."""
        with self._lock:
            return len(self._templates)

    def get(self, sql: str) -> Statement | None:
        """The statement of a text, if it is known to be one that may run."""
        with self._lock:
            if (statement := self._statements.get(sql)) is not None:
                return statement
        template = template_of(sql)
        # Texts such as 'now' are the time of the query.
        if template is None or may_name_now("".join(template.texts)):
            return None
        with self._lock:
            known = self._templates.get(template.key)
        if known is None or known.statement is None:
            return None
        return moved(known.statement, known.template, template, sql)

    def put(self, sql: str, statement: Statement, check: Callable[[str], Statement]) -> None:
        """A text was checked. `check` checks another one; the second text of a template is a trial of it."""
        if len(sql) > CHECKED_CHARACTERS_MAX:
            return
        template = template_of(sql) if statement.is_plain else None
        with self._lock:
            self._statements.put(sql, statement)
            known = None if template is None else self._templates.get(template.key)
            if template is None or known is None or known.tried:
                if template is not None and known is None:
                    self._templates.put(template.key, _Known(template))
                return
            known.tried = True
        tried = _trial(statement, template, check)
        with self._lock:
            self._templates.put(template.key, tried)

    def answer_schema(self, statement: Statement) -> tuple[TableSchema, pa.Schema] | None:
        """The schema that DuckDB gave to the answer of a statement of the same template, behind that of its table then."""
        with self._lock:
            return self._schemas.get(self._schema_key(statement))

    def put_answer_schema(self, statement: Statement, table: TableSchema, schema: pa.Schema) -> None:
        """Remember the schema of an answer that no literal of its statement has a part in."""
        with self._lock:
            self._schemas.put(self._schema_key(statement), (table, schema))

    def _schema_key(self, statement: Statement) -> str:
        """The template of a statement if its literals are known to be values, else its text."""
        template = template_of(statement.sql)
        known = None if template is None else self._templates.get(template.key)
        return known.template.key if known is not None and known.has_values else statement.sql

    @contextmanager
    def tree(self, statement: Statement) -> Iterator[exp.Expression | None]:
        """The planner's tree of a statement, as `planner.parse` gives it; nothing changes it, or keeps it behind the block."""
        template = template_of(statement.sql)
        with self._lock:
            known = None if template is None else self._templates.get(template.key)
            usable = known is not None and known.statement is not None and statement.is_plain
            spare = known.trees.pop() if known is not None and usable and known.trees else None
        if template is None or known is None or spare is None:
            with self._lock:
                kept = self._parsed.take(statement.sql)
            (tree,) = (parse(statement),) if kept is None else kept
            yield tree
            with self._lock:
                self._parsed.put(statement.sql, (tree,))
            return
        yield spare.fill(template)
        # A tree whose use failed is not used again.
        with self._lock:
            if len(known.trees) < TREES_MAX:
                known.trees.append(spare)


def _trial(statement: Statement, template: Template, check: Callable[[str], Statement]) -> _Known:
    """What is known of a template after a trial with other literals."""
    found = _Known(template, tried=True)
    sql, probes = with_probes(template)
    other = template_of(sql)
    # Whatever the trial meets is no fault of the statement, which may run.
    with suppress(Exception):
        checked = check(sql)
        if other is None or checked != moved(statement, template, other, sql):
            return found
        trees = (_literal_tree(statement, checked, template, other, probes) for _ in range(TREES_MAX))
        found.trees = [tree for tree in trees if tree is not None]
        found.has_values = bool(found.trees)
        found.statement = statement
    return found


def _literal_tree(
    statement: Statement, probed: Statement, template: Template, other: Template, probes: tuple[str, ...]
) -> LiteralTree | None:
    """The tree of a statement, if its literals are values there; None where one of them is more."""
    expected, tree = parse(statement), parse(probed)
    if expected is None or tree is None:
        return None
    by_text: dict[str, list[exp.Literal]] = {}
    for node in tree.find_all(exp.Literal):
        by_text.setdefault(str(node.this), []).append(node)
    nodes = [by_text.get(_content(probe), []) for probe in probes]
    if any(not _is_value(probe, each) for probe, each in zip(probes, nodes, strict=True)):
        return None
    found = LiteralTree(tree, other, tuple(each[0] for each in nodes), _tables(tree))
    # The text of a tree has no positions.
    is_same = repr(found.fill(template)) == repr(expected) and _positions(tree) == _positions(expected)
    return found if is_same else None


def _tables(tree: exp.Expression) -> tuple[tuple[exp.Table, int | None], ...]:
    return tuple((table, position_of(table)) for table in tree.find_all(exp.Table))


def _positions(tree: exp.Expression) -> list[int | None]:
    return [position for _, position in _tables(tree)]


def _is_value(probe: str, nodes: Sequence[exp.Literal]) -> bool:
    """Whether a literal is one node of the tree, and no other content of it would be parsed to something else."""
    # The parser looks into the text of an interval.
    return len(nodes) == 1 and (probe.isdigit() or nodes[0].find_ancestor(exp.Interval) is None)


def _content(literal: str) -> str:
    return literal[1:-1] if literal[0] == "'" else literal
