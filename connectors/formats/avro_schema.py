"""Avro schemas as programs for the compiled decoder: which values a record has, in order, and which become columns.

A reading is flat: without paths each field of the record is a column, with paths (`FormatOptions.sources`) those that
they name, in nested records too. Whatever else a record has is skipped.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import fastavro.schema
import numpy as np
import pyarrow as pa
from fastavro.schema import SchemaParseException, UnknownType

from headrace.connectors.formats.interface import OptionsError
from headrace.connectors.formats.lines import Integers
from headrace.connectors.formats.paths import Path, near_paths, text_of

DEPTH_MAX = 32
"""Arrays and maps inside of each other."""
OPERATIONS_MAX = 20_000
"""A schema may use a named type many times, and its program repeats that type each time."""
DECIMAL_DIGITS_MAX = 38
FIXED_BYTES_MAX = (1 << 31) - 1


class Op(IntEnum):
    """The operations of a program."""

    NULL = 0
    BOOL = 1
    INT = 2
    LONG = 3
    FLOAT = 4
    DOUBLE = 5
    TEXT = 6
    FIXED = 7
    ENUM = 8
    UNION = 9
    JUMP = 10
    BLOCKS = 11
    NEXT = 12
    END = 13


class SchemaUnusable(OptionsError):
    """A schema that is not Avro, or whose records are no readings. The message names the field."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of decoded values: its path in the record, how its values were decoded, and its Arrow type."""

    path: Path
    op: Op
    kind: pa.DataType
    symbols: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Program:
    """A schema for the decoder. `operations` are (kind, column, operand, operand), `branches` the targets of unions."""

    operations: Integers
    branches: Integers
    columns: tuple[Column, ...]


_PRIMITIVES: Mapping[str, tuple[Op, pa.DataType]] = {
    "boolean": (Op.BOOL, pa.bool_()),
    "int": (Op.INT, pa.int32()),
    "long": (Op.LONG, pa.int64()),
    "float": (Op.FLOAT, pa.float32()),
    "double": (Op.DOUBLE, pa.float64()),
    "string": (Op.TEXT, pa.string()),
    "bytes": (Op.TEXT, pa.binary()),
}
_LOGICAL: Mapping[tuple[str, str], pa.DataType] = {
    ("int", "date"): pa.date32(),
    ("int", "time-millis"): pa.time32("ms"),
    ("long", "time-micros"): pa.time64("us"),
    **{
        ("long", f"{prefix}timestamp-{name}"): pa.timestamp(unit, zone)
        for prefix, zone in (("", "UTC"), ("local-", None))
        for name, unit in (("millis", "ms"), ("micros", "us"), ("nanos", "ns"))
    },
}
_MAP_HINT = "choose the fields with a mapping"


