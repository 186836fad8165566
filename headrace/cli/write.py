"""`headrace write`: a file of readings into the log."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, get_args

import typer

from headrace.cli.node import BootstrapOption, ClusterOption
from headrace.cli.output import JsonOption, Output, SettingsOption, UsageInvalid, parse_settings, run_command

if TYPE_CHECKING:
    from connectors.formats.parsed import FormatOptions, Rejected
    from headrace._file_writing import FileProgress, FileWriting
    from headrace.settings import Settings

EXIT_REJECTED = 3
REJECTED_SHOWN = 20
STANDARD_INPUT = "-"
_SUFFIXES = {
    ".lp": "influx",
    ".influx": "influx",
    ".json": "json",
    ".jsonl": "json",
    ".ndjson": "json",
    ".csv": "csv",
    ".parquet": "parquet",
}


def register(app: typer.Typer) -> None:
    """Add the command `write`."""
    app.command()(write)


def write(
    file: Annotated[str, typer.Argument(metavar="FILE|-", help="File to write, also gzipped; - is standard input.")],
    database: Annotated[str, typer.Option("--database", metavar="DB", help="Database to write into.")],
    form: Annotated[
        str | None,
        typer.Option("--format", metavar="influx|json|csv|parquet", help="Format; by the file's name when left out."),
    ] = None,
    cluster: ClusterOption = None,
    bootstrap: BootstrapOption = None,
    table: Annotated[str | None, typer.Option("--table", metavar="T", help="Table of every row.")] = None,
    table_column: Annotated[
        str | None, typer.Option("--table-column", metavar="C", help="Column or member that names the table.")
    ] = None,
    tags: Annotated[str, typer.Option("--tags", metavar="A,B", help="Columns that identify a series.")] = "",
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="A tag for every row; may be repeated.")
    ] = None,
    time_column: Annotated[str, typer.Option("--time-column", metavar="C", help="Column with the time.")] = "time",
    time_unit: Annotated[str, typer.Option("--time-unit", metavar="ns|us|ms|s", help="Unit of integer times.")] = "ns",
    time_format: Annotated[
        str | None, typer.Option("--time-format", metavar="FMT", help="Form of text times (strptime); else ISO 8601.")
    ] = None,
    delimiter: Annotated[str, typer.Option("--delimiter", metavar="CHAR", help="Between the columns of CSV.")] = ",",
    quorum: Annotated[
        int | None,
        typer.Option("--quorum", metavar="K", min=0, help="0 = not awaited, 1 = in the log, K = at K nodes."),
    ] = None,
    settings: SettingsOption = None,
    json_output: JsonOption = False,
) -> None:
    """Write a file of readings. Good lines are written; bad ones are told on stderr, and the exit code is 3."""
    with run_command(json_output) as output:
        from headrace.settings import load_settings

        name = format_of(file, form)
        options = format_options(table, table_column, tags, tag or [], time_column, time_unit, time_format, delimiter)
        loaded = load_settings(
            {
                "cluster.name": cluster,
                "cluster.bootstrap": bootstrap,
                "write.quorum": quorum,
                "kafka": parse_settings(settings),
            }
        )
        if file != STANDARD_INPUT and not Path(file).is_file():
            raise UsageInvalid(f"there is no file {file}")
        started_s = time.perf_counter()
        done = _write_file(output, loaded, file, database, name, options)
        seconds = round(time.perf_counter() - started_s, 3)
        _report(output, done, seconds)
        if done.rejected:
            raise typer.Exit(EXIT_REJECTED)


def format_of(file: str, form: str | None) -> str:
    """The format that was given, or that the file's name says. Raises UsageInvalid."""
    from connectors.formats.parsed import FORMATS

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
    static_tags: list[str],
    time_column: str,
    time_unit: str,
    time_format: str | None,
    delimiter: str = ",",
) -> FormatOptions:
    """The options of a format from those of a command. Raises UsageInvalid."""
    from connectors.formats.parsed import FormatOptions, OptionsError, TimeUnit

    units = get_args(TimeUnit)
    if time_unit not in units:
        raise UsageInvalid(f"--time-unit {time_unit} is unknown", action=f"choose one of {', '.join(units)}")
    try:
        return FormatOptions(
            table=table,
            tags=tuple(part.strip() for part in tags.split(",") if part.strip()),
            static_tags=tuple(_static_tag(text) for text in static_tags),
            time_column=time_column,
            time_unit=time_unit,  # type: ignore[arg-type]
            time_format=time_format,
            table_column=table_column,
            delimiter=delimiter,
        )
    except OptionsError as error:
        raise UsageInvalid(error.message, action=error.action) from error


def _static_tag(text: str) -> tuple[str, str]:
    key, separator, value = text.partition("=")
    if not separator or not key:
        raise UsageInvalid(f"--tag {text} is not KEY=VALUE", action="for example --tag site=north")
    return key, value


def _write_file(
    output: Output, settings: Settings, file: str, database: str, form: str, options: FormatOptions
) -> FileProgress:
    from consumers.membership.writer import WriterSettings
    from headrace._connection import close_cluster, open_cluster
    from headrace._file_writing import FileWriting
    from schemas.errors import HeadraceError

    def show(line: Rejected) -> None:
        output.note(f"{'row' if form == 'parquet' else 'line'} {line.line + 1}: {line.reason}")

    writer = WriterSettings(settings.write.quorum, settings.write.quorum_timeout_ms, settings.write.compression)
    cluster = open_cluster(settings, on_wait=output.note)
    try:
        writing = FileWriting(cluster, database, writer, show, REJECTED_SHOWN)
        try:
            _run(output, writing, file, form, options)
        except HeadraceError:
            output.note(f"{writing.progress.rows:,} rows were sent before this failed; writing them again is safe")
            raise
        finally:
            hidden = writing.progress.rejected - REJECTED_SHOWN
            if hidden > 0:
                output.note(f"and {hidden:,} more were not taken")
    finally:
        close_cluster(cluster)
    return writing.progress


def _run(output: Output, writing: FileWriting, file: str, form: str, options: FormatOptions) -> None:
    """Write, beside a bar of bytes, or of rows where the number of bytes is not known."""
    total = None if file == STANDARD_INPUT else Path(file).stat().st_size
    shown = 0
    with output.progress("writing", total, "rows" if total is None else "B") as advance:
        for progress in writing.write(file, form, options):
            reached = progress.rows if total is None else progress.bytes_read
            advance(reached - shown)
            shown = reached


def _report(output: Output, done: FileProgress, seconds: float) -> None:
    document = {"rows": done.rows, "points": done.points, "rejected": done.rejected, "seconds": seconds}
    rejected = f", {done.rejected:,} lines were not taken" if done.rejected else ""
    output.result(document, f"{done.rows:,} rows, {done.points:,} points in {seconds:.1f} s{rejected}")
