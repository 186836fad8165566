"""The types that a statement most likely wants of its parameters, for drivers that ask before they have values. Pure.

DuckDB decides a type when it has the value. What a driver needs to choose a type is in the syntax: the column that a
parameter is compared with, the type that it is cast to, or LIMIT. Everything else is a text.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from headrace.schemas.tables import TIME_COLUMN, TableSchema

TIME_TYPE = pa.timestamp("ms")
"""What the driver for JDBC has of a moment: it sends so many milliseconds, whichever unit is wanted."""
_LIKE = frozenset({"~~", "!~~", "~~*", "!~~*"})
_TYPES: Mapping[str, pa.DataType] = {
    **dict.fromkeys(("BIGINT", "INTEGER", "INT", "SMALLINT", "TINYINT", "HUGEINT", "UBIGINT"), pa.int64()),
    **dict.fromkeys(("DOUBLE", "FLOAT", "REAL", "DECIMAL", "NUMERIC"), pa.float64()),
    **dict.fromkeys(("BOOLEAN", "BOOL"), pa.bool_()),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_NS", "TIMESTAMP_MS", "TIMESTAMP_S", "TIMESTAMPTZ", "DATETIME"), TIME_TYPE),
    "DATE": pa.date32(),
}
Node = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class ParameterHint:
    """The column beside a parameter, by its last name in lower case, or the type that it is cast to or compared with."""

    parameter: str
    column: str = ""
    type_name: str = ""


def hints_of(node: Node) -> Iterator[ParameterHint]:
    """What one node of DuckDB's syntax tree tells of the parameters directly in it."""
    kind = str(node.get("type"))
    if kind == "LIMIT_MODIFIER":
        limits = [each for name in ("limit", "offset") if (each := node.get(name))]
        yield from (ParameterHint(each["identifier"], type_name="BIGINT") for each in limits if _is_parameter(each))
    elif node.get("class") == "CAST" and _is_parameter(node["child"]):
        yield ParameterHint(node["child"]["identifier"], type_name=_cast_type(node))
    operands = _operands(node, kind)
    beside = next((each for each in operands if each.get("class") in ("COLUMN_REF", "CAST")), None)
    if beside is not None:
        column = str(beside["column_names"][-1]).lower() if "column_names" in beside else ""
        type_name = _cast_type(beside) if beside["class"] == "CAST" else ""
        parameters = (str(each["identifier"]) for each in operands if _is_parameter(each))
        yield from (ParameterHint(name, column, type_name) for name in parameters)


def parameter_schema(names: Iterable[str], hints: Iterable[ParameterHint], tables: Iterable[TableSchema]) -> pa.Schema:
    """The parameters in their order, each with its type; a column of two types in several tables tells nothing."""
    columns: dict[str, set[pa.DataType]] = {}
    for table in tables:
        kinds = dict.fromkeys(table.tags, pa.string()) | {TIME_COLUMN: TIME_TYPE}
        for name, kind in (kinds | {name: kind.arrow for name, kind in table.fields}).items():
            columns.setdefault(name.lower(), set()).add(kind)
    found: dict[str, pa.DataType] = {}
    for hint in hints:
        kinds_here = columns.get(hint.column, set())
        if (kind := _TYPES.get(hint.type_name)) is not None or len(kinds_here) == 1:
            found.setdefault(hint.parameter, kind if kind is not None else next(iter(kinds_here)))
    return pa.schema([(name, found.get(name, pa.string())) for name in names])


def _operands(node: Node, kind: str) -> list[Node]:
    """What is compared with each other."""
    match node.get("class"):
        case "COMPARISON":
            return [node["left"], node["right"]]
        case "BETWEEN":
            return [node["input"], node["lower"], node["upper"]]
        case "OPERATOR" if kind in ("COMPARE_IN", "COMPARE_NOT_IN"):
            return list(node["children"])
        case "FUNCTION" if node.get("function_name") in _LIKE:
            return [each["expression"] for each in node["arguments"]]
    return []


def _is_parameter(node: Node) -> bool:
    return node.get("class") == "PARAMETER"


def _cast_type(node: Node) -> str:
    return str((node.get("type_expr") or {}).get("type_name", "")).upper()
