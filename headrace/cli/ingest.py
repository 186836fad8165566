"""`headrace ingest`: raw topics become forward logs, through Spark."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.output import JsonOption, Output, SettingsOption, UsageInvalid, parse_settings, run_command

if TYPE_CHECKING:
    from connectors.formats.parsed import FormatOptions
    from pipeline.progress import IngestProgress

FORMATS = ("influx", "json")

ingest = typer.Typer(help="From raw topics into the cluster, through Spark Structured Streaming.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the noun `ingest`."""
    app.add_typer(ingest, name="ingest")


@ingest.command()
def run(
    cluster: Annotated[str, typer.Option("--cluster", metavar="C", help="Name of the cluster.")],
    bootstrap: Annotated[str, typer.Option("--bootstrap", metavar="B", help="Address of Kafka.")],
    topic: Annotated[str, typer.Option("--topic", metavar="T", help="The raw topic; made if it is not there.")],
    database: Annotated[
        str, typer.Option("--database", metavar="DB", help="Database that takes the rows; made if it is not there.")
    ],
    format_name: Annotated[
        str, typer.Option("--format", metavar="F", help="influx (line protocol) or json (one object a line).")
    ] = "influx",
    table: Annotated[str | None, typer.Option("--table", help="Table of all rows.")] = None,
    table_column: Annotated[
        str | None, typer.Option("--table-column", help="JSON member that names the table.")
    ] = None,
    tags: Annotated[str, typer.Option("--tags", metavar="A,B", help="Columns that identify a series.")] = "",
    tag: Annotated[
        list[str] | None, typer.Option("--tag", metavar="KEY=VALUE", help="A tag added to every row; may be repeated.")
    ] = None,
    time_column: Annotated[str, typer.Option("--time-column", help="Column of the time.")] = "time",
    time_unit: Annotated[str, typer.Option("--time-unit", help="Unit of whole-number times: ns, us, ms or s.")] = "ns",
    time_format: Annotated[
        str | None, typer.Option("--time-format", metavar="FMT", help="strptime form of times that are text.")
    ] = None,
    available_now: Annotated[bool, typer.Option("--available-now", help="Stop at the topic's present end.")] = False,
    checkpoint: Annotated[
        str | None,
        typer.Option(
            "--checkpoint", metavar="D", help="Where the query keeps how far it came; made if it is not there."
        ),
    ] = None,
    data_dir: Annotated[Path, typer.Option("--data-dir", metavar="D", help="Parent of the default checkpoint.")] = Path(
        ".headrace"
    ),
    max_messages: Annotated[
        int, typer.Option("--max-messages", min=1, help="Most raw messages in one micro-batch (maxOffsetsPerTrigger).")
    ] = 1_000_000,
    interval_s: Annotated[
        float, typer.Option("--interval-s", min=0.0, help="Least time between two micro-batches.")
    ] = 1.0,
    wait_s: Annotated[float, typer.Option("--wait-s", min=0.0, help="How long to wait for Kafka at the start.")] = 30.0,
    settings: SettingsOption = None,
    json_output: JsonOption = False,
) -> None:
    """Write the readings of a raw topic into a cluster; what cannot be read goes to the topic `dlq.TOPIC`."""
    with run_command(json_output) as output:
        if format_name not in FORMATS:
            raise UsageInvalid(f"--format {format_name} is not read from topics", action="use influx or json")
        from pipeline.checkpoint import default_checkpoint
        from pipeline.ingest import RunOptions
        from pipeline.job import IngestJob

        job = IngestJob(
            cluster,
            bootstrap,
            topic,
            database,
            "json" if format_name == "json" else "influx",
            table_options(table, table_column, tags, tag or [], time_column, time_unit, time_format),
            tuple(sorted(parse_settings(settings).items())),
        )
        place = checkpoint or default_checkpoint(data_dir, job)
        options = RunOptions(place, available_now, max_messages, interval_s, wait_s)
        _run(output, job, options)


def table_options(
    table: str | None,
    table_column: str | None,
    tags: str,
    static_tags: list[str],
    time_column: str,
    time_unit: str,
    time_format: str | None,
) -> FormatOptions:
    """The table options of the command line as a value. Raises UsageInvalid, OptionsError."""
    from connectors.formats.parsed import NS_PER_UNIT, FormatOptions

    pairs = [text.partition("=") for text in static_tags]
    if wrong := [name for name, separator, _ in pairs if not separator or not name]:
        raise UsageInvalid(f"--tag {wrong[0]} is not KEY=VALUE", action="for example --tag site=north")
    if time_unit not in NS_PER_UNIT:
        raise UsageInvalid(f"--time-unit {time_unit} is no unit", action=f"use one of {', '.join(NS_PER_UNIT)}")
    return FormatOptions(
        table=table,
        table_column=table_column,
        tags=tuple(name.strip() for name in tags.split(",") if name.strip()),
        static_tags=tuple((name, value) for name, _, value in pairs),
        time_column=time_column,
        time_unit=time_unit,  # type: ignore[arg-type]
        time_format=time_format,
    )


def _run(output: Output, job: Any, options: Any) -> None:
    import time

    from headrace.cli.ingest_display import live_display
    from pipeline.checkpoint import held_checkpoint
    from pipeline.ingest import prepare, run_ingest
    from pipeline.session import open_session

    started_s = time.monotonic()
    with _stop_signals() as stop, held_checkpoint(options.checkpoint, job) as log_file:
        prepare(job, options, output.note)
        session = open_session(f"headrace ingest {job.topic}", log_file=log_file, progress=output.note)
        try:
            with live_display(job.topic) as show:
                progress = run_ingest(
                    session, job, options, on_progress=show, should_stop=lambda: bool(stop), say=output.note
                )
        finally:
            session.stop()
    _report(output, job.topic, progress, time.monotonic() - started_s)


def _report(output: Output, topic: str, progress: IngestProgress, seconds: float) -> None:
    counts = progress.counts
    document = {
        "rows": counts.rows,
        "points": counts.points,
        "rejected": counts.rejected,
        "batches": progress.batches,
        "seconds": round(seconds, 3),
    }
    text = f"{counts.rows} rows ({counts.points} points) written in {progress.batches} batches, {seconds:.1f} s"
    if counts.rejected:
        text += f"; {counts.rejected} bad lines are in dlq.{topic}"
    output.result(document, text)


@contextmanager
def _stop_signals() -> Iterator[list[int]]:
    """A list that SIGTERM and SIGINT fill; a second one interrupts at once."""
    received: list[int] = []

    def note(number: int, _frame: object) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    previous = {number: signal.signal(number, note) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
