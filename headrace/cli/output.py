"""What commands print and how they end: data on stdout, everything else on stderr, an exit code that scripts can trust.

A command's body is

    with run_command(json_output) as output:
        output.result({"rows": 5}, "5 rows written")
"""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Annotated, Any

import structlog
import typer

from headrace.cli.advance import Advance
from headrace.settings import load_settings
from schemas.errors import HeadraceError, StateUnknown

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
SettingsOption = Annotated[
    list[str] | None, typer.Option("-X", metavar="KEY=VALUE", help="A librdkafka setting, verbatim; may be repeated.")
]


class UsageInvalid(HeadraceError):
    """The command line asks for something that makes no sense."""

    exit_code = EXIT_USAGE


class Output:
    """Where a command's data and remarks go. With `json_output` stdout gets exactly one JSON document."""

    def __init__(self, json_output: bool = False) -> None:
        self.json_output = json_output

    def result(self, document: Mapping[str, Any], text: str | Callable[[], None] | None = None) -> None:
        """The command's answer: `document` as JSON, or for people `text` (or whatever calling it prints)."""
        if self.json_output:
            self.json(document)
        elif callable(text):
            text()
        elif text is not None:
            self.line(text)
        else:
            self.table(("name", "value"), ((name, _cell(value)) for name, value in document.items()))

    def json(self, document: Any) -> None:
        """One JSON document on a line of its own; paths and times as strings."""
        self.line(json.dumps(document, default=str, ensure_ascii=False))

    def line(self, text: str) -> None:
        """A line of data on stdout."""
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    def table(self, columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None) -> None:
        """A table for people on stdout; numbers are right-aligned, None is empty."""
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text

        held = [tuple(row) for row in rows]
        table = Table(title=title, title_justify="left")
        for index, column in enumerate(columns):
            numeric = bool(held) and all(isinstance(row[index], int | float) for row in held)
            table.add_column(column, justify="right" if numeric else "left", overflow="fold")
        for row in held:
            table.add_row(*(Text(_cell(value)) for value in row))
        # A pipe has no width: never fold what a script may read.
        console = Console(file=sys.stdout, width=None if sys.stdout.isatty() else 10_000)
        console.print(table, crop=False)

    def note(self, message: str) -> None:
        """A remark for people on stderr, such as what is being waited for."""
        sys.stderr.write(f"{message}\n")
        sys.stderr.flush()

    @contextmanager
    def progress(self, description: str, total: int | None = None, unit: str = "rows") -> Iterator[Advance]:
        """A bar on stderr with rate and remaining time, on a terminal only. Yields the function that moves it on."""
        if not sys.stderr.isatty():
            yield _no_display
            return
        from headrace.cli.progress import terminal_progress

        with terminal_progress(description, total, unit) as advance:
            yield advance


@contextmanager
def run_command(json_output: bool = False, *, log_level: str = "warning") -> Iterator[Output]:
    """Run a command's body: errors become one line and what to do about it, and an exit code other than 0.

    1 is a failure, 130 an interruption; an error class may name its own `exit_code`. `log_level` holds unless the setting `log.level` is given.
    """
    try:
        settings = load_settings()
        given = settings.origin("log.level") != "default"
        configure_logging(settings.log.level if given else log_level, json_output=json_output)
        yield Output(json_output)
    except HeadraceError as error:
        print_error(error, json_output=json_output)
        raise typer.Exit(getattr(error, "exit_code", EXIT_FAILED)) from None
    except KeyboardInterrupt:
        sys.stderr.write("interrupted\n")
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        # The reader of our stdout left, as `head` does; Python would complain once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_FAILED) from None
    except OSError as error:
        named = f"{error.filename}: {error.strerror}" if error.filename else str(error)
        print_error(HeadraceError(named), json_output=json_output)
        raise typer.Exit(EXIT_FAILED) from None


def print_error(error: HeadraceError, *, json_output: bool) -> None:
    """The error on stderr: `error:` and `what to do:` lines, or one JSON object."""
    if json_output:
        described = {
            "type": type(error).__name__,
            "message": error.message,
            "action": error.action,
            "retriable": error.retriable,
            "state_unknown": isinstance(error, StateUnknown),
        }
        sys.stderr.write(json.dumps({"error": described}, ensure_ascii=False) + "\n")
        return
    sys.stderr.write(f"error: {error.message}\n")
    if error.action:
        sys.stderr.write(f"what to do: {error.action}\n")


def configure_logging(level: str = "warning", *, json_output: bool = False) -> None:
    """Send structlog to stderr from `level` (debug, info, warning, error) up: readable on a terminal, JSON lines with `--json`."""
    threshold = logging.getLevelNamesMapping()[level.upper()]
    renderer: structlog.typing.Processor = structlog.processors.JSONRenderer()
    if not json_output:
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty())
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info if json_output else _unchanged,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=_StderrLogger,
        cache_logger_on_first_use=False,
    )


class _StderrLogger:
    """Writes lines to what is stderr now. A line that cannot be written, for a full disk or a reader that went away, is dropped: a node must not lose
    the thread that follows its log to the log of what it does."""

    def __init__(self, *_names: object) -> None:
        self._stream = sys.stderr

    def msg(self, line: str) -> None:
        """Write one line."""
        with suppress(OSError, ValueError):
            self._stream.write(f"{line}\n")
            self._stream.flush()

    debug = info = warning = error = critical = exception = msg


def _no_display(count: int, total: int | None = None) -> None:
    del count, total


def _unchanged(_logger: Any, _method: str, event: structlog.typing.EventDict) -> structlog.typing.EventDict:
    return event


def parse_settings(settings: Sequence[str] | None) -> dict[str, str]:
    """`-X key=value` options as librdkafka settings. Raises `UsageInvalid`."""
    parsed: dict[str, str] = {}
    for setting in settings or ():
        key, separator, value = setting.partition("=")
        if not separator or not key.strip():
            raise UsageInvalid(f"-X {setting} is not KEY=VALUE", action="for example -X linger.ms=50")
        parsed[key.strip()] = value
    return parsed


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple | set):
        return ", ".join(map(str, value))
    return str(value)
