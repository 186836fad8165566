"""What the members of a JSON reading stand for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from connectors.formats.json_scanner import Number, Scalar
from connectors.formats.line_scanner import BadLine, check_column
from connectors.formats.parsed import FormatOptions
from connectors.formats.values import INTEGER_TEXT, NOT_FINITE_TEXT, float_of, integer_of
from schemas.tables import FieldType

EXACT_FLOAT_MAX = 2.0**53

Role = Literal["table", "time", "tag", "field"]


@dataclass(frozen=True, slots=True)
class Meaning:
    """The meaning that the options give to the members of a reading."""

    options: FormatOptions

    def role(self, name: str) -> Role:
        """What the member `name` is for. Raises BadLine for a field that may not have that name."""
        if name == self.options.table_column:
            return "table"
        if name == self.options.time_column:
            return "time"
        if name in self.options.tags:
            return "tag"
        check_column("field", name)
        return "field"

    def table(self, reading: Mapping[str, Scalar]) -> str:
        """The table of a reading. Raises BadLine when it names none."""
        if self.options.table_column is None:
            return self.options.table or ""
        named = reading.get(self.options.table_column)
        if named is None and self.options.table is not None:
            return self.options.table
        if not isinstance(named, str) or isinstance(named, Number):
            raise BadLine(f"member {self.options.table_column!r} does not name a table")
        check_column("table", named)
        return named

    def tags(self, reading: Mapping[str, Scalar]) -> dict[str, str | None]:
        """The tags of a reading as they were written."""
        present = {name: reading[name] for name in self.options.tags if name in reading}
        return {name: str(value).lower() if isinstance(value, bool) else value for name, value in present.items()}

    def fields(
        self, table: str, reading: Mapping[str, Scalar]
    ) -> dict[str, tuple[FieldType, float | int | bool | str]]:
        """Type and value of every field that is not null. Raises BadLine when there is none, or one that does not fit its type."""
        fields = {}
        for name, value in reading.items():
            if self.role(name) == "field" and value is not None:
                fields[name] = self.value(table, name, value)
        if not fields:
            raise BadLine("no field has a value")
        return fields

    def value(self, table: str, name: str, value: Number | str | bool) -> tuple[FieldType, float | int | bool | str]:
        """Type and value of one field: numbers are float64 unless int64 is declared and they are whole."""
        if isinstance(value, bool):
            return FieldType.BOOL, value
        if not isinstance(value, Number):
            return FieldType.STRING, value
        if self.options.declared_types(table).get(name) is FieldType.INT64:
            whole = _integral(name, value)
            if whole is not None:
                return FieldType.INT64, whole
        number = float(value) if NOT_FINITE_TEXT.fullmatch(value) else float_of(value)
        if number is None:
            raise BadLine(f"the number of member {name!r} does not fit float64")
        return FieldType.FLOAT64, number


def _integral(name: str, text: str) -> int | None:
    """A number as int64; None when it has a fraction. Raises BadLine for an integer that does not fit."""
    if INTEGER_TEXT.fullmatch(text):
        whole = integer_of(text)
        if whole is None:
            raise BadLine(f"the integer of member {name!r} does not fit int64")
        return whole
    number = float_of(text)
    return int(number) if number is not None and number.is_integer() and abs(number) < EXACT_FLOAT_MAX else None
