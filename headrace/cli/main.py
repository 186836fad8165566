"""The command `headrace`, composed of one module of this folder per noun."""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Annotated

import typer

from headrace.cli.usage import JsonErrors, add_examples
from headrace.terminal.command import EXIT_INTERRUPTED, end_without_output
from headrace.terminal.standard_streams import OutputUnwritable, open_standard_streams

NOUNS = (
    "demo",
    "broker",
    "up",
    "node",
    "write",
    "delete",
    "table",
    "retention",
    "ingest",
    "dlq",
    "backfill",
    "seal",
    "verify",
    "query",
    "sql",
    "status",
    "cluster",
    "bench",
    "sync",
    "replay",
    "accept_gap",
    "refuse_record",
    "generate",
    "wal",
    "config",
)
"""Modules of `headrace.cli` in the order of `headrace --help`; each has `register(app: typer.Typer) -> None`."""

# All of them are imported for `headrace --help`. pyspark, duckdb, pyarrow, polars, confluent_kafka, pydantic and
# structlog are therefore imported in the bodies of commands: any of them takes longer than the rest of it.


def build_app(words: Sequence[str] = ()) -> typer.Typer:
    """The whole command line, or as much of it as these words need."""
    app = typer.Typer(
        name="headrace",
        cls=JsonErrors,
        help="Kafka topics of time-stamped readings become replicated, versioned stores that answer SQL.",
        no_args_is_help=True,
        add_completion=False,
        # typer's tracebacks print local variables, among them passwords of Kafka.
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

    for noun in nouns_of(words):
        import_module(f"headrace.cli.{noun}").register(app)
    add_examples(app)
    return app


def nouns_of(words: Sequence[str]) -> Sequence[str]:
    """The modules of a command line: one, if it begins with a noun, else all, for their names in help and errors."""
    noun = words[0].replace("-", "_") if words else ""
    return [noun] if noun in NOUNS else NOUNS


def installed_version() -> str:
    """Version of the installed distribution, `unknown` in a source tree that is not installed."""
    # A fifth of what the other imports of this module cost.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("headrace")
    except PackageNotFoundError:
        return "unknown"


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"headrace {installed_version()}")
        raise typer.Exit


def _end(code: int) -> None:
    """The last of what Python does at its end: no Ctrl-C, now or before, may turn the exit code into a signal."""
    if code != EXIT_INTERRUPTED:
        # Python sets its handlers back before it removes its modules.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        return
    # A KeyboardInterrupt that once passed through the `exec` of a text, as of a dataclass, counts as one that nobody
    # handled: Python would send the signal to itself. See run_eval_code_obj in its pythonrun.c.
    with suppress(OSError, ValueError):
        sys.stdout.flush()
    os._exit(code)


def main() -> None:
    """Entry point of the console script."""
    code = 1
    # The first that is registered runs last.
    atexit.register(lambda: _end(code))
    try:
        open_standard_streams()
        build_app(sys.argv[1:])()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        raise
    except KeyboardInterrupt:
        # A second one, while the end after the first was on its way.
        code = EXIT_INTERRUPTED
        sys.exit(code)
    except OutputUnwritable as error:
        # Help and version, which no command prints.
        code = end_without_output(error, json_output=False)
        sys.exit(code)
    finally:
        # What the command did, and its exit code, are decided: an interrupt only ends what the process still waits for.
        signal.signal(signal.SIGINT, lambda *_: os._exit(code))
