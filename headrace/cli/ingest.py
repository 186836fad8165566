"""`headrace ingest`: raw topics become forward logs, through Spark."""

from __future__ import annotations

import signal
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from headrace.cli.ingest_display import JsonLines, absent_names, live_display, show_dry_run
from headrace.cli.ingest_server import MetricsAddressOption, served_metrics
from headrace.cli.message_options import MessageOptions, message_job
from headrace.cli.option_groups import grouped
from headrace.cli.options import ClusterOptions, JsonOption, seconds_of
from headrace.cli.paths import path_of, path_text
from headrace.cli.row_options import RowOptions
from headrace.schemas.errors import HeadraceError
from headrace.terminal.command import EXIT_INTERRUPTED, run_command
from headrace.terminal.output import Output, counted, refused_lines
from headrace.terminal.stop_signals import StopSignals, stop_signals

if TYPE_CHECKING:
    from headrace.pipeline.ingest import RunOptions
    from headrace.pipeline.ingest_metrics import IngestMetrics
    from headrace.pipeline.ingest_progress import IngestProgress
    from headrace.pipeline.job import IngestJob
    from headrace.settings import IngestSettings

SAMPLED_MAX = 100
"""Messages in which a run looks for what is named: of large ones a thousand would be too many at each start."""
CheckpointOption = Annotated[
    str | None, typer.Option("--checkpoint", metavar="D", parser=path_text, help="Where the query keeps its progress.")
]
CheckpointParentOption = Annotated[
    Path, typer.Option("--data-dir", metavar="D", parser=path_of, help="Parent of the checkpoint when none is given.")
]
MaxMessagesOption = Annotated[
    int, typer.Option("--max-messages", metavar="N", min=1, help="Most raw messages in one micro-batch.")
]
IntervalOption = Annotated[
    float,
    typer.Option(
        "--interval-s", metavar="SECONDS", parser=seconds_of, help="Least time from one micro-batch to the next."
    ),
]
WaitOption = Annotated[
    float,
    typer.Option("--timeout", metavar="SECONDS", parser=seconds_of, help="How long to wait for Kafka at the start."),
]


ingest = typer.Typer(help="From raw topics into the cluster, through Spark Structured Streaming.", no_args_is_help=True)


def register(app: typer.Typer) -> None:
    """Add the noun `ingest`."""
    app.add_typer(ingest, name="ingest")


# Without a callback typer would make the lone command the noun itself.
@ingest.callback()
def group() -> None:
    """From raw topics into the cluster, through Spark Structured Streaming."""


@ingest.command()
@grouped
def run(
    topic: Annotated[str, typer.Option("--topic", metavar="T", help="The raw topic; created if it is missing.")],
    *,
    messages: MessageOptions,
    rows: RowOptions,
    cluster: ClusterOptions,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show schema and five rows; write nothing.")] = False,
    available_now: Annotated[bool, typer.Option("--available-now", help="Stop at the topic's present end.")] = False,
    checkpoint: CheckpointOption = None,
    data_dir: CheckpointParentOption = Path(".headrace"),
    max_messages: MaxMessagesOption = 1_000_000,
    interval_s: IntervalOption = 1.0,
    timeout_s: WaitOption = 30.0,
    http: MetricsAddressOption = None,
    json_output: JsonOption = False,
) -> None:
    """Write the readings of a raw topic into a cluster.

    Good lines are written. With a line that cannot be read, the whole message goes to the dead letters: the
    topic dlq.TOPIC.
    """
    with run_command(json_output) as output:
        if json_output:
            output = JsonLines(json_output)
        settings, job = message_job(messages, rows, cluster, topic)
        if dry_run:
            _try_first_messages(job, output)
            return
        run_options = _run_options(checkpoint, data_dir, job, available_now, max_messages, interval_s, timeout_s)
        _run(output, job, run_options, settings.ingest, http)


def _try_first_messages(job: IngestJob, output: Output) -> None:
    from headrace.pipeline.dry_run import dry_run

    show_dry_run(job, dry_run(job), output)


def _run_options(checkpoint: str | None, data_dir: Path, job: IngestJob, *limits: Any) -> RunOptions:
    from headrace.pipeline.checkpoint import default_checkpoint
    from headrace.pipeline.ingest import RunOptions

    return RunOptions(checkpoint or default_checkpoint(data_dir, job), *limits)


