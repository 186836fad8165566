"""Appends messages to the forward logs of the data groups, and keeps account of what became of each.

A delivery report comes later and in another thread. What it says is kept until the owner asks: nothing that failed is forgotten, and what may or
may not be in the log is never called failed.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field

from connectors.log.deadline import Deadline
from connectors.log.port import Appender, AppendUnknown
from connectors.log.topics import Topics
from schemas.errors import HeadraceError, StateUnknown
from schemas.framing import format_headers
from schemas.messages import Body, Message, ProducerPosition, encode_message

FLUSH_TIMEOUT_S = 300.0
LEAVE_TIMEOUT_S = 5.0


class WriteFailed(HeadraceError):
    """Rows that are certainly not in the log; `rows` counts them."""

    def __init__(self, message: str, *, rows: int, action: str = "", retriable: bool = False) -> None:
        super().__init__(message, action=action, retriable=retriable)
        self.rows = rows


class WriteUnknown(AppendUnknown):
    """Rows that may or may not be in the log; `rows` counts them. Writing them again is safe: rows are upserts."""

    def __init__(self, message: str, *, rows: int, action: str = "") -> None:
        super().__init__(message, action=action)
        self.rows = rows


@dataclass(slots=True)
class _Account:
    """What became of the messages appended so far. Guarded by the condition of its owner."""

    open_messages: int = 0
    open_rows: int = 0
    newest: dict[str, int] = field(default_factory=dict)
    failed_rows: int = 0
    unknown_rows: int = 0
    first_error: HeadraceError | None = None


@dataclass(frozen=True, slots=True)
class Forwarded:
    """A message for one group, ready to go."""

    group: str
    value: bytes
    rows: int


class Forwarding:
    """One producer of forward messages. `append` keeps the order of its calls, so share it between threads only under a lock of your own."""

    def __init__(self, appender: Appender, topics: Topics, counted: str = "rows") -> None:
        """`counted` is what the messages hold, for error messages."""
        self.counted = counted
        self.producer = uuid.uuid4().hex
        self._appender = appender
        self._topics = topics
        self._batch = 0
        self._account = _Account()
        self._changed = threading.Condition()

    def encode(self, bodies: Sequence[tuple[str, Body, int]]) -> list[Forwarded]:
        """(group, body, rows) of one batch as messages; a later call makes a newer batch."""
        self._batch += 1
        return [
            Forwarded(group, encode_message(Message(ProducerPosition(self.producer, self._batch, number), body)), rows)
            for number, (group, body, rows) in enumerate(bodies)
        ]

    def append(self, messages: Sequence[Forwarded]) -> None:
        """Queue messages, waiting while the queue is full. Raises WriteFailed, counting all that were not queued."""
        left = sum(message.rows for message in messages)
        for message in messages:
            try:
                self._append(message)
            except HeadraceError as error:
                raise WriteFailed(
                    f"{left:,} {self.counted} were not written: {error.message}",
                    rows=left,
                    action=error.action,
                    retriable=error.retriable,
                ) from error
            left -= message.rows

    def flush(self, timeout_s: float = FLUSH_TIMEOUT_S) -> dict[str, int]:
        """Wait until the fate of every message is known; the newest offset of each group. Raises WriteFailed, WriteUnknown."""
        deadline = Deadline(timeout_s)
        # Asks the log to send what it holds back for a fuller batch.
        self._appender.flush(0.0)
        with self._changed:
            self._changed.wait_for(lambda: self._account.open_messages == 0, deadline.left_s())
            if self._account.open_messages:
                raise WriteUnknown(
                    f"{self._account.open_rows:,} {self.counted} were not confirmed in {timeout_s:g} s",
                    rows=self._account.open_rows,
                    action="check the broker; writing them again is safe",
                )
        self.check()
        return self.newest()

    def newest(self) -> dict[str, int]:
        """The newest offset known of each group that was written to."""
        with self._changed:
            return dict(self._account.newest)

    def check(self) -> None:
        """Raise what went wrong since the last time, once. Raises WriteFailed, WriteUnknown."""
        with self._changed:
            account = self._account
            error, failed, unknown = account.first_error, account.failed_rows, account.unknown_rows
            account.first_error, account.failed_rows, account.unknown_rows = None, 0, 0
        if error is None:
            return
        if unknown:
            also = f", and {failed:,} are not" if failed else ""
            message = f"{unknown:,} {self.counted} may or may not be in the log{also}: {error.message}"
            raise WriteUnknown(message, rows=unknown + failed, action="writing them again is safe") from error
        raise WriteFailed(
            f"{failed:,} {self.counted} are not in the log: {error.message}",
            rows=failed,
            action=error.action,
            retriable=error.retriable,
        ) from error

    def _append(self, message: Forwarded) -> None:
        group, rows = message.group, message.rows
        with self._changed:
            self._account.open_messages += 1
            self._account.open_rows += rows

        def report(offset: int | None, error: HeadraceError | None) -> None:
            self._report(group, rows, offset, error)

        try:
            self._appender.append(
                self._topics.forward(group), message.value, headers=format_headers(), on_delivery=report
            )
        except HeadraceError:
            with self._changed:
                self._account.open_messages -= 1
                self._account.open_rows -= rows
            raise

    def _report(self, group: str, rows: int, offset: int | None, error: HeadraceError | None) -> None:
        with self._changed:
            account = self._account
            account.open_messages -= 1
            account.open_rows -= rows
            if error is not None:
                account.first_error = account.first_error or error
                if isinstance(error, StateUnknown):
                    account.unknown_rows += rows
                else:
                    account.failed_rows += rows
            elif offset is not None:
                account.newest[group] = max(account.newest.get(group, -1), offset)
            if account.open_messages == 0:
                self._changed.notify_all()
