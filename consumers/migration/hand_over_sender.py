"""The leader of a group that gave up slots appends what is due to the topics of their next holders, in order.

What is due follows from the group's log, and what has arrived from the statuses of the next holder's members. A
record that a predecessor appended is appended again: every holder ignores what it has.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import structlog

from headrace.connectors.clock import Clock
from headrace.connectors.log.port import Appender, Log, Record
from headrace.consumers.migration.own_records import OwnRecords
from headrace.consumers.replication.change_view import ChangeView
from headrace.consumers.replication.transfers import HandOver
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import format_headers
from headrace.schemas.group_changes import BEGINNING, GroupKey, HandOverPosition
from headrace.schemas.messages import Message, ProducerPosition, decode_message, encode_message, format_of
from headrace.schemas.records import Status

IN_FLIGHT_RECORDS_MAX = 128
"""Records that one next holder has not accepted, and that were sent."""
IN_FLIGHT_BYTES_MAX = 16 * 1024 * 1024
"""Bytes of these records. One larger record is sent alone."""
SEND_AGAIN_S = 3.0
"""Without an accepted record for so long, the first one that is due is sent again. Statuses arrive twice a second."""
TARGET_RETRY_S = 1.0
"""A topic that cannot be written is tried again. The change that ends its group names another one."""
IDENTITY_CHECK_S = 5.0
"""A topic that was deleted and created again has another id."""
_log = structlog.get_logger(__name__)


class OnlineStatuses(Protocol):
    """The newest statuses of all live members of all groups; see `FailureDetector`."""

    def online(self) -> list[Status]:
        """One status of each member that is alive."""
        ...


@dataclass(frozen=True, slots=True)
class _Sent:
    """How far a next holder's topic was written, the bytes of what it has not accepted, and since when it waits."""

    newest: HandOverPosition = BEGINNING
    sizes: tuple[tuple[HandOverPosition, int], ...] = ()
    accepted: HandOverPosition = BEGINNING
    since_s: float = 0.0

    def with_accepted(self, accepted: HandOverPosition, now_s: float) -> _Sent:
        """After the next holder has shown how far it is."""
        if accepted > self.accepted:
            left = tuple(each for each in self.sizes if each[0] > accepted)
            return _Sent(max(self.newest, accepted), left, accepted, now_s)
        waited = bool(self.sizes) and now_s - self.since_s >= SEND_AGAIN_S
        return _Sent(accepted=self.accepted, newest=self.accepted, since_s=now_s) if waited else self

    @property
    def in_flight_bytes(self) -> int:
        """Bytes of the records that wait for their acceptance."""
        return sum(size for _, size in self.sizes)


@dataclass(slots=True)
class _Target:
    """What the sender knows of one next holder. `logged`: the failure that was logged since it has accepted a record."""

    sent: _Sent = _Sent()
    topic_id: str = ""
    checked_s: float = 0.0
    retry_after_s: float = 0.0
    failure: str = ""
    logged: str = ""


