"""`headrace demo`: the main job, shown and proved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import JsonOption
from headrace.cli.paths import path_of
from headrace.connectors.arrow_start import keep_pandas_out
from headrace.terminal.command import run_command


def register(app: typer.Typer) -> None:
    """Add the command `demo`."""
    app.command()(demo)


def demo(
    keep: Annotated[bool, typer.Option("--keep", help="Leave the cluster running and say how to use it.")] = False,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", metavar="D", parser=path_of, help="New directory of its data; without it a temporary one."
        ),
    ] = None,
    trucks: Annotated[int, typer.Option(min=1, max=5_000, help="Size of the fleet; an hour of readings each.")] = 300,
    json_output: JsonOption = False,
) -> None:
    """Ingest through Kafka and Spark into three nodes; one is killed, one is wiped, nothing is lost.

    Under three minutes.
    """
    with run_command(json_output, patient=True) as output:
        keep_pandas_out()
        from headrace.demo.scenario import run

        ok = run(output, directory, trucks, keep)
    # Outside of `run_command`: a promise that did not hold is a result, which is printed already.
    if not ok:
        raise typer.Exit(1)
