"""Appends messages to the forward logs of the data groups and tracks the delivery of each.

A delivery report comes later and in another thread. Its result is kept until the next call of each thread that has
appended, and of another one if that comes first: no failure is lost, and a message that may be in the log is never
reported as failed. One that its topic refused, because the topic is closed or missing, is kept: its group may have
ended, and its rows are another group's by now.
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol
from weakref import WeakSet

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.port import Appender, AppendUnknown, RecordTooLarge, TopicMissing
from headrace.schemas.errors import HeadraceError, StateUnknown
from headrace.schemas.framing import format_headers
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.message_rules import check_body
from headrace.schemas.messages import Body, Message, ProducerPosition, encode_message
from headrace.schemas.receipts import WrittenRecords, receipt_of, value_digest

# Longer than librdkafka's delivery timeout of 120 s: every message has its report before a flush gives up.
FLUSH_TIMEOUT_S = 300.0
# For a caller that leaves by an exception: its error must not wait for a broker that is away.
EXIT_FLUSH_TIMEOUT_S = 5.0


class WriteFailed(HeadraceError):
    """Rows that are certainly not in the log; `rows` counts them."""

    def __init__(self, message: str, *, rows: int, action: str = "", retriable: bool = False) -> None:
        super().__init__(message, action=action, retriable=retriable)
        self.rows = rows


class WriteUnknown(AppendUnknown):
    """Rows that may or may not be in the log; `rows` counts them.

    Writing them again is safe: rows are upserts.
    """

    def __init__(self, message: str, *, rows: int, action: str = "") -> None:
        super().__init__(message, action=action)
        self.rows = rows


@dataclass(frozen=True, slots=True)
class RoutedMessage:
    """An encoded message for one group."""

    group: GroupKey
    value: bytes
    rows: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A message that is certainly not in the log of its group, since the topic is closed or missing."""

    number: int
    message: RoutedMessage
    error: HeadraceError


@dataclass(slots=True, weakref_slot=True, eq=False)
class _Failures:
    """Delivery errors that are not raised yet."""

    failed_rows: int = 0
    unknown_rows: int = 0
    first_error: HeadraceError | None = None

    def add(self, rows: int, error: HeadraceError) -> None:
        """Rows have an error."""
        self.first_error = self.first_error or error
        if isinstance(error, StateUnknown):
            self.unknown_rows += rows
        else:
            self.failed_rows += rows

    def take(self) -> _Failures:
        """All of them, which are raised now."""
        taken = replace(self)
        self.failed_rows, self.unknown_rows, self.first_error = 0, 0, None
        return taken


@dataclass(slots=True)
class _DeliveryState:
    """Delivery of the messages appended so far. Guarded by the condition of its owner.

    `failures` are those that no thread was given, `by_thread` those of each that has appended.
    """

    open_messages: int = 0
    open_rows: int = 0
    newest: dict[GroupKey, int] = field(default_factory=dict)
    failures: _Failures = field(default_factory=_Failures)
    by_thread: WeakSet[_Failures] = field(default_factory=WeakSet)
    refused: list[Refused] = field(default_factory=list)

    def fail(self, rows: int, error: HeadraceError) -> None:
        """Rows have an error, which their owners see at their next calls."""
        for each in (self.failures, *self.by_thread):
            each.add(rows, error)


class Positions(Protocol):
    """Gives each message its place among those of its producer, by which replicas recognise a repeat."""

    def begin_batch(self) -> None:
        """The next messages are a newer batch."""
        ...

    def next(self, body: Body) -> ProducerPosition:
        """The position of the next message, which has this body."""
        ...


class OwnPositions:
    """A producer of its own: batches count from 1, and messages from 0 in each batch."""

    def __init__(self) -> None:
        # A new identity for each sender: replicas drop batches below the newest of a producer.
        self._producer = uuid.uuid4().hex
        self._batch = 0
        self._sequence = 0

    def begin_batch(self) -> None:
        """See Positions."""
        self._batch += 1
        self._sequence = 0

    def next(self, body: Body) -> ProducerPosition:
        """See Positions."""
        del body
        self._sequence += 1
        return ProducerPosition(self._producer, self._batch, self._sequence - 1)


