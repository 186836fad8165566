"""`headrace backfill`: Parquet or CSV files into the forward logs, through Spark."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.option_groups import grouped
from headrace.cli.options import ClusterOptions, JsonOption
from headrace.cli.paths import path_of, path_text
from headrace.cli.row_options import DelimiterOption, RowOptions
from headrace.cli.session import require_cluster
from headrace.connectors.arrow_start import keep_pandas_out
from headrace.terminal.command import UsageInvalid, run_command
from headrace.terminal.interruption import be_patient
from headrace.terminal.output import Output, counted
from headrace.terminal.stop_signals import interrupting_signals

if TYPE_CHECKING:
    from headrace.connectors.formats.interface import FormatOptions
    from headrace.pipeline.backfill import Backfilled, Prepared
    from headrace.pipeline.backfill_plan import BackfillJob
    from headrace.pipeline.backfill_state import BackfillState
    from headrace.settings import Settings

WAIT_S = 30.0
OrderedOption = Annotated[
    bool, typer.Option("--ordered", help="One file after the other, by name: rows of later ones win.")
]
IgnoreFoldersOption = Annotated[
    bool, typer.Option("--ignore-folders", help="Leave out columns of folders NAME=VALUE that are no tags.")
]


def register(app: typer.Typer) -> None:
    """Add the command `backfill`."""
    app.command()(backfill)


@grouped
def backfill(
    patterns: Annotated[
        list[str],
        typer.Argument(
            metavar="PATTERN...", parser=path_text, help="Files, or patterns of files: 'data/**/*.parquet'."
        ),
    ],
    database: Annotated[str, typer.Option("--database", metavar="DB", help="Database to write into.")],
    table: Annotated[str, typer.Option("--table", metavar="T", help="Table of every row.")],
    form: Annotated[str, typer.Option("--format", metavar="parquet|csv", help="Format of the files.")],
    *,
    cluster: ClusterOptions,
    rows: RowOptions,
    delimiter: DelimiterOption = ",",
    no_tags: Annotated[bool, typer.Option("--no-tags", help="A new table without tags is meant so.")] = False,
    ordered: OrderedOption = False,
    ignore_folders: IgnoreFoldersOption = False,
    again: Annotated[bool, typer.Option("--again", help="Write files again that an earlier run has written.")] = False,
    changed: Annotated[
        bool, typer.Option("--changed", help="Write files again that changed since an earlier run.")
    ] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option("--checkpoint", metavar="D", parser=path_of, help="Where the progress by file is kept."),
    ] = None,
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="D", parser=path_of, help="Parent of the state when none is given.")
    ] = Path(".headrace"),
    json_output: JsonOption = False,
) -> None:
    """Write Parquet or CSV files into a table.

    Files that an earlier run has written are left out; a run that was killed is completed by the next one.
    """
    with run_command(json_output) as output:
        from headrace.settings import load_settings

        if form not in ("parquet", "csv"):
            raise UsageInvalid(f"--format {form} is unknown", action="choose one of parquet, csv")
        options = rows.with_table(table, delimiter=delimiter)
        keep_pandas_out()
        loaded = load_settings({**cluster.flags(), "write.time_resolution": rows.time_resolution})
        how = {"any_time": rows.any_time, "ordered": ordered, "ignores_folders": ignore_folders}
        job, paths = _job(loaded, patterns, database, table, form, options, how)
        begun_s = time.monotonic()
        known = _prepare(job, output, no_tags=no_tags)
        place = checkpoint or data_dir / job.target.cluster / "backfill" / job.target.name
        done = _run(output, loaded, job, paths, place, known, (again, changed))
        _report(output, done, time.monotonic() - begun_s)


def _job(
    settings: Settings,
    patterns: list[str],
    database: str,
    table: str,
    form: str,
    options: FormatOptions,
    how: Mapping[str, bool],
) -> tuple[BackfillJob, list[str]]:
    """(the job, its files). Raises FilesMissing, ClientSettingsRefused."""
    from headrace.connectors.log.client_check import check_client_settings
    from headrace.pipeline.backfill_plan import BackfillFormat, BackfillJob, find_files
    from headrace.pipeline.source_options import Target
    from headrace.schemas.tables import TimeResolution

    require_cluster(settings)
    check_client_settings(dict(settings.kafka))
    # Before Kafka: a misspelt name must not wait for a broker first.
    paths = find_files(patterns)
    place, kafka = settings.cluster, tuple(sorted(settings.kafka.items()))
    target = Target(database, table, place.name, place.bootstrap, kafka)
    resolution = TimeResolution(settings.write.time_resolution)
    kind: BackfillFormat = "csv" if form == "csv" else "parquet"
    return BackfillJob(target, kind, options, resolution, **how), paths


def _prepare(job: BackfillJob, output: Output, *, no_tags: bool) -> Prepared:
    from headrace.pipeline.backfill import prepare

    return prepare(job, WAIT_S, output.note, no_tags=no_tags)


def _run(
    output: Output,
    settings: Settings,
    job: BackfillJob,
    paths: list[str],
    directory: Path,
    cluster: Prepared,
    how: tuple[bool, bool],
) -> Backfilled:
    from headrace.pipeline.backfill import Backfilled
    from headrace.pipeline.backfill_plan import plan_files

    again, changed = how
    job, opened = cluster.begin(job, directory)
    with opened as state:
        plan = plan_files(job, paths, state, cluster.tags, again=again, changed=changed)
        if not plan.files:
            return Backfilled(skipped=plan.written_before)
        # From here on there are processes to end and folders to remove, whatever ends the command.
        with interrupting_signals():
            be_patient()
            return _through_spark(output, settings, job, plan, state)


def _through_spark(
    output: Output, settings: Settings, job: BackfillJob, plan: object, state: BackfillState
) -> Backfilled:
    from headrace.pipeline.backfill import run_backfill
    from headrace.pipeline.backfill_plan import BackfillPlan
    from headrace.pipeline.failures import naming_log
    from headrace.pipeline.session import end_session, open_session

    assert isinstance(plan, BackfillPlan), plan
    limits, log_file = settings.ingest, state.directory / "spark.log"
    session = open_session(
        f"headrace backfill {job.target.name}",
        log_file=log_file,
        settings={
            "spark.master": f"local[{limits.threads}]",
            "spark.driver.memory": f"{limits.driver_memory_mb}m",
        },
        progress=output.note,
    )
    with naming_log(log_file), end_session(session), output.progress("writing", plan.size_bytes, "B") as advance:
        shown = 0

        def move(done: int) -> None:
            nonlocal shown
            advance(done - shown)
            shown = done

        return run_backfill(session, job, plan, state, on_progress=move)


def _report(output: Output, done: Backfilled, seconds: float) -> None:
    document = {
        "files": done.files,
        "rows": done.rows,
        "points": done.points,
        "skipped": done.skipped,
        "seconds": round(seconds, 3),
    }
    written = f"{counted(done.files, 'file')}, {counted(done.rows, 'row')}, {counted(done.points, 'point')}"
    text = f"{written} in {seconds:.1f} s"
    if done.skipped:
        text += f"; {counted(done.skipped, 'file')} written before"
    output.result(document, text)
