"""The options by which bytes become rows, of files and of messages."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from headrace.terminal.command import UsageInvalid

if TYPE_CHECKING:
    from headrace.connectors.formats.interface import FormatOptions

TableOption = Annotated[str | None, typer.Option("--table", metavar="T", help="Table of every row.")]
TableColumnOption = Annotated[
    str | None, typer.Option("--table-column", metavar="C", help="Column or member that names the table.")
]
DelimiterOption = Annotated[str, typer.Option("--delimiter", metavar="CHAR", help="Between the columns of CSV.")]

_SUFFIXES = {
    ".lp": "influx",
    ".influx": "influx",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}


@dataclass(frozen=True, slots=True)
class RowOptions:
    """Tags and times of rows."""

    tags: Annotated[str, typer.Option("--tags", metavar="A,B", help="Columns or members that identify a series.")] = ""
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="A tag for every row; may be repeated.")
    ] = None
    time_column: Annotated[str, typer.Option("--time-column", metavar="C", help="Column or member with the time.")] = (
        "time"
    )
    time_unit: Annotated[str, typer.Option("--time-unit", metavar="ns|us|ms|s|m|h", help="Unit of integer times.")] = (
        "ns"
    )
    time_format: Annotated[
        str | None, typer.Option("--time-format", metavar="FMT", help="Form of text times (strptime); else ISO 8601.")
    ] = None
    time_resolution: Annotated[
        str | None,
        typer.Option("--time-resolution", metavar="us|ns", help="Finest digits of the times of a new table; else us."),
    ] = None
    any_time: Annotated[
        bool, typer.Option("--any-time", help="Take times outside 1980 to 2100; they are refused otherwise.")
    ] = False

    def with_table(
        self, table: str | None, table_column: str | None = None, *, delimiter: str = ",", columns: str = ""
    ) -> FormatOptions:
        """The options of a format. Raises UsageInvalid."""
        from headrace.connectors.formats.interface import FormatOptions, OptionsError, TimeUnit

        units = get_args(TimeUnit)
        if self.time_unit not in units:
            raise UsageInvalid(f"--time-unit {self.time_unit} is unknown", action=f"choose one of {', '.join(units)}")
        try:
            return FormatOptions(
                table=table,
                tags=names_of(self.tags),
                static_tags=tuple(static_tag(text) for text in self.tag or ()),
                time_column=self.time_column,
                time_unit=self.time_unit,  # type: ignore[arg-type]
                time_format=self.time_format,
                table_column=table_column,
                delimiter=delimiter,
                columns=names_of(columns),
            )
        except OptionsError as error:
            raise UsageInvalid(error.message, action=error.action) from error


def names_of(text: str) -> tuple[str, ...]:
    """The names of a list such as `a, b`."""
    return tuple(part.strip() for part in text.split(",") if part.strip())


def static_tag(text: str) -> tuple[str, str]:
    """Key and value of `--tag KEY=VALUE`. Raises UsageInvalid."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise UsageInvalid(f"--tag {text} is not KEY=VALUE", action="for example --tag site=north")
    return key, value


def file_format(file: str, form: str | None) -> str:
    """The format that was given, or the one that the file's name ends as. Raises UsageInvalid."""
    from headrace.connectors.formats.interface import FORMATS

    if form is not None:
        if form not in FORMATS:
            raise UsageInvalid(f"--format {form} is unknown", action=f"choose one of {', '.join(FORMATS)}")
        return form
    found = _SUFFIXES.get(Path(file.removesuffix(".gz")).suffix.lower())
    if found is None:
        raise UsageInvalid(f"the name of {file} does not say its format", action=f"give --format {'|'.join(FORMATS)}")
    return found
