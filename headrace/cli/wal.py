"""`headrace wal repair`: the readable part of a damaged write-ahead log."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from headrace.cli.options import JsonOption
from headrace.cli.paths import directory_of
from headrace.terminal.command import run_command


def register(app: typer.Typer) -> None:
    """Add the noun `wal`."""
    noun = typer.Typer(help="Maintain write-ahead logs.", no_args_is_help=True)
    noun.command()(repair)
    app.add_typer(noun, name="wal")

    # Without a callback typer would make the lone command the noun itself.
    @noun.callback()
    def root() -> None:
        """Maintain write-ahead logs."""


def repair(
    directory: Annotated[
        Path,
        typer.Argument(metavar="DIRECTORY", parser=directory_of, help="Directory of a log that no process has open."),
    ],
    drop: Annotated[
        bool, typer.Option("--drop", help="Delete what cannot be kept. Without it nothing is changed.")
    ] = False,
    json_output: JsonOption = False,
) -> None:
    """List what a damaged log would lose; with --drop delete it. Exit code 1 while there is damage."""
    from headrace.consumers.wal.repair import DAMAGED
    from headrace.consumers.wal.repair import repair as examine

    with run_command(json_output) as output:
        report = examine(directory, drop=drop)
        rows = [
            ("state", report.state),
            ("records kept", report.records),
            ("last transaction kept", f"{report.last_transaction} of {report.newest_transaction}"),
            ("damage", report.damage or "none"),
            *(("dropped" if report.dropped else "would be dropped", line) for line in report.would_drop),
        ]
        output.result({"directory": str(directory), **asdict(report)}, lambda: output.table(("", str(directory)), rows))
        if report.state == DAMAGED and not report.dropped:
            output.note("nothing was changed; restore a copy, or run again with --drop")
            raise typer.Exit(1)
