"""Parameters of a query: values for the names that its SQL writes as `$name`.

A value is never part of a text that is parsed. It is bound to a prepared `SET VARIABLE`, and the statement reads
that variable where it names the parameter. DuckDB's own parameters would do the same, but it keeps the whole
result of a statement that has them in memory. A variable is a constant to its planner, too: files are pruned and
LIMIT takes one.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from headrace.consumers.query.guard import ParameterName, Statement, TableName, has_half_pair
from headrace.consumers.query.parameter_types import parameter_schema
from headrace.consumers.query.query_errors import QueryInvalid
from headrace.consumers.query.table_names import resolve
from headrace.consumers.query.table_source import TableSource

PARAMETERS_MAX = 256
"""Most parameters of one query."""
TIMESTAMP_MEMBER = "timestamp"
"""A moment is sent as an object of this one member, because JSON has no times."""
READER = "getvariable"
"""The function that reads a variable. The guard refuses it in the SQL of users."""

_VARIABLE_PREFIX = "__parameter_"
_READING = re.compile(rf"{READER}\('{_VARIABLE_PREFIX}(\d+)'\)")


@dataclass(frozen=True, slots=True)
class BoundStatement:
    """A statement that reads its parameters from variables, and the variables that it needs.

    `names` are the parameters in the order of their variables, as the SQL writes them.
    """

    statement: Statement
    names: tuple[str, ...] = ()
    values: tuple[Any, ...] = ()

    def variables(self) -> list[tuple[str, Any]]:
        """SQL that sets each variable, and the value to bind to its `?`."""
        return [
            (f"SET VARIABLE {_VARIABLE_PREFIX}{number} = {_slot(value)}", _plain(value))
            for number, value in enumerate(self.values)
        ]

    def variable_names(self) -> list[str]:
        """The variables."""
        return [f"{_VARIABLE_PREFIX}{number}" for number in range(len(self.values))]

    def texts(self) -> dict[str, str]:
        """The values that are texts, by the name of their variable."""
        named = ((f"{_VARIABLE_PREFIX}{number}", value) for number, value in enumerate(self.values))
        return {name: value for name, value in named if isinstance(value, str)}

    def shown(self, text: str) -> str:
        """A name or a message of DuckDB with the parameters as their user wrote them."""
        return _READING.sub(lambda match: f"${self.names[int(match[1])]}", text) if self.names else text


def bind(statement: Statement, values: Mapping[str, Any]) -> BoundStatement:
    """The statement with `values` bound to the parameters that it names, in any case.

    Raises QueryInvalid, which names a parameter that has no value, or a value that no parameter takes.
    """
    given = {name.lower(): value for name, value in values.items()}
    wanted = {parameter.name.lower(): parameter.name for parameter in statement.parameters}
    _check(statement, given, wanted)
    numbers = {name: number for number, name in enumerate(wanted)}
    readings = [
        (parameter, f"{READER}('{_VARIABLE_PREFIX}{numbers[parameter.name.lower()]}')")
        for parameter in statement.parameters
    ]
    bound = _replaced(statement, readings) if readings else statement
    return BoundStatement(bound, tuple(wanted.values()), tuple(given[name] for name in wanted))


def described(statement: Statement, source: TableSource) -> pa.Schema:
    """The parameters that a statement names, with their types (see `parameter_types`); each `?` by its place."""
    resolved = resolve(statement.tables, statement.cte_names, source.tables())
    ordered = sorted(statement.parameters, key=lambda each: each.position)
    names = dict.fromkeys(each.name for each in ordered)
    return parameter_schema(names, statement.hints, [source.schema(*key) for key in resolved.tables])


def problem_of(values: object) -> str | None:
    """Why a JSON document is no mapping of parameter names to values; None if it is one."""
    if not isinstance(values, dict):
        return "parameters is not an object of names and values"
    if len(values) > PARAMETERS_MAX:
        return f"a query has {PARAMETERS_MAX} parameters at most"
    if len({name.lower() for name in values}) < len(values):
        return "two parameters differ only in case"
    if half := next(filter(has_half_pair, values), None):
        return f"the name {half!r} of a parameter has half of a surrogate pair"
    bad = next((name for name, value in values.items() if not _is_value(value)), None)
    if bad is not None:
        return f"parameter {bad!r} is neither a number, a text, a boolean, null nor a list of them"
    # DuckDB would make texts of all of them, and equal none of the numbers.
    mixed = next((name for name, value in values.items() if isinstance(value, list) and len(_kinds(value)) > 1), None)
    return None if mixed is None else f"the list of parameter {mixed!r} has values of several types"


def _check(statement: Statement, given: Mapping[str, Any], wanted: Mapping[str, str]) -> None:
    # DuckDB names each `?` by its place, from 1. Drivers of Flight SQL bind them so.
    unbound = [each.name for each in statement.parameters if each.positional and each.name not in given]
    if unbound and "1" in given:
        raise QueryInvalid(f"no value for ? number {min(map(int, unbound))}", action="bind a value to each ?")
    if unbound:
        raise QueryInvalid("the SQL has a parameter without a name", action="write $name instead of ?")
    missing = [f"${name}" for folded, name in wanted.items() if folded not in given]
    if missing:
        raise QueryInvalid(
            f"no value for parameter {', '.join(missing)}",
            action='give it: --param name=value, \\set name value in headrace sql, or client.query(sql, {"name": value})',
        )
    unused = [f"${name}" for name in given if name not in wanted]
    if unused:
        raise QueryInvalid(
            f"the SQL does not name parameter {', '.join(unused)}",
            action=f"it names {', '.join(f'${name}' for name in wanted.values()) or 'none'}",
        )


def _replaced(statement: Statement, readings: Sequence[tuple[ParameterName, str]]) -> Statement:
    """The statement with texts in place of its parameters, and its tables where they are then."""
    # Positions of the parser count bytes, and a desugared parameter may be in the tree twice.
    places = sorted({(item.position, item.length, text) for item, text in readings})
    source, parts, end = statement.sql.encode(), [], 0
    for position, length, text in places:
        parts += [source[end:position], text.encode()]
        end = position + length
    parts.append(source[end:])
    tables = tuple(_moved(name, places) for name in statement.tables)
    return replace(statement, sql=b"".join(parts).decode(), tables=tables)


def _moved(name: TableName, places: Iterable[tuple[int, int, str]]) -> TableName:
    if name.position is None:
        return name
    before = sum(len(text) - length for position, length, text in places if position < name.position)
    return replace(name, position=name.position + before)


def _is_value(value: object) -> bool:
    if isinstance(value, list):
        return all(not isinstance(item, list) and _is_value(item) for item in value)
    if isinstance(value, dict):
        return set(value) == {TIMESTAMP_MEMBER} and isinstance(value[TIMESTAMP_MEMBER], str)
    return value is None or isinstance(value, str | int | float)


def _kinds(values: Iterable[object]) -> set[type]:
    """The types of a list's values without nulls; numbers are one."""
    return {float if type(value) is int else type(value) for value in values if value is not None}


def _slot(value: object) -> str:
    if isinstance(value, dict):
        return "CAST(? AS TIMESTAMP_NS)"
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return "CAST(? AS TIMESTAMP_NS[])"
    return "?"


def _plain(value: Any) -> Any:
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value[TIMESTAMP_MEMBER] if isinstance(value, dict) else value
