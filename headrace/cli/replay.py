"""`headrace replay`: rebuild a stopped node's store from the topics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from headrace.cli.node import load_node_settings
from headrace.cli.options import (
    BootstrapOption,
    ClusterOption,
    DataDirectoryOption,
    JsonOption,
    NodeIdOption,
    SettingsOption,
    parse_settings,
)
from headrace.connectors.arrow_start import keep_pandas_out
from headrace.consumers.node.allocator import keep_freed
from headrace.terminal.command import run_command


def register(app: typer.Typer) -> None:
    """Add the command `replay`."""
    app.command()(replay)


def replay(
    cluster: ClusterOption = None,
    bootstrap: BootstrapOption = None,
    node_id: NodeIdOption = None,
    data_dir: DataDirectoryOption = None,
    may_replace: Annotated[bool, typer.Option("--replace", help="Replace a data directory that is not empty.")] = False,
    settings: SettingsOption = None,
    json_output: JsonOption = False,
) -> None:
    """Rebuild a stopped node's store from the topics; the old one is deleted when the new one is complete."""
    with run_command(json_output) as output:
        keep_freed()
        keep_pandas_out()
        from headrace.consumers.node.offline_replay import replay as rebuild

        loaded = load_node_settings(
            {
                "cluster.name": cluster,
                "cluster.bootstrap": bootstrap,
                "node.id": node_id,
                "node.data_dir": data_dir,
                "kafka": parse_settings(settings),
            }
        )
        with output.progress("replaying", unit="records") as advance:
            shown = 0

            def move(done: int, total: int) -> None:
                nonlocal shown
                advance(done - shown, total)
                shown = done

            replayed = rebuild(loaded, may_replace=may_replace, on_progress=move)
        count = replayed.loaded_files
        fetched = f"; {count} files that the logs had loaded came from other members" if count else ""
        output.result(
            asdict(replayed),
            f"{replayed.rows} rows of {replayed.records} records are in {replayed.segments} segments "
            f"after {replayed.seconds:.1f} s{fetched}",
        )