class Sender:
    """One producer of forward messages.

    `append` keeps the order of its calls: threads that share a sender need a lock around it.
    """

    def __init__(
        self,
        appender: Appender,
        topic_of: Callable[[GroupKey], str],
        unit: str = "rows",
        *,
        receipts: bool = False,
        positions: Positions | None = None,
    ) -> None:
        """`topic_of` gives the forward log of a group. `unit` is what the messages hold, for error messages;
        `receipts` are needed for a quorum only. `positions` None: a new producer.
        """
        self.unit = unit
        self._with_receipts = receipts
        self._written: dict[GroupKey, WrittenRecords] = {}
        self._positions = positions or OwnPositions()
        self._appender = appender
        self._topic_of = topic_of
        self._appended = 0
        self._state = _DeliveryState()
        self._changed = threading.Condition()
        # Goes with its thread, and takes what the thread was not given out of the state.
        self._of_thread = threading.local()

    def encode(self, bodies: Sequence[tuple[GroupKey, Body, int]]) -> list[RoutedMessage]:
        """Encode (group, body, rows) of one batch as messages; each call is a newer batch.

        Raises MessageInvalid and SchemaError for what replicas would ignore.
        """
        for _, body, _ in bodies:
            check_body(body)
        # Encoded once: a message that the log port sends again has the same position and digest, and replicas
        # drop the repeat.
        self._positions.begin_batch()
        return [
            RoutedMessage(group, encode_message(Message(self._positions.next(body), body)), rows)
            for group, body, rows in bodies
        ]

    def append(self, messages: Sequence[RoutedMessage], *, again: bool = False) -> None:
        """Queue messages, waiting while the queue is full; `again`: for messages of the call before that were refused.

        Raises WriteFailed, counting all that were not queued.
        """
        self._note_thread()
        left = sum(message.rows for message in messages)
        # A new one for each call: a delivery report that comes after an error of an earlier call is not of this one.
        written = self._written = dict(self._written) if again else {}
        for message in messages:
            try:
                self._append(message, written)
            except HeadraceError as error:
                raise WriteFailed(
                    f"{left:,} {self.unit} were not written: {error.message}",
                    rows=left,
                    action=error.action,
                    retriable=error.retriable,
                ) from error
            left -= message.rows

    def flush(self, timeout_s: float = FLUSH_TIMEOUT_S) -> dict[GroupKey, int]:
        """Wait for the delivery report of every message; returns the newest offset of each group.

        Raises WriteFailed, also for messages that were refused, and WriteUnknown.
        """
        for refused in self.settled(Deadline(timeout_s)):
            self.fail(refused.message, refused.error)
        self.check()
        return self.newest()

    @property
    def unsettled(self) -> bool:
        """Whether messages have no delivery report yet, or were refused."""
        with self._changed:
            return bool(self._state.open_messages or self._state.refused)

    @property
    def is_settled(self) -> bool:
        """Whether every message has its report, and no error of one is left to raise."""
        with self._changed:
            state = self._state
            failures = (state.failures, *state.by_thread)
            return not (state.open_messages or state.refused or any(each.first_error for each in failures))

    @property
    def has_refused(self) -> bool:
        """Whether messages were refused that `settled` has not returned."""
        with self._changed:
            return bool(self._state.refused)

    def settled(self, deadline: Deadline) -> list[Refused]:
        """Wait for the delivery report of every message; returns those that were refused, in order, each once.

        Raises WriteUnknown when a report is missing in the end.
        """
        # Sends at once what the appender holds back for a fuller batch (`linger.ms`). The wait itself is on
        # our own reports: the appender is shared, and its flush would wait for other senders too.
        self._appender.flush(0.0)
        with self._changed:
            self._changed.wait_for(lambda: self._state.open_messages == 0, deadline.left_s())
            # The messages stay open: a report that comes later still settles them, and a later flush waits for them
            # again.
            if self._state.open_messages:
                raise WriteUnknown(
                    f"{self._state.open_rows:,} {self.unit} were not confirmed in {deadline.timeout_s:g} s",
                    rows=self._state.open_rows,
                    action="check the broker; writing them again is safe",
                )
            refused, self._state.refused = self._state.refused, []
        # By the order of the calls and not of the reports: of two values of one row the later one must win.
        return sorted(refused, key=lambda each: each.number)

    def fail(self, message: RoutedMessage, error: HeadraceError) -> None:
        """A message that was refused is lost: the next call of its owner raises that."""
        with self._changed:
            self._state.fail(message.rows, error)

    def newest(self) -> dict[GroupKey, int]:
        """The newest offset known of each group that was written to."""
        with self._changed:
            return dict(self._state.newest)

    def written(self) -> Mapping[GroupKey, WrittenRecords]:
        """What the newest call of `append` wrote to each group, as far as it is delivered."""
        with self._changed:
            return dict(self._written)

    def check(self) -> None:
        """Raise the delivery errors that this thread was not given, each once. Raises WriteFailed, WriteUnknown."""
        with self._changed:
            # A thread that has appended nothing gets what nobody was given. What it gets is still due to the threads
            # that have: a flush of theirs must not confirm rows whose error another one was given.
            unseen = self._state.failures.take()
            own: _Failures | None = getattr(self._of_thread, "failures", None)
            found = unseen if own is None else own.take()
        error, failed, unknown = found.first_error, found.failed_rows, found.unknown_rows
        if error is None:
            return
        # Unknown takes precedence: a caller that sees "failed" may drop the rows or send them elsewhere, and
        # then has both.
        if unknown:
            also = f", and {failed:,} are not" if failed else ""
            message = f"{unknown:,} {self.unit} may or may not be in the log{also}: {error.message}"
            raise WriteUnknown(message, rows=unknown + failed, action="writing them again is safe") from error
        raise WriteFailed(
            f"{failed:,} {self.unit} are not in the log: {error.message}",
            rows=failed,
            action=error.action,
            retriable=error.retriable,
        ) from error

    def _note_thread(self) -> None:
        if getattr(self._of_thread, "failures", None) is not None:
            return
        with self._changed:
            self._of_thread.failures = replace(self._state.failures)
            self._state.by_thread.add(self._of_thread.failures)

    def _append(self, message: RoutedMessage, written: dict[GroupKey, WrittenRecords]) -> None:
        group, rows = message.group, message.rows
        digest = value_digest(message.value) if self._with_receipts else b""
        # Counted before the call: the report may come, in another thread, before `append` returns.
        with self._changed:
            self._appended += 1
            number = self._appended
            self._state.open_messages += 1
            self._state.open_rows += rows

        def report(offset: int | None, error: HeadraceError | None) -> None:
            if digest and error is None:
                self._note_written(written, group, offset, digest)
            self._report(Refused(number, message, error) if error is not None else None, message, offset)

        try:
            self._appender.append(self._topic_of(group), message.value, headers=format_headers(), on_delivery=report)
        except TopicMissing as error:
            # A client that knows of a missing topic does not queue the record.
            self._report(Refused(number, message, error), message, None)
        except HeadraceError:
            # A message that was not queued gets no report; without this every later flush would wait for it.
            with self._changed:
                self._state.open_messages -= 1
                self._state.open_rows -= rows
            raise

    def _note_written(
        self, written: dict[GroupKey, WrittenRecords], group: GroupKey, offset: int | None, digest: bytes
    ) -> None:
        # An offset that the broker does not report gives a receipt that no member has: nothing is confirmed by it.
        offset = -1 if offset is None else offset
        with self._changed:
            before = written.get(group, WrittenRecords())
            receipts = (*before.receipts, receipt_of(offset, digest))
            written[group] = WrittenRecords(max(before.offset, offset), receipts)

    def _report(self, failed: Refused | None, message: RoutedMessage, offset: int | None) -> None:
        with self._changed:
            state = self._state
            state.open_messages -= 1
            state.open_rows -= message.rows
            # A group that ends closes its topic with `max.message.bytes=0`, so too large means closed: the messages
            # of this room fit every open topic.
            if failed is not None and isinstance(failed.error, RecordTooLarge | TopicMissing):
                state.refused.append(failed)
            elif failed is not None:
                state.fail(message.rows, failed.error)
            elif offset is not None:
                state.newest[message.group] = max(state.newest.get(message.group, -1), offset)
            if state.open_messages == 0:
                self._changed.notify_all()
