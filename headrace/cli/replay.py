"""`headrace replay`: rebuild a stopped node's store from the topics."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from consumers.memory import keep_freed
from headrace.cli.node import BootstrapOption, ClusterOption, DataDirectoryOption, NodeOption, resolve
from headrace.cli.output import JsonOption, SettingsOption, run_command


def register(app: typer.Typer) -> None:
    """Add the command `replay`."""
    app.command()(replay)


def replay(
    cluster: ClusterOption = None,
    bootstrap: BootstrapOption = None,
    node_id: NodeOption = None,
    data_dir: DataDirectoryOption = None,
    may_replace: Annotated[bool, typer.Option("--replace", help="A data directory that is not empty may go.")] = False,
    settings: SettingsOption = None,
    json_output: JsonOption = False,
) -> None:
    """Rebuild a stopped node's store from the topics; the old one goes only when the new one is complete."""
    with run_command(json_output) as output:
        keep_freed()
        from consumers.replay import replay as rebuild

        resolved, _ = resolve(
            cluster=cluster,
            node_id=node_id,
            nodes=None,
            replication=None,
            bootstrap=bootstrap,
            data_dir=data_dir,
            settings=settings,
        )
        with output.progress("replaying", unit="records") as advance:
            shown = 0

            def move(done: int, total: int) -> None:
                nonlocal shown
                advance(done - shown, total)
                shown = done

            replayed = rebuild(resolved, may_replace=may_replace, on_progress=move)
        output.result(
            asdict(replayed),
            f"{replayed.rows} rows of {replayed.records} records are in {replayed.segments} segments "
            f"after {replayed.seconds:.1f} s",
        )
