"""Sends this node's status of each of its groups, and receives those of all nodes.

A node serves nothing unless it has read its own newest status back and sent it less than 3 s ago by its
boot-time clock. That clock advances while a process or a machine is stopped, so it fences a process that was
paused and resumes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import structlog

from headrace.connectors.clock import SYSTEM_CLOCK, Clock
from headrace.connectors.deadline import Deadline
from headrace.connectors.log.port import STOP_FLUSH_S, Appender, Log, Reader, Record, RecordUndeliverable
from headrace.connectors.log.topics import Topics
from headrace.connectors.periodic import LOG_JOIN_TIMEOUT_S
from headrace.consumers.replication.failure_detector import (
    HEARTBEAT_INTERVAL_MS,
    OFFLINE_MS,
    RECEIPTS_KEPT,
    FailureDetector,
    StatusTime,
)
from headrace.consumers.replication.process_runs import OwnRun
from headrace.consumers.replication.sent_statuses import REPEAT_S, SentStatuses
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import FrameInvalid, SchemaUnknown, format_headers
from headrace.schemas.presence import (
    Presence,
    decode_presence,
    encode_presence,
    is_presence,
    presence_key,
    sender_of,
    status_key,
)
from headrace.schemas.records import Status, decode_status, encode_status

STATUS_TAIL_RECORDS = 5_000
COALESCE_S = 0.002
# A presence is repeated with every second heartbeat: what changes often is in the statuses of the groups.
PRESENCE_REPEAT_S = 2 * HEARTBEAT_INTERVAL_MS / 1_000 - REPEAT_S
RETRY_S = 0.5
POLL_S = 0.1
OWN_POLL_S = 0.2
_log = structlog.get_logger(__name__)


class StatusReader:
    """Follows the status topic into a detector. Owned by one thread.

    `senders`: the nodes that have sent a status since this reader was opened. `warns`: it logs records of no node.
    """

    warns = False

    def __init__(self, log: Log, topic: str, receipts_kept: int = 0, clock: Clock = SYSTEM_CLOCK) -> None:
        # The tail is enough: every live node repeats its status within an interval. The whole topic may hold
        # an hour of them.
        opened_ms = clock.boot_ns() // 1_000_000
        state = log.describe(topic)
        self._topic = topic
        self._reader: Reader = log.reader({topic: max(state.begin, state.end - STATUS_TAIL_RECORDS)}, follow=True)
        self._end = state.end
        self._clock = clock
        self.detector = FailureDetector(receipts_kept=receipts_kept, time=StatusTime(opened_ms=opened_ms))
        self.senders: set[str] = set()

    @property
    def caught_up(self) -> bool:
        """Whether all was taken that was there when it was opened."""
        return self._reader.position(self._topic) >= self._end

    def follow(self, timeout_s: float) -> list[Status]:
        """Take what has arrived, waiting up to `timeout_s` for the first."""
        statuses, records = list[Status](), self._poll(timeout_s)
        received_ms = self._clock.boot_ns() // 1_000_000
        for record in records:
            recent = record.offset >= self._end
            try:
                if is_presence(record.value):
                    self._take_presence(record, received_ms if recent else None)
                    continue
                status = decode_status(record.value)
            except SchemaUnknown:
                self._note_unread(record)
                continue
            except FrameInvalid as error:
                # Once: whoever opens a reader gets those that were there again.
                if self.warns and recent:
                    _log.warning("a record cannot be read", topic=self._topic, offset=record.offset, error=str(error))
                continue
            self.detector.observe(record.timestamp_ms, status, received_ms if recent else None)
            if recent:
                self.senders.add(status.node)
            statuses.append(status)
        return statuses

    def _take_presence(self, record: Record, received_ms: int | None) -> None:
        presence = decode_presence(record.value)
        self.detector.observe_presence(record.timestamp_ms, presence, received_ms)
        if received_ms is not None:
            self.senders.add(presence.node)

    def _note_unread(self, record: Record) -> None:
        # The node counts as offline, as before: nothing is known of what it holds. But it must not seem to be silent.
        if sender := sender_of(record.key):
            self.detector.observe_unread(*sender)

    def _poll(self, timeout_s: float) -> list[Record]:
        try:
            return self._reader.poll(1_000, timeout_s)
        except RecordUndeliverable as error:
            # A status is repeated within an interval, so one may be missed. Waiting for it would keep every node
            # of the cluster fenced.
            _log.warning("status skipped", error=str(error))
            self._reader.seek(self._topic, error.offset + 1)
            return []

    def close(self) -> None:
        """Close the reader."""
        self._reader.close()


class StatusWatch:
    """Follows the status topic in a thread of its own, from the first use on. Safe to share between threads."""

    def __init__(self, log: Log, topics: Topics) -> None:
        self._log = log
        self._topic = topics.status
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self.statuses = FailureDetector()
        self.error = ""

    def start(self) -> None:
        """Begin to follow; a second call changes nothing."""
        with self._changed:
            if self._thread is None:
                self._thread = threading.Thread(target=self._follow, name="status-watch", daemon=True)
                self._thread.start()

    def wait_for(self, holds: Callable[[FailureDetector], bool], timeout_s: float) -> bool:
        """Whether `holds` becomes true within `timeout_s`; it is called at every change, so it must be quick."""
        self.start()
        with self._changed:
            return self._changed.wait_for(lambda: holds(self.statuses), timeout_s)

    def close(self) -> None:
        """Stop following."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(10.0)

    def _follow(self) -> None:
        while not self._stopping.is_set():
            try:
                with contextlib.closing(StatusReader(self._log, self._topic, RECEIPTS_KEPT)) as reader:
                    self.statuses = reader.detector
                    self._follow_reader(reader)
            except HeadraceError as error:
                self.error = error.message
                self._stopping.wait(RETRY_S)

    def _follow_reader(self, reader: StatusReader) -> None:
        while not self._stopping.is_set():
            if reader.follow(POLL_S):
                self.error = ""
                with self._changed:
                    self._changed.notify_all()


