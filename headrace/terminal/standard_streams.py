"""Standard input and outputs as a process finds them: closed, on a full disk, or a pipe whose reader has left."""

from __future__ import annotations

import io
import os
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class OutputUnwritable(OSError):
    """Standard output that cannot be written."""

    # Without the number of its cause: the parser of the command line ends at a broken pipe with 1 and no word.
    def __init__(self, cause: OSError) -> None:
        super().__init__(f"standard output cannot be written: {cause.strerror}")
        self.reader_left = isinstance(cause, BrokenPipeError)


class _StandardOutput(io.FileIO):
    """Standard output, whose errors differ from those of files and connections."""

    def write(self, content: ReadableBuffer, /) -> int:
        """See FileIO. Raises OutputUnwritable."""
        try:
            return super().write(content)
        except OSError as error:
            raise OutputUnwritable(error) from error


class _StandardError(io.FileIO):
    """Standard error, which discards what cannot be written: a remark must not change the exit code of what was done."""

    def write(self, content: ReadableBuffer, /) -> int:
        """See FileIO."""
        try:
            return super().write(content)
        except OSError:
            return memoryview(content).nbytes


def open_standard_streams() -> None:
    """An empty input and outputs that discard, where there are none: the next file that is opened would take the place.

    Standard output gets errors of its own, see OutputUnwritable, and standard error has none.
    """
    # In this order: each gets the lowest number that is free, which is its own.
    if sys.stdin is None:
        sys.stdin = os.fdopen(_opened(os.O_RDONLY), closefd=False)
    if sys.stdout is None:
        sys.stdout = _discarding()
    else:
        raw, utf8 = _StandardOutput(sys.stdout.fileno(), "w", closefd=False), sys.stdout.encoding.startswith("utf")
        # Names of files that are no UTF-8 come out as they are. Else a result could not be shown behind its work.
        sys.stdout = _rewrapped(sys.stdout, raw, "surrogateescape" if utf8 else "backslashreplace")
    if sys.stderr is None:
        sys.stderr = _discarding()
    else:
        sys.stderr = _rewrapped(sys.stderr, _StandardError(sys.stderr.fileno(), "w", closefd=False), "backslashreplace")


def _rewrapped(stream: TextIO, raw: io.RawIOBase, errors: str) -> TextIO:
    """The same stream over other writes, which has a line as soon as it ends where the stream had it."""
    # With PYTHONUNBUFFERED a stream has no line buffering: it writes at once.
    at_once = getattr(stream, "line_buffering", False) or getattr(stream, "write_through", False)
    return io.TextIOWrapper(io.BufferedWriter(raw), stream.encoding, errors, line_buffering=at_once)


def give_up_output() -> None:
    """Discard what standard output still holds: Python would write it at the end, and report that it cannot."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _discarding() -> io.TextIOWrapper:
    return os.fdopen(_opened(os.O_WRONLY), "w", encoding="utf-8", errors="replace", closefd=False)


def _opened(mode: int) -> int:
    """The null device, also for processes that are started."""
    handle = os.open(os.devnull, mode)
    os.set_inheritable(handle, True)
    return handle
