"""The base of every error a caller of Headrace can act on.

One subclass per condition lives beside the code that raises it. An error answers two questions: what can be done about it (`action`), and
whether the same call may succeed later without anyone doing anything (`retriable`). A loop that retries asks the error, never a list of types.
"""

from __future__ import annotations


class HeadraceError(Exception):
    """A condition that ended an operation without effect.

    `message` names the thing that is wrong in one line, `action` says what to do about it (empty when there is nothing to do), `retriable`
    tells whether trying again unchanged may succeed.
    """

    def __init__(self, message: str, *, action: str = "", retriable: bool = False) -> None:
        super().__init__(message)
        self.message = message
        self.action = action
        self.retriable = retriable

    def __str__(self) -> str:
        return f"{self.message} ({self.action})" if self.action else self.message


class StateUnknown(HeadraceError):
    """The operation may or may not have taken effect: look before trying again.

    Never a subclass of a plain failure, so that code which retries failures cannot retry this by accident.
    """