class Heartbeat:
    """Two threads, one sends and one receives. `detector` and `fenced` may be read by any thread.

    `send_turn` and `receive_turn` are one step of each; the threads only call them again and again. `presence` is
    set by a node that also reports itself, whichever groups it has. `on_elder` gets the address of another process
    of this node, before which this one must end.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        node: str,
        incarnation: str,
        statuses: Callable[[], Sequence[Status]],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.node, self.incarnation = node, incarnation
        self._log, self._topic = log, topic
        self._statuses, self._clock = statuses, clock
        self._own_run = OwnRun(node, incarnation)
        self._sent = SentStatuses()
        self._appender: Appender | None = None
        self._reader: StatusReader | None = None
        self._stopping = threading.Event()
        self._changed = threading.Event()
        self._sent_presence: tuple[Presence, float] | None = None
        self.presence: Callable[[], Presence] | None = None
        self.on_elder: Callable[[str], None] = lambda _http: None
        self._read_back_ns = self._fencings = 0
        self._threads = [
            threading.Thread(target=self._send, name="heartbeat-send", daemon=True),
            threading.Thread(target=self._receive, name="heartbeat-receive", daemon=True),
        ]
        self.detector = FailureDetector()
        self._send_error = self._receive_error = ""
        self._warned: set[str] = set()

    def start(self) -> None:
        """Begin to send and receive."""
        for thread in self._threads:
            thread.start()

    def stop(self, wait_s: float = LOG_JOIN_TIMEOUT_S) -> None:
        """Stop both threads; one that waits longer for a log that is gone is left to the end of the process."""
        self._stopping.set()
        self._changed.set()
        deadline = Deadline(wait_s)
        for thread in self._threads:
            if thread.is_alive():
                thread.join(deadline.left_s())

    def send_now(self) -> None:
        """Send what changed before the next interval; many calls make one sending."""
        self._changed.set()

    @property
    def send_due(self) -> bool:
        """Whether `send_now` was called since the newest `send_turn` began."""
        return self._changed.is_set()

    def live(self, group: str, members: Iterable[str]) -> list[Status]:
        """The newest statuses of the members of a group that are alive, in the order given."""
        return self.detector.live(group, members)

    def holders(self, group: str) -> list[Status]:
        """The newest statuses of every node that is alive and holds a group of this name, a member or not."""
        return [each for each in self.detector.online() if each.group == group]

    @property
    def error(self) -> str:
        """Why statuses cannot be read, or not be sent; empty while they can."""
        return self._receive_error or self._send_error

    @property
    def fenced(self) -> bool:
        """Whether this node must not serve: its newest status was not read back, or was sent too long ago."""
        # A log that knows what its records wait for is this process's alone: nobody else can lead here, and what is
        # stored can be answered from.
        if self._read_back_ns and self._log.write_fault:
            return False
        # Computed at each call, not by a thread: in a process that resumes after SIGSTOP an HTTP thread may
        # run first.
        now_ns = self._clock.boot_ns()
        return now_ns - self._read_back_ns >= OFFLINE_MS * 1_000_000 or self._own_run.is_silent(now_ns // 1_000_000)

    @property
    def silence_ms(self) -> int:
        """How long ago this node received the newest status of any node; 0 before the first."""
        return self.detector.time.silence_ms(self._clock.boot_ns() // 1_000_000)

    @property
    def write_fault(self) -> str:
        """What its statuses wait for to be appended, if the log knows; see Log."""
        return self._log.write_fault

    @property
    def fencings(self) -> int:
        """How often this node was fenced, counted when it stops being so.

        Read before `fenced` at the beginning of some work and behind it at the end, an equal number shows that
        the node was not fenced in between.
        """
        return self._fencings

    def withdrawn(self, group: str) -> bool:
        """Whether the others see that this node does not serve a group: by its newest status, or by its silence."""
        newest = self._sent.newest(group)
        return self.fenced or newest is None or not newest.eligible

    def _send(self) -> None:
        while not self._stopping.is_set():
            pause_s = self.send_turn()
            # A short pause before the wait coalesces bursts: one poll of the log makes several groups
            # durable at once.
            self._stopping.wait(pause_s or COALESCE_S)
            self._changed.wait(HEARTBEAT_INTERVAL_MS / 1_000)
        self._close_appender()

    def send_turn(self) -> float:
        """Send the statuses that are due, and wait for their delivery for at most one interval.

        Returns the seconds to wait before the next turn: more than 0 after an error.
        """
        # Cleared before the statuses are taken: a change in between is sent in the next round, never lost.
        self._changed.clear()
        if self._own_run.is_silent(self._clock.boot_ns() // 1_000_000):
            return 0.0
        try:
            if self._appender is None:
                self._appender = self._log.appender()
            for status in self._sent.due(self._statuses(), self._clock.monotonic_s()):
                self._append(self._appender, status)
            self._send_presence(self._appender)
            self._appender.flush(HEARTBEAT_INTERVAL_MS / 1_000)
        except HeadraceError as error:
            self._send_error = error.message
            _log.warning("status not sent", error=str(error))
            # Another one after an error: a client that failed for good accepts nothing more.
            self._close_appender()
            return RETRY_S
        self._send_error = ""
        return 0.0

    def _send_presence(self, appender: Appender) -> None:
        """Send this node's presence if it changed, or the newest one is old enough."""
        if self.presence is None:
            return
        presence, now_s = self.presence(), self._clock.monotonic_s()
        content = replace(presence, sent_boot_ns=0)
        before, sent_s = self._sent_presence or (None, 0.0)
        if content != before or now_s - sent_s >= PRESENCE_REPEAT_S:
            key = presence_key(presence.node)
            appender.append(self._topic, encode_presence(presence), key=key, headers=format_headers())
            self._sent_presence = content, now_s

    def _append(self, appender: Appender, status: Status) -> None:
        try:
            key = status_key(status.group, status.node)
            appender.append(self._topic, encode_status(status), key=key, headers=format_headers())
        except HeadraceError:
            self._sent.forget(status.group)
            raise

    def _close_appender(self) -> None:
        appender, self._appender = self._appender, None
        if appender is not None:
            with contextlib.suppress(HeadraceError):
                appender.close(STOP_FLUSH_S)

    def _receive(self) -> None:
        while not self._stopping.is_set():
            if pause_s := self.receive_turn():
                self._stopping.wait(pause_s)
        self._close_reader()

    def receive_turn(self) -> float:
        """Take the statuses that have arrived, waiting for the first for at most `OWN_POLL_S`.

        Returns the seconds to wait before the next turn: more than 0 after an error.
        """
        try:
            if self._reader is None:
                self._reader = StatusReader(self._log, self._topic, clock=self._clock)
                self._reader.warns = True
                self.detector = self._reader.detector
            self._note_own(self._reader.follow(OWN_POLL_S))
            if self._own_run.look(self.detector.runs, self._clock.boot_ns() // 1_000_000):
                self.send_now()
            if elder := self._own_run.elder:
                self.on_elder(elder.http)
            self._warn_of_unread()
        except HeadraceError as error:
            self._receive_error = str(error)
            _log.warning("status not readable", error=str(error))
            self._close_reader()
            return RETRY_S
        self._receive_error = ""
        return 0.0

    def _warn_of_unread(self) -> None:
        """Name each node whose statuses cannot be read once in the log."""
        for node in sorted({*self.detector.unread_nodes()} - self._warned):
            self._warned.add(node)
            _log.warning("statuses of a newer build", node=node, action="upgrade this node")

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            with contextlib.suppress(HeadraceError):
                reader.close()

    def _note_own(self, statuses: Sequence[Status]) -> None:
        for status in statuses:
            # One from a time to come is foreign, and would keep this node unfenced until then.
            if status.sent_boot_ns > self._clock.boot_ns():
                continue
            # Those of an earlier run of this node prove nothing about this one: the incarnation must match.
            if status.node == self.node and status.incarnation == self.incarnation:
                # The count first: who finds the node not fenced any more must find it raised.
                self._fencings += self.fenced
                self._read_back_ns = max(self._read_back_ns, status.sent_boot_ns)
