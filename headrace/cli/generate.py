"""`headrace generate`: deterministic data sets in the manner of TSBS, for tests and benchmarks."""

from __future__ import annotations

import json
import re
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.options import JsonOption
from headrace.cli.paths import path_text
from headrace.schemas.tables import ROW_TIME_MAX_NS, ROW_TIME_MIN_NS
from headrace.terminal.command import UsageInvalid, run_command
from headrace.terminal.output import Output

if TYPE_CHECKING:
    from headrace.workload import Workload
    from headrace.workload.files import Format, Progress

STANDARD_OUTPUT = "-"
_DEFAULT_START = "2026-01-01T00:00:00Z"
_UNIT_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_DURATION = re.compile(rf"(?:{_DURATION_PART.pattern})+")
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

DurationOption = Annotated[str, typer.Option("--duration", metavar="D", help="Time covered: 2h, 90m, 1d, 1h30m, 45s.")]
IntervalOption = Annotated[str, typer.Option("--interval", metavar="D", help="Time between two rows of one series.")]
StartOption = Annotated[
    str, typer.Option("--start", metavar="TIME", help="Time of the first row: ISO 8601 (UTC), or nanoseconds.")
]
SeedOption = Annotated[int, typer.Option("--seed", metavar="S", help="The same seed gives the same data.")]
FormatOption = Annotated[
    str | None,
    typer.Option(
        "--format",
        metavar="parquet|arrow|influx|json",
        help="Format of the files; by default that of the output's suffix, else parquet.",
    ),
]
OutputOption = Annotated[
    str,
    typer.Option(
        "--output",
        "-o",
        metavar="PATH|-",
        parser=path_text,
        help="Directory for one file a table; or one file, when it ends as the format's files do (.parquet, .arrow, "
        ".lp, .json) and holds one table, or is line protocol. - is standard output (influx, json).",
    ),
]
TablesOption = Annotated[str, typer.Option("--tables", metavar="A,B", help="Only these tables.")]

