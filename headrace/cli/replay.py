"""`headrace replay`: rebuild a stopped node's store from the topics."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from headrace.cli.generate import parse_start
from headrace.cli.node import load_node_settings
from headrace.cli.option_groups import grouped
from headrace.cli.options import ClusterOptions, DataDirectoryOption, JsonOption, NodeIdOption
from headrace.connectors.arrow_start import keep_pandas_out
from headrace.consumers.node.allocator import keep_freed
from headrace.terminal.command import UsageInvalid, run_command
from headrace.terminal.output import counted

if TYPE_CHECKING:
    from headrace.consumers.replication.row_selection import RowSelection
    from headrace.settings import Settings
    from headrace.terminal.output import Output


def register(app: typer.Typer) -> None:
    """Add the command `replay`."""
    app.command()(replay)


@grouped
def replay(
    *,
    cluster: ClusterOptions,
    node_id: NodeIdOption = None,
    data_dir: DataDirectoryOption = None,
    may_replace: Annotated[bool, typer.Option("--replace", help="Replace a data directory that is not empty.")] = False,
    table: Annotated[
        str | None,
        typer.Option("--table", metavar="T", help="Only rows of DATABASE.TABLE, as Parquet files in --data-dir."),
    ] = None,
    start: Annotated[
        str | None, typer.Option("--start", metavar="TIME", help="From this time on: ISO 8601 (UTC), or nanoseconds.")
    ] = None,
    end: Annotated[str | None, typer.Option("--end", metavar="TIME", help="Before this time.")] = None,
    json_output: JsonOption = False,
) -> None:
    """Rebuild a stopped node's store from the topics; the old one is deleted when the new one is complete.

    With --table the rows of one table become Parquet files in a new directory, and the node may run.
    """
    # Patient: what it has begun is removed first, also on SIGTERM and when the terminal is closed.
    with run_command(json_output, patient=True) as output:
        selection = selected(table, start, end, may_replace=may_replace, data_dir=data_dir)
        keep_freed()
        keep_pandas_out()
        loaded = load_node_settings(
            {
                **cluster.flags(),
                "node.id": node_id,
                "node.data_dir": data_dir,
            }
        )
        _replay_and_report(output, loaded, selection, may_replace=may_replace)


def _replay_and_report(
    output: Output, settings: Settings, selection: RowSelection | None, *, may_replace: bool
) -> None:
    from headrace.consumers.node.offline_replay import replay as rebuild
    from headrace.consumers.node.selected_replay import replay_selection

    with output.progress("replaying", unit="records") as advance:
        shown = 0

        def move(done: int, total: int) -> None:
            nonlocal shown
            advance(done - shown, total)
            shown = done

        if selection is None:
            replayed = rebuild(settings, may_replace=may_replace, on_progress=move)
        else:
            replayed = replay_selection(settings, selection, on_progress=move)
    count = replayed.loaded_files
    fetched = f"; {counted(count, 'file')} that the logs had loaded came from other members" if count else ""
    output.result(
        asdict(replayed),
        f"{counted(replayed.rows, 'row')} of {counted(replayed.records, 'record')} in "
        f"{counted(replayed.segments, 'segment' if selection is None else 'file')} after {replayed.seconds:.1f} s{fetched}",
    )


def selected(
    table: str | None, start: str | None, end: str | None, *, may_replace: bool, data_dir: Path | None
) -> RowSelection | None:
    """What --table, --start and --end name; None for everything. Raises UsageInvalid."""
    if table is None:
        if start is not None or end is not None:
            raise UsageInvalid("--start and --end need a table", action="add --table DATABASE.TABLE")
        return None
    from headrace.consumers.replication.row_selection import RowSelection

    database, dot, name = table.partition(".")
    if not (database and dot and name):
        raise UsageInvalid(f"--table {table} is not DATABASE.TABLE", action="for example --table plant.pumps")
    if may_replace:
        raise UsageInvalid(
            "--table and --replace contradict each other",
            action="the rows of a table go to a new directory: name one with --data-dir",
        )
    if data_dir is None:
        raise UsageInvalid("--table needs a new directory", action="name one with --data-dir")
    start_ns = None if start is None else parse_start(start, "--start")
    end_ns = None if end is None else parse_start(end, "--end")
    if start_ns is not None and end_ns is not None and start_ns >= end_ns:
        raise UsageInvalid(f"--start {start} is not before --end {end}", action="times are start <= time < end")
    return RowSelection(database, name, start_ns, end_ns)
