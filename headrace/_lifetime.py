"""How long a client can be used, and where: until it is closed, in the process that made it."""

from __future__ import annotations

import os
from typing import NoReturn

from headrace.schemas.errors import HeadraceError


class ClientClosed(HeadraceError):
    """A call of a client that was closed."""


class ClientNotShared(HeadraceError):
    """A client that a second process would use: one made before a fork, or one to be pickled."""


class Lifetime:
    """Of one client and its writers. Safe for any thread."""

    def __init__(self) -> None:
        self._process = os.getpid()
        self._closed = False

    @property
    def is_forked(self) -> bool:
        """Whether this process was forked from the one that made the client."""
        return os.getpid() != self._process

    def check(self) -> None:
        """Raises ClientClosed, ClientNotShared."""
        self.check_process()
        if self._closed:
            raise ClientClosed("the client is closed", action="connect again")

    def check_process(self) -> None:
        """Raises ClientNotShared."""
        # Before any lock is taken: a thread that is not here may hold it for ever.
        if self.is_forked:
            raise ClientNotShared("this client was made before the fork", action="connect again in the child")

    def end(self) -> None:
        """The client is closed from now on."""
        self._closed = True


def not_pickled(what: str) -> NoReturn:
    """Raises ClientNotShared for an object that cannot be pickled."""
    raise ClientNotShared(f"a {what} cannot be pickled", action="connect in each process")