generate = typer.Typer(help="Write a deterministic data set in the manner of TSBS.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the noun `generate`."""
    app.add_typer(generate, name="generate")


@generate.command()
def iot(
    output: OutputOption,
    trucks: Annotated[int, typer.Option("--trucks", metavar="N", help="Number of trucks.")] = 100,
    duration: DurationOption = "1h",
    interval: IntervalOption = "10s",
    start: StartOption = _DEFAULT_START,
    seed: SeedOption = 0,
    form: FormatOption = None,
    disorder: Annotated[
        bool, typer.Option("--disorder", help="Leave out and delay rows and batches of rows, and leave out fields.")
    ] = False,
    tables: TablesOption = "",
    json_output: JsonOption = False,
) -> None:
    """A fleet of trucks: tables `readings` (7 fields) and `diagnostics` (3 fields), a row every 10 s."""
    with run_command(json_output) as out, _usage_errors():
        from headrace import workload

        times = parse_start(start), parse_duration("--duration", duration), parse_duration("--interval", interval)
        made = workload.iot(trucks, *times, seed, disorder)
        _write(out, made, form, output, tables)


@generate.command()
def cpu(
    output: OutputOption,
    hosts: Annotated[int, typer.Option("--hosts", metavar="N", help="Number of servers.")] = 100,
    duration: DurationOption = "1h",
    interval: IntervalOption = "10s",
    start: StartOption = _DEFAULT_START,
    seed: SeedOption = 0,
    form: FormatOption = None,
    json_output: JsonOption = False,
) -> None:
    """Servers: table `cpu`, 10 integer fields that walk in [0, 100], a row every 10 s per host."""
    with run_command(json_output) as out, _usage_errors():
        from headrace import workload

        times = parse_start(start), parse_duration("--duration", duration), parse_duration("--interval", interval)
        made = workload.cpu(hosts, *times, seed)
        _write(out, made, form, output, "")


def parse_duration(option: str, text: str) -> float:
    """A duration such as `1h30m` in seconds. Raises `UsageInvalid`, naming the option."""
    if not _DURATION.fullmatch(text):
        raise UsageInvalid(f"{option} {text} is not a duration", action="for example 2h, 90m, 1d, 1h30m or 45s")
    return sum(float(count) * _UNIT_SECONDS[unit] for count, unit in _DURATION_PART.findall(text))


def parse_start(text: str, option: str = "--start") -> int:
    """Nanoseconds of a time in ISO 8601 (UTC without a zone) or in nanoseconds. Raises `UsageInvalid`."""
    # Nine digits at least: fewer are a year or a date of ISO 8601, such as 20260101.
    if re.fullmatch(r"-?\d{9,40}", text):
        return _of_a_row(_plausible(int(text), option), text, option)
    try:
        parsed = datetime.fromisoformat(text)
    except ValueError:
        action = f"for example {_DEFAULT_START}, or nanoseconds of nine digits at least"
        raise UsageInvalid(f"{option} {text} is not a time", action=action) from None
    aware = parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)
    # Integers all the way: today in nanoseconds does not fit into the 53 bits of the float that `timestamp()`
    # returns.
    return _of_a_row((aware - _EPOCH) // timedelta(microseconds=1) * 1_000, text, option)


def _of_a_row(time_ns: int, text: str, option: str) -> int:
    """A time that rows may have: others do not fit into what has it. Raises `UsageInvalid`."""
    if not ROW_TIME_MIN_NS <= time_ns <= ROW_TIME_MAX_NS:
        raise UsageInvalid(f"{option} {text} is a time that no row has", action="give one of the years 1677 to 2262")
    return time_ns


def _plausible(start_ns: int, option: str) -> int:
    """A number of nanoseconds that is none of another unit. Raises `UsageInvalid`."""
    from headrace.connectors.formats.time_rules import UNIT_NAMES, looks_like

    unit = looks_like(start_ns)
    if unit not in (None, "ns"):
        raise UsageInvalid(f"{option} {start_ns} looks like {UNIT_NAMES[unit]}", action="give nanoseconds, or ISO 8601")
    return start_ns


def _write(out: Output, made: Workload, form_name: str | None, target: str, tables_text: str) -> None:
    """Write the chosen tables, and print what was written."""
    from headrace.workload.files import format_of, target_files, write_files, write_stream

    form = _format(form_name) if form_name is not None else format_of(target)
    tables = made.chosen(_names(tables_text) or None)
    total = sum(made.rows_of(name) for name in tables)
    started_s = time.perf_counter()
    if target == STANDARD_OUTPUT:
        files: list[str] = []
        last = _shown(out, write_stream(made, form, sys.stdout.buffer, tables), total)
        sys.stdout.flush()
    else:
        paths = target_files(made, form, Path(target), tables)
        # One file may hold several tables in line protocol; it is listed once.
        files = [str(path) for path in dict.fromkeys(paths.values())]
        last = _shown(out, write_files(made, form, paths), total)
    seconds = round(time.perf_counter() - started_s, 3)
    _report(out, {"rows": last.rows, "points": last.points, "seconds": seconds, "files": files})


def _shown(out: Output, written: Generator[Progress, None, None], total_rows: int) -> Progress:
    """Write behind a progress bar and return the last progress; an interruption deletes partial files."""
    from headrace.workload.files import Progress

    last = Progress(0, 0)
    with closing(written), out.progress("generating", total_rows) as advance:
        for progress in written:
            advance(progress.rows - last.rows)
            last = progress
    return last


def _report(out: Output, document: dict[str, Any]) -> None:
    """The result on stdout, or on stderr when stdout has the data."""
    text = "{rows:,} rows, {points:,} points in {seconds:.1f} s".format(**document)
    if document["files"]:
        out.result(document, f"{text}: {', '.join(document['files'])}")
    else:
        out.note(json.dumps(document) if out.json_output else text)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _format(name: str) -> Format:
    from headrace.workload.files import Format

    try:
        return Format(name)
    except ValueError:
        raise UsageInvalid(f"--format {name} is unknown", action=f"choose one of {', '.join(Format)}") from None


@contextmanager
def _usage_errors() -> Iterator[None]:
    """Turn an impossible workload into an error of the command line."""
    from headrace.workload import WorkloadInvalid

    try:
        yield
    except WorkloadInvalid as error:
        raise UsageInvalid(error.message, action=error.action) from error