class HandOverSender:
    """Sends for one group. Owned by one thread: that of the leader tasks, or the one that ends a group.

    `turn` is called while something is due. It waits for the log for some tenths of a second at most. It needs no
    leadership: the members of a group whose log is closed, where nobody can claim any more, may all call it.
    """

    def __init__(
        self, log: Log, topic: str, origin: GroupKey, producer: str, statuses: OnlineStatuses, clock: Clock
    ) -> None:
        self._log = log
        self._topic = topic
        self._origin = origin
        self._producer = producer
        self._statuses = statuses
        self._clock = clock
        self._own = OwnRecords(log, topic)
        self._appender: Appender | None = None
        self._targets: dict[GroupKey, _Target] = {}
        self._batch = 0

    def turn(self, view: ChangeView) -> tuple[GroupKey, HandOverPosition] | None:
        """Send what may be sent. Returns what a next holder has accepted and this group's log does not show yet."""
        accepted = None
        for key, due in view.due.items():
            target = self._targets.setdefault(key, _Target())
            if not due or self._clock.monotonic_s() < target.retry_after_s:
                continue
            try:
                position = self._turn_of(target, view, due)
            except HeadraceError as error:
                self._note_failure(target, key, str(error))
                continue
            if accepted is None and position is not None:
                accepted = key, position
        return accepted

    def handed_over(self, view: ChangeView) -> bool:
        """Whether the members of every next holder show that they have all that was due in the newest turn.

        A log that is closed takes no note of it any more, so this is what its end is decided by.
        """
        return all(
            key in self._targets and due[-1].position <= self._accepted_by(key, self._targets[key].topic_id)
            for key, due in view.due.items()
            if due
        )

    def close(self) -> None:
        """Release what was opened; what was appended is delivered, or sent again by the next leader."""
        self._own.close()
        appender, self._appender = self._appender, None
        if appender is not None:
            appender.close(0.0)

    def _turn_of(self, target: _Target, view: ChangeView, due: Sequence[HandOver]) -> HandOverPosition | None:
        self._check_identity(target, due[0].topic)
        if target.failure:
            # A record behind one that was not delivered may have arrived, and does not count.
            target.sent, failure, target.failure = _Sent(), target.failure, ""
            self._note_failure(target, due[0].target, failure)
            return None
        shown = self._accepted_by(due[0].target, target.topic_id)
        target.sent = target.sent.with_accepted(max(shown, due[0].previous), self._clock.monotonic_s())
        self._send(target, view, [each for each in due if each.position > target.sent.newest])
        known = [each.position for each in due if each.position <= shown]
        if not known:
            return None
        target.logged = ""
        return known[-1]

    def _check_identity(self, target: _Target, topic: str) -> None:
        """Raises TopicMissing, and the errors of the log."""
        now_s = self._clock.monotonic_s()
        if target.topic_id and now_s < target.checked_s + IDENTITY_CHECK_S:
            return
        topic_id = self._log.describe(topic).topic_id
        if topic_id != target.topic_id:
            target.topic_id, target.sent = topic_id, _Sent()
        target.checked_s = now_s

    def _accepted_by(self, key: GroupKey, topic_id: str) -> HandOverPosition:
        """The newest position that a live member of the next holder has read as accepted."""
        # One member is enough: it shows what is in the log, which every other one reads in the same way.
        shown = (
            status.accepted_from(self._origin)
            for status in self._statuses.online()
            if (status.group, status.topic_id) == (key.group, topic_id) and not status.log_lost
        )
        return max(shown, default=BEGINNING)

    def _send(self, target: _Target, view: ChangeView, behind: Sequence[HandOver]) -> None:
        sent = target.sent
        room, room_bytes = IN_FLIGHT_RECORDS_MAX - len(sent.sizes), IN_FLIGHT_BYTES_MAX - sent.in_flight_bytes
        if not behind or room <= 0 or room_bytes <= 0:
            return
        # Not from the newest sending on: with a record now and then, a lost one would wait until the room is used up.
        since_s = sent.since_s if sent.sizes else self._clock.monotonic_s()
        for each, value, needed_format in self._records(view, behind[:room], room_bytes):
            if sent.sizes and len(value) > room_bytes:
                break
            self._append(target, each.topic, value, needed_format)
            room_bytes -= len(value)
            sizes = (*sent.sizes, (each.position, len(value)))
            sent = replace(sent, newest=each.position, sizes=sizes, since_s=since_s)
            target.sent = sent

    def _records(
        self, view: ChangeView, wanted: Sequence[HandOver], room: int
    ) -> Iterator[tuple[HandOver, bytes, int]]:
        """The encoded records, in order, up to the first that cannot be read yet."""
        offsets = [each.transfer.offset for each in wanted if each.transfer.rank is not None]
        read: Mapping[int, Record] = self._own.read(offsets, room) if offsets else {}
        for each in wanted:
            message = None
            if each.transfer.rank is not None:
                if each.transfer.offset not in read:
                    return
                message = decode_message(read[each.transfer.offset].value)
            body = view.record_of(self._origin, each, message)
            self._batch += 1
            value = encode_message(Message(ProducerPosition(self._producer, self._batch, 0), body))
            yield each, value, format_of(body)

    def _append(self, target: _Target, topic: str, value: bytes, needed_format: int) -> None:
        if self._appender is None:
            # Of its own: a topic that takes nothing must not delay the records of a leader. Holders ignore repeats.
            self._appender = self._log.appender(repeats=True)
        noted = partial(_note_delivery, target)
        self._appender.append(topic, value, headers=format_headers(needed_format), on_delivery=noted)

    def _note_failure(self, target: _Target, key: GroupKey, why: str) -> None:
        # Once: a Kafka that is away may be so for hours, and it is tried each second.
        if why != target.logged:
            _log.warning("hand-over not sent", group=self._origin.group, to=key.group, error=why)
            target.logged = why
        target.retry_after_s = self._clock.monotonic_s() + TARGET_RETRY_S
        target.checked_s = 0.0


def _note_delivery(target: _Target, _offset: int | None, error: HeadraceError | None) -> None:
    # A report proves nothing about what counts. A failure only shortens the wait for an accepted record.
    if error is not None:
        target.failure = str(error)