def parse_schema(text: str, named: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
    """(the schema, its named types) of the JSON text of a schema. Raises SchemaUnusable.

    `named` are types that it refers to; its own are added.
    """
    known: dict[str, Any] = {} if named is None else named
    try:
        document = json.loads(text)
        # A schema that is a name alone may come without quotes.
        return fastavro.schema.parse_schema(document, known, _write_hint=False), known
    except (ValueError, RecursionError) as error:
        raise SchemaUnusable(f"the schema is not JSON: {error}") from None
    except UnknownType as error:
        raise SchemaUnusable(f"the schema uses the type {error.name!r}, which it does not define") from None
    except (SchemaParseException, KeyError, TypeError, AttributeError) as error:
        raise SchemaUnusable(f"the schema is not Avro: {error}") from None


def compile_schema(schema: Any, named: Mapping[str, Any], paths: Sequence[Path] = ()) -> Program:
    """The program of a parsed schema; with `paths` of these fields alone. Raises SchemaUnusable."""
    compiler = _Compiler(named, frozenset(paths))
    root = compiler.resolved(schema)
    if not isinstance(root, dict) or root["type"] not in ("record", "error"):
        raise SchemaUnusable(f"the schema is {_described(root)}: a reading is a record")
    compiler.record(root, ())
    compiler.emit(Op.END)
    operations = np.array(compiler.operations, np.int64).reshape(-1, 4)
    return Program(operations, np.array(compiler.branches, np.int64), tuple(compiler.columns))


def require_paths(schema: Any, named: Mapping[str, Any], paths: Sequence[Path]) -> None:
    """Raise SchemaUnusable, with fields of similar names, unless the schema has each of the paths."""
    known = list(_paths(schema, named, (), 0))
    for path in paths:
        if path not in known:
            raise SchemaUnusable(f"the schema has no field {text_of(path)!r}", action=near_paths(path, known))


@dataclass(slots=True)
class _Compiler:
    named: Mapping[str, Any]
    wanted: frozenset[Path]
    operations: list[tuple[int, int, int, int]] = field(default_factory=list)
    branches: list[int] = field(default_factory=list)
    columns: list[Column] = field(default_factory=list)
    _open: list[str] = field(default_factory=list)
    _depth: int = 0

    def resolved(self, schema: Any) -> Any:
        """A schema, or the type that it names."""
        if isinstance(schema, str) and schema in self.named:
            return self.named[schema]
        if isinstance(schema, dict) and isinstance(schema["type"], dict | list):
            return self.resolved(schema["type"])
        return schema

    def emit(self, op: Op, column: int = -1, first: int = 0, second: int = 0) -> int:
        """Append an operation; returns its number."""
        if len(self.operations) >= OPERATIONS_MAX:
            raise self._too_many()
        self.operations.append((int(op), column, first, second))
        return len(self.operations) - 1

    @staticmethod
    def _too_many() -> SchemaUnusable:
        return SchemaUnusable(f"the schema has more than {OPERATIONS_MAX:,} values")

    def record(self, schema: Mapping[str, Any], path: Path | None) -> None:
        """The fields of a record at `path`; None where nothing is wanted."""
        name = schema["name"]
        if name in self._open:
            raise SchemaUnusable(f"the record {name!r} has itself as a field, which is not supported")
        self._open.append(name)
        for each in schema["fields"]:
            if not isinstance(each["name"], str):
                raise SchemaUnusable(f"the schema is not Avro: {each['name']!r} is no name of a field")
            self.value(each["type"], None if path is None else (*path, each["name"]))
        self._open.pop()

    def value(self, schema: Any, path: Path | None) -> None:
        """A value at `path`; None where nothing is wanted."""
        schema = self.resolved(schema)
        if isinstance(schema, list):
            self._union(schema, path)
            return
        kind = schema if isinstance(schema, str) else schema["type"]
        if kind in ("record", "error"):
            self._check_flat(schema, path)
            self.record(schema, path if path is not None and self._has_inner(path) else None)
        elif kind in ("array", "map"):
            self._check_flat(schema, path)
            self._blocks(schema, kind)
        elif kind == "null":
            self.emit(Op.NULL)
        else:
            self._scalar(schema, kind, path)

    def _is_wanted(self, path: Path | None) -> bool:
        return path is not None and (path in self.wanted if self.wanted else len(path) == 1)

    def _has_inner(self, path: Path) -> bool:
        return any(len(each) > len(path) and each[: len(path)] == path for each in self.wanted)

    def _check_flat(self, schema: Any, path: Path | None) -> None:
        if self._is_wanted(path):
            raise self._unusable(path, schema)

    def _unusable(self, path: Path | None, schema: Any) -> SchemaUnusable:
        assert path is not None
        described = _described(schema)
        return SchemaUnusable(
            f"field {text_of(path)!r} is {described}: a reading has numbers, booleans and text", action=_MAP_HINT
        )

    def _union(self, schema: list[Any], path: Path | None) -> None:
        if any(isinstance(self.resolved(each), list) for each in schema):
            raise SchemaUnusable("the schema is not Avro: it has a union as a branch of a union")
        others = [each for each in schema if self.resolved(each) != "null"]
        if path is not None and len(others) > 1 and (self._is_wanted(path) or self._has_inner(path)):
            raise self._unusable(path, schema)
        first = len(self.branches)
        self.branches.extend([0] * len(schema))
        self.emit(Op.UNION, -1, len(schema), first)
        jumps = []
        for number, each in enumerate(schema):
            self.branches[first + number] = len(self.operations)
            self.value(each, path)
            jumps.append(self.emit(Op.JUMP))
        for jump in jumps:
            self.operations[jump] = (int(Op.JUMP), -1, len(self.operations), 0)

    def _blocks(self, schema: Mapping[str, Any], kind: str) -> None:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise SchemaUnusable(f"the schema has more than {DEPTH_MAX} arrays inside of each other")
        self.emit(Op.BLOCKS)
        following = self.emit(Op.NEXT)
        if kind == "map":
            self.emit(Op.TEXT)
        self.value(schema["items" if kind == "array" else "values"], None)
        self.emit(Op.JUMP, -1, following)
        self.operations[following] = (int(Op.NEXT), -1, len(self.operations), 0)
        self._depth -= 1

    def _scalar(self, schema: Any, kind: str, path: Path | None) -> None:
        symbols: tuple[str, ...] = ()
        first = 0
        if kind == "enum":
            op, arrow, symbols = Op.ENUM, pa.string(), tuple(schema["symbols"])
            first = len(symbols)
        elif kind == "fixed":
            op, arrow, first = Op.FIXED, pa.binary(), _size_of(schema)
        else:
            op, arrow = _PRIMITIVES[kind]
        column = -1
        if self._is_wanted(path):
            assert path is not None
            arrow = _logical_type(schema, kind, arrow)
            if pa.types.is_binary(arrow):
                raise self._unusable(path, schema)
            # The branches of a union are one value: they share a column.
            column = len(self.columns)
            self.columns.append(Column(path, op, arrow, symbols))
        if op is Op.DOUBLE:
            self._double(column)
        else:
            self.emit(op, column, first)

    def _double(self, column: int) -> None:
        """One more double: neighbours whose columns follow each other are one operation, with their number."""
        kind, first, count, _ = self.operations[-1] if self.operations else (int(Op.END), 0, 0, 0)
        # Nothing jumps between the two: a jump leads to what is behind another jump.
        if kind == Op.DOUBLE and 0 <= first == column - count:
            self.operations[-1] = (kind, first, count + 1, 0)
        else:
            self.emit(Op.DOUBLE, column, 1)
        if len(self.columns) > OPERATIONS_MAX:
            raise self._too_many()


def _size_of(schema: Mapping[str, Any]) -> int:
    size = schema["size"]
    if not isinstance(size, int) or not 0 <= size <= FIXED_BYTES_MAX:
        raise SchemaUnusable(f"the schema is not Avro: {size!r} is no size of the fixed {schema['name']!r}")
    return size


def _logical_type(schema: Any, kind: str, arrow: pa.DataType) -> pa.DataType:
    """The Arrow type of a value with its logical type; one that is unknown does not count, as Avro wants it."""
    if not isinstance(schema, dict):
        return arrow
    logical = schema.get("logicalType")
    # fastavro has checked both, where they are there and not null.
    precision, scale = schema.get("precision") or 0, schema.get("scale") or 0
    if logical == "decimal" and kind in ("bytes", "fixed") and 0 < precision <= DECIMAL_DIGITS_MAX:
        return pa.decimal128(precision, scale)
    return _LOGICAL.get((kind, str(logical)), arrow)


def _described(schema: Any) -> str:
    """A type in words."""
    if isinstance(schema, list):
        return f"a union of {' and '.join(_name_of(each) for each in schema)}"
    name = schema if isinstance(schema, str) else str(schema["type"])
    if isinstance(schema, dict) and schema.get("logicalType"):
        name = f"{schema['logicalType']} in {name}"
    return f"an {name}" if name[0] in "aeiou" else f"a {name}" if name not in ("bytes", "null") else name


def _name_of(schema: Any) -> str:
    return schema if isinstance(schema, str) else str(schema.get("name") or schema["type"])


def _paths(schema: Any, named: Mapping[str, Any], path: Path, depth: int) -> Iterator[Path]:
    """The paths of the values of a record, and of records in it."""
    compiler = _Compiler(named, frozenset())
    schema = compiler.resolved(schema)
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        schema = compiler.resolved(others[0]) if len(others) == 1 else schema
    if path:
        yield path
    if isinstance(schema, dict) and schema["type"] in ("record", "error") and depth < DEPTH_MAX:
        for each in schema["fields"]:
            yield from _paths(each["type"], named, (*path, each["name"]), depth + 1)
