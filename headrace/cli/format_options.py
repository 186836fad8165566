"""The options that say how raw bytes become rows, shared by `headrace write` and `headrace ingest`."""

from __future__ import annotations

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
TagsOption = Annotated[str, typer.Option("--tags", metavar="A,B", help="Columns or members that identify a series.")]
TagOption = Annotated[
    list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="A tag for every row; may be repeated.")
]
TimeColumnOption = Annotated[str, typer.Option("--time-column", metavar="C", help="Column or member with the time.")]
TimeUnitOption = Annotated[str, typer.Option("--time-unit", metavar="ns|us|ms|s", help="Unit of integer times.")]
TimeFormatOption = Annotated[
    str | None, typer.Option("--time-format", metavar="FMT", help="Form of text times (strptime); else ISO 8601.")
]
AnyTimeOption = Annotated[
    bool, typer.Option("--any-time", help="Take times outside 1980 to 2100; they are refused otherwise.")
]
ResolutionOption = Annotated[
    str | None,
    typer.Option("--time-resolution", metavar="us|ns", help="Finest digits of the times of a new table; else us."),
]

_SUFFIXES = {
    ".lp": "influx",
    ".influx": "influx",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}


def format_of(file: str, form: str | None) -> str:
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


def format_options(
    table: str | None,
    table_column: str | None,
    tags: str,
    static_tags: list[str] | None,
    time_column: str,
    time_unit: str,
    time_format: str | None,
    delimiter: str = ",",
) -> FormatOptions:
    """The options of a format from those of a command. Raises UsageInvalid."""
    from headrace.connectors.formats.interface import FormatOptions, OptionsError, TimeUnit

    units = get_args(TimeUnit)
    if time_unit not in units:
        raise UsageInvalid(f"--time-unit {time_unit} is unknown", action=f"choose one of {', '.join(units)}")
    try:
        return FormatOptions(
            table=table,
            tags=tuple(part.strip() for part in tags.split(",") if part.strip()),
            static_tags=tuple(static_tag(text) for text in static_tags or ()),
            time_column=time_column,
            time_unit=time_unit,  # type: ignore[arg-type]
            time_format=time_format,
            table_column=table_column,
            delimiter=delimiter,
        )
    except OptionsError as error:
        raise UsageInvalid(error.message, action=error.action) from error


def static_tag(text: str) -> tuple[str, str]:
    """Key and value of `--tag KEY=VALUE`. Raises UsageInvalid."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise UsageInvalid(f"--tag {text} is not KEY=VALUE", action="for example --tag site=north")
    return key, value