def _run(output: Output, job: IngestJob, options: RunOptions, limits: IngestSettings, http: str | None) -> None:
    from headrace.pipeline.ingest_metrics import IngestMetrics

    metrics = IngestMetrics(job)
    with served_metrics(metrics, http, output):
        _run_measured(output, job, options, limits, metrics)


def _run_measured(
    output: Output, job: IngestJob, options: RunOptions, limits: IngestSettings, metrics: IngestMetrics
) -> None:
    from headrace.pipeline.failures import StoppedEarly, check_ended

    started_s = time.monotonic()
    progress = None
    with stop_signals(output.note) as signals:
        try:
            progress = _ingest(output, job, options, limits, signals, metrics)
        except KeyboardInterrupt:
            # A service manager stops with SIGTERM, which is no failure. Ctrl-C ends with 130 everywhere.
            if signals.received == signal.SIGINT:
                raise
            if signals.cut_off:
                raise StoppedEarly(
                    "a second signal ended the command within a micro-batch",
                    action="start it again: it continues from the checkpoint",
                ) from None
    if progress is not None:
        _report(output, job.topic, progress, time.monotonic() - started_s)
    if signals.received == signal.SIGINT:
        raise typer.Exit(EXIT_INTERRUPTED)
    if options.available_now:
        check_ended(ended=progress is not None and progress.ended)


def _ingest(
    output: Output,
    job: IngestJob,
    options: RunOptions,
    limits: IngestSettings,
    signals: StopSignals,
    metrics: IngestMetrics,
) -> IngestProgress:
    from headrace.connectors.log.client_check import check_client_settings
    from headrace.pipeline.checkpoint import held_checkpoint
    from headrace.pipeline.failures import naming_log
    from headrace.pipeline.ingest import prepare
    from headrace.pipeline.ingest_run import run_ingest
    from headrace.pipeline.session import end_session, open_session

    options = replace(options, rejected_share_max=limits.rejected_share_max)
    # Before there is a checkpoint.
    check_client_settings(dict(job.settings))
    with held_checkpoint(options.checkpoint, job, notify=output.note) as held:
        prepare(job, options, output.note)
        _note_absent(job, output)
        # From here on rows may be in flight: the first signal lets the micro-batch finish. Before, it
        # interrupts at once.
        signals.begin_work()
        log_file = held.log_file if held else None
        session = open_session(
            f"headrace ingest {job.topic}",
            log_file=log_file,
            settings={
                "spark.master": f"local[{limits.threads}]",
                "spark.driver.memory": f"{limits.driver_memory_mb}m",
            },
            keep_open=held.descriptors if held else (),
            progress=output.note,
        )
        with naming_log(log_file), end_session(session), live_display(job.topic, output) as show:

            def on_progress(progress: IngestProgress) -> None:
                metrics.note(progress)
                show(progress)

            done = run_ingest(
                session, job, options, on_progress=on_progress, should_stop=signals.stop, notify=output.note
            )
            # The last batch may have ended between two looks.
            on_progress(done)
            return done


def _note_absent(job: IngestJob, output: Output) -> None:
    """Warn of named tags and fields that the first rows lack: values of a misspelt tag become a field."""
    from headrace.pipeline.dry_run import dry_run

    if not (job.options.tags or job.options.sources):
        return
    # What keeps the messages from being read now is an error of the run, or waited for by it.
    with suppress(HeadraceError):
        if absent := dry_run(job, SAMPLED_MAX).absent:
            output.note(f"warning: in the first {SAMPLED_MAX} messages {absent_names(absent)}")


def _report(output: Output, topic: str, progress: IngestProgress, seconds: float) -> None:
    counts = progress.counts
    document = {
        "rows": counts.rows,
        "points": counts.points,
        "rejected": counts.rejected,
        "batches": progress.batches,
        "seconds": round(seconds, 3),
    }
    written = f"{counted(counts.rows, 'row')}, {counted(counts.points, 'point')}"
    text = f"{written} in {progress.batches:,} {'batch' if progress.batches == 1 else 'batches'}, {seconds:.1f} s"
    if counts.rejected:
        messages = "its message is" if counts.rejected == 1 else "their messages are"
        text += f"; {refused_lines(counts.rejected)}, {messages} in dlq.{topic}"
    output.result(document, text)
