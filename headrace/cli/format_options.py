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
TimeUnitOption = Annotated[str, typer.Option("--time-unit", metavar="ns|us|ms|s|m|h", help="Unit of integer times.")]
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

ColumnsOption = Annotated[
    str, typer.Option("--columns", metavar="A,B", help="Columns of CSV messages, which then have no header.")
]
MappingOption = Annotated[
    Path | None, typer.Option("--mapping", metavar="FILE", help="TOML: table, tags, time and fields of each topic.")
]
SchemaDirOption = Annotated[
    str | None, typer.Option("--schema-dir", metavar="D", help="Avro schemas: ID.avsc, or the one of plain Avro.")
]
RegistryOption = Annotated[
    str | None, typer.Option("--registry", metavar="URL", help="The schema registry of Confluent-framed Avro.")
]
RAW_FORMATS = ("influx", "json", "csv", "avro", "confluent-avro", "confluent-json", "arrow")
"""The formats of messages in raw topics."""

_MAPPED = {
    "--table": "table",
    "--table-column": "table_column",
    "--tags": "tags",
    "--tag": "static_tags",
    "--time-column": "time_column",
    "--time-unit": "time_unit",
    "--time-format": "time_format",
    "--columns": "columns",
}
"""What a mapping has, by the option that has it otherwise."""

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
    columns: str = "",
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
            columns=tuple(part.strip() for part in columns.split(",") if part.strip()),
        )
    except OptionsError as error:
        raise UsageInvalid(error.message, action=error.action) from error


def static_tag(text: str) -> tuple[str, str]:
    """Key and value of `--tag KEY=VALUE`. Raises UsageInvalid."""
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise UsageInvalid(f"--tag {text} is not KEY=VALUE", action="for example --tag site=north")
    return key, value


def mapped_options(file: Path, topic: str, given: FormatOptions) -> tuple[str | None, FormatOptions]:
    """(database, options) of a topic in a mapping; `given` are those of the command. Raises UsageInvalid."""
    from headrace.connectors.formats.interface import FormatOptions, OptionsError
    from headrace.connectors.formats.mapping import read_mapping

    plain = FormatOptions()
    for option, name in _MAPPED.items():
        if getattr(given, name) != getattr(plain, name):
            raise UsageInvalid(f"{option} and --mapping exclude each other", action=f"the mapping has it as {name}")
    try:
        text = file.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageInvalid(f"the mapping {file} cannot be read: {error}") from error
    try:
        found = read_mapping(text, topic)
    except OptionsError as error:
        raise UsageInvalid(f"{file}: {error.message}", action=error.action) from error
    return found.database, found.options


def database_and_options(
    database: str | None, options: FormatOptions, form: str, mapping: Path | None, topic: str
) -> tuple[str, FormatOptions]:
    """Those of the command, or of its mapping. Raises UsageInvalid."""
    if form not in RAW_FORMATS:
        raise UsageInvalid(f"--format {form} is not read from topics", action=f"choose one of {', '.join(RAW_FORMATS)}")
    if mapping is not None:
        named, options = mapped_options(mapping, topic, options)
        if database is not None and named not in (None, database):
            raise UsageInvalid(f"--database {database} is {named} in the mapping", action="give one of them")
        database = database or named
    if database is None:
        raise UsageInvalid("no database is named", action="give --database DB")
    return database, options


def with_schemas(options: FormatOptions, form: str, schema_dir: str | None, registry: str | None) -> FormatOptions:
    """Options with the place of the schemas. Raises UsageInvalid for a format that needs none, or has none."""
    from dataclasses import replace

    from headrace.connectors.formats.interface import SCHEMA_FORMATS, OptionsError, SchemaPlace

    if form not in SCHEMA_FORMATS:
        for option, value in (("--schema-dir", schema_dir), ("--registry", registry)):
            if value is not None:
                raise UsageInvalid(
                    f"{option} is not for --format {form}", action=f"only {' and '.join(SCHEMA_FORMATS)}"
                )
        return options
    from headrace.connectors.formats.schema_store import check_place

    # A worker may have another working directory.
    place = SchemaPlace(None if schema_dir is None else str(Path(schema_dir).absolute()), registry)
    try:
        check_place(place, numbered=form == "confluent-avro")
    except OptionsError as error:
        raise UsageInvalid(error.message, action=error.action) from error
    return replace(options, schemas=place)
