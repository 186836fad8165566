"""How statements were divided last, by their text: to parse and to bind one again takes longer than a small fragment."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pyarrow as pa

from headrace.consumers.query.checked_statements import CHECKED_CHARACTERS_MAX, Recent
from headrace.consumers.query.distribution import Distribution, PartialPart
from headrace.consumers.query.parameters import BoundStatement
from headrace.consumers.query.table_names import Resolved, TableKey
from headrace.schemas.tables import TableSchema

DIVISIONS_MAX = 256
"""Statements whose division is remembered."""


@dataclass(frozen=True, slots=True)
class BoundPart:
    """A divided SELECT with what the binder knows of it: names of its result, types of the fragment's columns."""

    part: PartialPart
    view: str
    names: Sequence[str]
    types: Sequence[str]
    wire: pa.Schema


@dataclass(frozen=True, slots=True)
class Division:
    """A divided statement that has the columns of the whole one: its parts, and the SQL over their views."""

    distribution: Distribution
    parts: Sequence[BoundPart]
    sql: str


@dataclass(frozen=True, slots=True)
class StatementOver:
    """What a division follows from: a text, what its names mean, and whether aggregates are divided."""

    bound: BoundStatement
    resolved: Resolved
    schemas: Mapping[TableKey, TableSchema]
    partial: bool

    @property
    def is_constant(self) -> bool:
        """Whether the same text has the same division again."""
        statement = self.bound.statement
        special = statement.names_now or statement.explain or statement.described or statement.verb
        return not special and not self.bound.names and len(statement.sql) <= CHECKED_CHARACTERS_MAX


class Divisions:
    """Safe for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: Recent[tuple[StatementOver, Division]] = Recent(DIVISIONS_MAX)

    def get(self, wanted: StatementOver) -> Division | None:
        """The division of a statement, if it is known for tables as they are now."""
        with self._lock:
            known = self._known.get(wanted.bound.statement.sql)
        return known[1] if known is not None and known[0] == wanted else None

    def put(self, wanted: StatementOver, division: Division) -> None:
        """Remember a division."""
        if wanted.is_constant:
            with self._lock:
                self._known.put(wanted.bound.statement.sql, (wanted, division))
