"""The start of a process on a disk that is full."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from headrace.connectors.files import has_no_space
from headrace.schemas.errors import HeadraceError

ACTION = "free disk space, then start it again"


class StartDiskFull(HeadraceError):
    """A start that a full disk has ended."""


@contextmanager
def disk_start() -> Iterator[None]:
    """Let errors of a full disk name what helps here: what runs waits for space, and what starts ends. Raises StartDiskFull."""
    try:
        yield
    except HeadraceError as error:
        if has_no_space(error.message):
            error.action = ACTION
        raise
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT):
            raise
        named = f"{error.filename}: {error.strerror}" if error.filename else str(error.strerror)
        raise StartDiskFull(f"the start needs space: {named}", action=ACTION) from error
