"""How a command runs and ends: its log, its errors and an exit code that scripts can trust.

The body of a command is

    with run_command(json_output) as output:
        output.result({"rows": 5}, "5 rows written")
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from typing import TYPE_CHECKING, Any

import typer

from headrace.schemas.errors import HeadraceError, StateUnknown
from headrace.terminal.interruption import be_patient, prompt_interruption
from headrace.terminal.output import Output, json_line, print_remark
from headrace.terminal.standard_streams import OutputUnwritable, give_up_output
from headrace.terminal.stop_signals import interrupting_signals

if TYPE_CHECKING:
    from structlog.typing import EventDict, Processor

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130
EXIT_READER_LEFT = 141
"""That of a program which the system ends because nobody reads its output."""


class UsageInvalid(HeadraceError):
    """A command line that makes no sense."""

    exit_code = EXIT_USAGE


class Interrupted(StateUnknown):
    """A command that Ctrl-C ended, or another signal to end."""


class OutputLost(StateUnknown):
    """A command whose output cannot be written. Its work may be done."""


@contextmanager
def run_command(json_output: bool = False, *, log_level: str = "warning", patient: bool = False) -> Iterator[Output]:
    """Run a command's body: errors become one line and what to do about it, and an exit code other than 0.

    1 is a failure, 130 an interruption, 141 an output whose reader has left; an error class may name its own
    `exit_code`. `log_level` holds unless the setting `log.level` is given. `patient`: Ctrl-C, SIGTERM and a closed
    terminal only raise KeyboardInterrupt, for a body that stops processes. Others end soon after Ctrl-C, whatever they
    wait for.
    """
    output = Output(json_output)
    report = _interruption_report(output)
    with prompt_interruption(report, EXIT_INTERRUPTED), interrupting_signals() if patient else nullcontext():
        if patient:
            be_patient()
        try:
            configure_logging(_log_level(log_level), json_output=json_output)
            yield output
        except HeadraceError as error:
            print_error(error, json_output=json_output)
            raise typer.Exit(exit_code_of(error)) from None
        except KeyboardInterrupt:
            report()
            raise typer.Exit(EXIT_INTERRUPTED) from None
        except OutputUnwritable as error:
            raise typer.Exit(end_without_output(error, json_output=json_output)) from None
        except UnicodeEncodeError as error:
            # What the command line, a file's name or the environment has in bytes of another encoding.
            if error.reason != "surrogates not allowed":
                raise
            refusal = UsageInvalid(f"{error.object[:100]!r} is not text in UTF-8", action="give it in UTF-8")
            print_error(refusal, json_output=json_output)
            raise typer.Exit(EXIT_USAGE) from None
        except OSError as error:
            named = f"{error.filename}: {error.strerror}" if error.filename else str(error)
            print_error(HeadraceError(named), json_output=json_output)
            raise typer.Exit(EXIT_FAILED) from None


def end_without_output(error: OutputUnwritable, *, json_output: bool) -> int:
    """The exit code of a command whose output cannot be written; names that, unless the reader has left."""
    give_up_output()
    if error.reader_left:
        # As with `head`, which nobody wants to be an error.
        return EXIT_READER_LEFT
    action = "make room for it; the command may have done its work, so look before you repeat it"
    lost = OutputLost(str(error), action=action)
    print_error(lost, json_output=json_output)
    return exit_code_of(lost)


def exit_code_of(error: HeadraceError) -> int:
    """The exit code of a command that an error ended."""
    return int(getattr(error, "exit_code", EXIT_FAILED))


def _interruption_report(output: Output) -> Callable[[], None]:
    """Reports an interruption, at the first call only."""
    due = threading.Lock()

    def report() -> None:
        if not due.acquire(blocking=False):
            return
        if output.json_output:
            print_error(Interrupted("interrupted", action=output.left_running), json_output=True)
        else:
            print_remark("\n".join(filter(None, ("interrupted", output.left_running))))

    return report


def _log_level(default: str) -> str:
    # Here and not above: pydantic and the rooms that declare settings would slow down `headrace --help`.
    from headrace.settings import load_settings

    settings = load_settings()
    return default if settings.origin("log.level") == "default" else settings.log.level


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
        print_remark(json_line({"error": described}, sys.stderr))
        return
    print_remark(f"error: {error.message}")
    if error.action:
        print_remark(f"what to do: {error.action}")


def configure_logging(level: str = "warning", *, json_output: bool = False) -> None:
    """Send structlog to stderr from `level` up: readable on a terminal, JSON lines with `--json`."""
    # structlog loads rich: half of the time that `headrace --help` would take.
    import structlog

    threshold = logging.getLevelNamesMapping()[level.upper()]
    renderer: Processor = structlog.processors.JSONRenderer()
    if not json_output:
        # The default one prints the local variables of every frame, among them passwords of Kafka, and hundreds of lines.
        plain = structlog.dev.plain_traceback
        renderer = structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), exception_formatter=plain)
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            # ConsoleRenderer formats exceptions itself and warns when they are formatted before.
            structlog.processors.format_exc_info if json_output else _unchanged,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=_StderrLogger,
        # Tests configure more than once; a cached logger would keep the first configuration.
        cache_logger_on_first_use=False,
    )


class _StderrLogger:
    """Writes lines to the stderr of the moment it is made, and drops a line that cannot be written."""

    def __init__(self, *_names: object) -> None:
        self._stream = sys.stderr

    def msg(self, line: str) -> None:
        """Write one line."""
        # With a full disk or a closed pipe, a node must not lose its consuming thread to a log message.
        with suppress(OSError, ValueError):
            self._stream.write(f"{line}\n")
            self._stream.flush()

    debug = info = warning = error = critical = exception = msg


def _unchanged(_logger: Any, _method: str, event: EventDict) -> EventDict:
    return event
