"""Ends several things one after another, each of them whatever happens to the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

import structlog

_log = structlog.get_logger(__name__)


def end_all(ends: Iterable[Callable[[], object]]) -> None:
    """Call each in turn, also behind one that fails. Raises the first error; later ones are only logged."""
    first: Exception | None = None
    for end in ends:
        try:
            end()
        except Exception as error:
            # What fails one end, such as a full disk, often fails others too: the first error is the cause.
            if first is not None:
                _log.warning("not ended in order", error=repr(error))
            first = first or error
    if first is not None:
        raise first


@contextmanager
def ended_by(end: Callable[[], object]) -> Iterator[None]:
    """Call `end` behind the block. An error of the block is raised, and one of `end` behind it is only logged."""
    try:
        yield
    except BaseException:
        try:
            end()
        except Exception as error:
            _log.warning("not ended in order", error=repr(error))
        raise
    end()
