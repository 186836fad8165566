"""The command `headrace`: puts the nouns together, one module of this folder each."""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

NOUNS = (
    "demo",
    "broker",
    "up",
    "node",
    "write",
    "ingest",
    "seal",
    "verify",
    "query",
    "status",
    "bench",
    "replay",
    "accept_gap",
    "generate",
    "wal",
    "config",
)
"""Modules of `headrace.cli` in the order of `headrace --help`.

Each has `register(app: typer.Typer) -> None`. They are imported at every start: pyspark, duckdb, pyarrow, polars and confluent_kafka
belong inside the bodies of their commands.
"""


def build_app() -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(
        name="headrace",
        help="Kafka topics of time-stamped readings become replicated, versioned stores that answer SQL.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )

    @app.callback()
    def root(
        _version: Annotated[
            bool, typer.Option("--version", help="Print the version and leave.", callback=_print_version, is_eager=True)
        ] = False,
    ) -> None:
        """Kafka topics of time-stamped readings become replicated, versioned stores that answer SQL."""

    for noun in NOUNS:
        import_module(f"headrace.cli.{noun}").register(app)
    return app


def installed_version() -> str:
    """Version of the installed distribution, `unknown` in a source tree that is not installed."""
    try:
        return version("headrace")
    except PackageNotFoundError:
        return "unknown"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {installed_version()}")
        raise typer.Exit


def main() -> None:
    """Entry point of the console script."""
    build_app()()
