"""`headrace demo`: the main job, shown and proved."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.output import JsonOption, run_command


def register(app: typer.Typer) -> None:
    """Add the command `demo`."""
    app.command()(demo)


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the cluster running and say how to use it.")] = False,
    directory: Annotated[
        Path | None, typer.Option("--dir", metavar="D", help="Directory of its data; without it a temporary one.")
    ] = None,
    trucks: Annotated[int, typer.Option(min=1, max=5_000, help="Size of the fleet; an hour of readings each.")] = 300,
    json_output: JsonOption = False,
) -> None:
    """Readings through Kafka and Spark into three nodes; one is killed, one is wiped, nothing is lost. Under three minutes."""
    with run_command(json_output) as output:
        from headrace.demo.scenario import run

        # Whoever ends the demo, nothing it started stays: SIGTERM takes the way of Ctrl-C.
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        ok = run(output, directory, trucks, keep)
    if not ok:
        raise typer.Exit(1)
