"""The base of every error a caller of Headrace can act on.

Each condition has a subclass, beside the code that raises it. An error has an `action`, what can be done
about it, and is `retriable` when the same call may succeed later without any action. A retry loop decides by
that property, never by a list of types.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """A condition that ended an operation without effect.

    `message` is the condition in one line, `action` what to do about it (empty when there is nothing to do).
    `retriable`: the same call may succeed later.
    """

    def __init__(self, message: str, *, action: str = "", retriable: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.action = action
        self.retriable = retriable

    def __str__(self) -> str:
        return f"{self.message} ({self.action})" if self.action else self.message


class StateUnknown(HeadraceError):
    """The operation may or may not have taken effect: check before a retry."""

    # Never a subclass of a plain failure, so that code which retries failures cannot retry this by accident.
