"""Rows that came from a scanner one by one, collected into columns."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

import numpy as np
import pyarrow as pa

from connectors.formats.lines import Integers
from connectors.formats.pieces import Columns
from schemas.tables import FieldType

Value = float | int | bool | str
Fields = Mapping[str, tuple[FieldType, Value]]
K = TypeVar("K")
T = TypeVar("T")


@dataclass(slots=True)
class ScannedPart(Generic[K, T]):
    """Rows of one table in which every field has one type; `keys` and `times` are what the parser gave for each row."""

    kinds: dict[str, FieldType] = field(default_factory=dict)
    numbers: list[int] = field(default_factory=list)
    keys: list[K] = field(default_factory=list)
    times: list[T] = field(default_factory=list)
    rows: list[Mapping[str, Value]] = field(default_factory=list)

    def takes(self, fields: Fields) -> bool:
        """Whether a row with these fields fits."""
        return all(self.kinds.get(name, kind) is kind for name, (kind, _) in fields.items())

    def add(self, line: int, key: K, time: T, fields: Fields) -> None:
        """Append a row that fits."""
        self.kinds.update((name, kind) for name, (kind, _) in fields.items())
        self.numbers.append(line)
        self.keys.append(key)
        self.times.append(time)
        self.rows.append({name: value for name, (_, value) in fields.items()})

    @property
    def lines(self) -> Integers:
        """Line numbers of the rows."""
        return np.array(self.numbers, np.int64)

    def columns(self) -> Columns:
        """The fields as columns, null where a row does not have one."""
        return {name: pa.array([row.get(name) for row in self.rows], kind.arrow) for name, kind in self.kinds.items()}


@dataclass(slots=True)
class ScannedRows(Generic[K, T]):
    """Scanned rows by table, in as few parts as the types of their fields allow, whatever fields each row has."""

    _parts: dict[str, list[ScannedPart[K, T]]] = field(default_factory=lambda: defaultdict(list))

    def add(self, table: str, line: int, key: K, time: T, fields: Fields) -> None:
        """Append one row."""
        parts = self._parts[table]
        part = next((part for part in parts if part.takes(fields)), None)
        if part is None:
            part = ScannedPart()
            parts.append(part)
        part.add(line, key, time, fields)

    def parts(self) -> Iterator[tuple[str, ScannedPart[K, T]]]:
        """All parts with their tables."""
        for table, parts in self._parts.items():
            for part in parts:
                yield table, part
