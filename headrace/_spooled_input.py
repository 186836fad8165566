"""Keeps an input that can be read only once, so that it is checked as a whole before any of it is written."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from headrace.connectors.formats.file_blocks import STANDARD_INPUT, UnreadableFile
from headrace.schemas.errors import HeadraceError

SPOOLED_BYTES_MAX = 4 << 30
"""Most bytes of an input on the temporary disk, as they come: compressed ones stay so."""

_STEP_BYTES = 1 << 20


class InputTooLong(HeadraceError):
    """An input that is read once, and is longer than what is kept of it for a check."""

    exit_code = 3


@contextmanager
def spooled(source: str | BinaryIO, bytes_max: int = SPOOLED_BYTES_MAX) -> Iterator[BinaryIO]:
    """A temporary file with everything that `source` has, at its start.

    Raises InputTooLong, and UnreadableFile when the input or the temporary disk fails.
    """
    with tempfile.TemporaryFile(prefix="headrace-input-") as kept:
        try:
            _copy(source, kept, bytes_max)
        except OSError as error:
            raise UnreadableFile(
                f"cannot keep the input in {tempfile.gettempdir()}: {error}",
                action="free space there, name the columns of a series with `--tags A,B`, or give `--no-tags`",
            ) from error
        yield kept


def _copy(source: str | BinaryIO, kept: BinaryIO, bytes_max: int) -> None:
    if isinstance(source, str):
        assert source == STANDARD_INPUT, source
        with open(0, "rb", closefd=False) as stream:
            _copy(stream, kept, bytes_max)
        return
    left = bytes_max
    while data := source.read(_STEP_BYTES):
        left -= len(data)
        if left < 0:
            raise InputTooLong(
                f"an input without tags is checked for repeated times before it is written, and this one has more "
                f"than {bytes_max} bytes",
                action="write it from a file, name the columns of a series with `--tags A,B`, or give `--no-tags`",
            )
        kept.write(data)
    kept.seek(0)
