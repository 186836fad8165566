"""The consuming thread: reads the forward logs of all groups, and makes their records durable.

One poll, one group commit. A record's version is its count in its log, assigned here and written into the
journal with it, so that after a crash the count continues where the journal ends. No record is enqueued at
its group, shown as durable or acknowledged before the journal has it.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from contextlib import suppress

import structlog

from headrace.connectors.clock import SYSTEM_CLOCK, Clock
from headrace.connectors.deadline import GracePeriod
from headrace.connectors.log.port import Log, Reader, Record, TopicMissing, TopicUnreadable
from headrace.consumers.replication.back_pressure import pause_full
from headrace.consumers.replication.excluded_topics import ExcludedTopics
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import Event, State
from headrace.consumers.replication.group_registry import ByTopic
from headrace.consumers.replication.group_state import lost_log_choices
from headrace.consumers.replication.hash_chain import record_digest
from headrace.consumers.replication.journal import Journal, JournalEntry
from headrace.consumers.replication.log_consumer_listener import LogConsumerListener
from headrace.consumers.replication.log_prefix import Continuation, Cursor, LogPrefix
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.consumers.replication.topic_identity import TopicIdentities
from headrace.schemas.errors import HeadraceError, StateUnknown
from headrace.schemas.receipts import RECEIPT_BYTES, receipt_of

# As many as may become durable between two statuses; a status has those that the one before it did not have.
RECEIPTS_MAX = 4_096
UNREAD_GAP_S = 5.0
_log = structlog.get_logger(__name__)


class LogConsumer:
    """Consumes for all groups of a node. `durable_offset` and `position` may be read by any thread.

    `turn` is one step of the consuming thread, which only calls it again and again.
    """

    def __init__(
        self,
        log: Log,
        name: str,
        groups: Mapping[str, Group],
        cursors: Mapping[str, Cursor],
        journal: Journal,
        limits: ReplicationLimits,
        listener: LogConsumerListener,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        """`groups` may change while this runs, but for those that follow: see `admit`, `dismiss` and `rejoin`."""
        self._listener = listener
        self._clock = clock
        self._log = log
        self.name = name
        self._groups = groups
        self._durable = ByTopic(cursors)
        self._prefixes = {topic: LogPrefix(cursor) for topic, cursor in cursors.items()}
        self._identities = TopicIdentities(log, clock)
        self._reading: list[str] = []
        self._assigned: frozenset[str] = frozenset()
        self._assignment_changed = threading.Condition()
        self._changed = threading.Event()
        self._journal = journal
        self._limits = limits
        self._positions = ByTopic({topic: cursor.offset + 1 for topic, cursor in cursors.items()})
        self._receipts = ByTopic(dict.fromkeys(cursors, b""))
        self._paused: set[str] = set()
        self._excluded = ExcludedTopics(limits.journal_retry_s, clock)
        self._shortfall = GracePeriod(clock.monotonic_s)
        self._reader: Reader | None = None
        self._reopen_s = math.inf
        self._refused: frozenset[str] = frozenset()
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="consume", daemon=True)
        self.journal_fault = ""
        self.log_fault = ""
        self.bytes_consumed = 0

    def start(self) -> None:
        """Begin to consume."""
        self._thread.start()

    def restore(self, topic_ids: Mapping[str, str], receipts: Mapping[str, bytes]) -> None:
        """Before the start: what the data directory holds besides the cursors.

        `topic_ids`: the logs that its records are of; may get other values later. `receipts` of its newest records:
        a status may not have shown them before the process ended.
        """
        self._identities.ids = topic_ids
        self._receipts.update(receipts)

    def stop(self, wait_s: float = 30.0) -> None:
        """Stop after the current poll, for whose end it waits so long."""
        self._stopping.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join(wait_s)

    def release(self, topic: str, timeout_s: float) -> bool:
        """Whether the consuming thread has released a topic in time; only then may its group be replaced.

        A topic is released after its group stopped following; until then the old group gets the records that
        were read for it.
        """
        with self._assignment_changed:
            self._changed.set()
            return self._assignment_changed.wait_for(lambda: topic not in self._assigned, timeout_s)

    def rejoin(self, topic: str, cursor: Cursor | None) -> None:
        """Continue the log of a group that did not follow.

        From a cursor that another member's files have reached; None = its own.
        """
        with self._assignment_changed:
            # At once, and not at the consuming thread's next turn: a status in between would report the records of
            # the replaced data as durable, which this node no longer has.
            if cursor is not None:
                assert topic not in self._assigned, f"{topic} was not released"
                self._durable[topic] = cursor
                self._positions[topic] = cursor.offset + 1
                # Of data that was replaced.
                self._receipts[topic] = b""
                self._refused -= {topic}
            self._changed.set()

    def admit(self, topic: str, cursor: Cursor, receipts: bytes) -> None:
        """A group comes: its log is read from a cursor on, once `groups` has it and `rejoin` is called."""
        with self._assignment_changed:
            self._durable[topic], self._receipts[topic] = cursor, receipts
            self._positions[topic] = cursor.offset + 1

    def dismiss(self, topic: str) -> None:
        """A released group has gone."""
        with self._assignment_changed:
            assert topic not in self._assigned, f"{topic} was not released"
            self._refused -= {topic}
            for known in (self._durable, self._positions, self._receipts):
                known.pop(topic, None)

    @property
    def alive(self) -> bool:
        """Whether the consuming thread runs."""
        return self._thread.is_alive()

    def topic_fault(self, topic: str) -> str:
        """Why the topic cannot be read on, empty while it can."""
        return self._excluded.reason(topic)

    def durable_offset(self, topic: str) -> int:
        """Every record of the topic up to this offset survives a crash of this node."""
        return self._durable[topic].offset

    def needed_end(self, topic: str) -> int:
        """The end that the log must have at least: behind what is durable, and behind an accepted gap."""
        return self._durable[topic].needs + 1

    def cursor(self, topic: str) -> Cursor:
        """The newest durable record."""
        return self._durable[topic]

    def durable_version(self, topic: str) -> int:
        """Version of the record at the durable offset."""
        return self._durable[topic].version

    def receipts(self, topic: str) -> bytes:
        """The receipts of the newest durable records, at most RECEIPTS_MAX."""
        return self._receipts[topic]

    def position(self, topic: str) -> int:
        """Next offset to read: everything readable below it has been journaled and enqueued."""
        return self._positions[topic]

    def _run(self) -> None:
        while not self._stopping.is_set():
            if pause_s := self.turn():
                self._changed.wait(None if math.isinf(pause_s) else pause_s)
        with suppress(HeadraceError):
            self._close_reader()

    def turn(self) -> float:
        """One step: assign and open the topics, or poll once and make durable what came.

        Returns the seconds to wait before the next one, unless `rejoin` or `release` is called meanwhile; `inf`
        while no group follows. Waits for records no longer than `poll_timeout_s`.
        """
        try:
            if self._reader is None or self._changed.is_set() or self._clock.monotonic_s() >= self._reopen_s:
                return self._reopen()
            return self._poll(self._reader)
        except TopicUnreadable as error:
            self._exclude(error)
            self._reopen_s = self._clock.monotonic_s()
            return 0.0
        except HeadraceError as error:
            # A missing or truncated topic and an absent broker look alike here; opening the topic again
            # tells them apart.
            self.log_fault = str(error)
            _log.warning("log not readable", error=str(error))
        except Exception as error:
            # Without this thread the node would follow no log until its next start. What was read and is
            # not durable is read again, as after a journal that refused it.
            self.log_fault = repr(error)
            _log.exception("consuming failed")
        self._reopen_s = self._clock.monotonic_s()
        return self._limits.journal_retry_s

    def _exclude(self, error: TopicUnreadable) -> None:
        """Read the other topics, and this one again after a while: it stops its group and no other."""
        _log.error("topic not readable", topic=error.topic, error=str(error))
        self._excluded.add([error.topic] if error.topic else self._assigned, str(error))

    def _reopen(self) -> float:
        self._close_reader()
        self._assign()
        self._reader = self._open()
        self.log_fault = ""
        return 0.0 if self._reader is not None else max(0.0, self._reopen_s - self._clock.monotonic_s())

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _assign(self) -> None:
        """Assign the topics of the groups that follow."""
        # The only place where topics are assigned and released. A group that was replaced between a poll and
        # the enqueueing of its records would get records of its predecessor, whose versions it has already or
        # does not reach yet.
        with self._assignment_changed:
            if not self._stopping.is_set():
                self._changed.clear()
            self._assigned = frozenset(topic for topic, group in self._groups.items() if group.follows)
            self._assignment_changed.notify_all()

    def _open(self) -> Reader | None:
        """A reader of every assigned topic that exists, None when there is none."""
        starts: dict[str, int] = {}
        self._prefixes = {topic: LogPrefix(cursor) for topic, cursor in dict(self._durable).items()}
        self._reopen_s = math.inf
        for topic in self._assigned:
            if (retry_at_s := self._excluded.retry_at_s(topic)) > -math.inf:
                self._reopen_s = min(self._reopen_s, retry_at_s)
                continue
            start = self._start_of(topic)
            if start is not None:
                starts[topic] = start
        self._paused = set()
        self._reading = list(starts)
        return self._log.reader(starts, name=self.name, follow=True) if starts else None

    def _start_of(self, topic: str) -> int | None:
        """The offset from which to read a group's log; None if it does not exist, or lacks what the group needs."""
        try:
            log = self._identities.describe(topic)
        except TopicMissing:
            # A broker that has just started knows fewer topics and records than there are. So the topic is
            # opened again a little later, and only an absence that lasts is an error (GracePeriod).
            self._reopen_s = self._clock.monotonic_s() + self._limits.journal_retry_s
            return None
        cursor, group, prefix = self._durable[topic], self._groups[topic], self._prefixes[topic]
        if not self._identities.is_same(topic, log.topic_id):
            self._mark_recreated(topic)
            return None
        if cursor.offset + 1 < log.begin:
            group.health.report(Event.TRIM, f"the log begins at offset {log.begin}, {cursor.offset + 1} is needed")
            return None
        if cursor.needs >= log.end:
            self._reopen_s = self._clock.monotonic_s() + self._limits.journal_retry_s
            if self._shortfall.missing(topic):
                group.mark_log_lost(
                    f"topic {topic} holds offsets {log.begin} to {log.end}, this node needs {cursor.needs + 1}; "
                    f"{lost_log_choices(group.name)}"
                )
            return None
        self._shortfall.present(topic)
        if cursor.gap is not None:
            # A reader gets no error when the log loses what it has not reached: the end is compared again.
            self._reopen_s = min(self._reopen_s, self._clock.monotonic_s() + UNREAD_GAP_S)
        # The last journaled record is read again and compared: a log that was truncated and written on since
        # has as many records as before, and only the content shows it. A log trimmed right behind that record
        # cannot be compared.
        if log.begin <= cursor.offset and prefix.comparable:
            prefix.comparing = True
            return cursor.offset
        return max(log.begin, cursor.offset + 1)

    def _mark_recreated(self, topic: str) -> None:
        group = self._groups[topic]
        group.mark_log_lost(f"topic {topic} was recreated under this node; {lost_log_choices(group.name)}")

    def _poll(self, reader: Reader) -> float:
        if self.journal_fault:
            self._repair_journal()
        self._paused = pause_full(reader, self._groups, self._reading, self._paused)
        records = reader.poll(self._limits.poll_records, self._limits.poll_timeout_s)
        self.log_fault = ""
        for topic in self._identities.recreated({record.topic: record.offset for record in reversed(records)}):
            self._mark_recreated(topic)
        entries: dict[str, list[JournalEntry]] = {}
        receipts: dict[str, list[bytes]] = {}
        unproven: set[str] = set()
        for record in records:
            entry = self._entry(record, unproven)
            if entry is not None:
                entries.setdefault(record.topic, []).append(entry)
                digest = self._prefixes[record.topic].cursor.digest
                receipts.setdefault(record.topic, []).append(receipt_of(record.offset, digest))
        for topic in unproven:
            reader.seek(topic, self._prefixes[topic].cursor.offset)
        if entries and not self._make_durable(entries):
            self._rewind(reader, entries)
            return self._limits.journal_retry_s
        # First durable, then shown, then applied: a status with a durable offset confirms writes, and a crash
        # right after it must find the records in the journal.
        for topic, found in entries.items():
            self.bytes_consumed += sum(len(entry.value) for entry in found)
            self._durable[topic] = self._prefixes[topic].cursor
            shown = self._receipts[topic] + b"".join(receipts[topic])
            self._receipts[topic] = shown[-RECEIPTS_MAX * RECEIPT_BYTES :]
            self._groups[topic].enqueue(found)
        if entries:
            self._listener.on_durable()
        for topic in self._reading:
            if self._excluded.reason(topic) and reader.answered(topic):
                _log.info("topic readable again", topic=topic)
                self._excluded.readmit(topic)
            if topic not in self._paused and self._groups[topic].follows:
                # The reader's position passes transaction markers, which are no records: without it a group
                # whose log ends with one would never reach the end.
                self._positions[topic] = max(reader.position(topic), self._prefixes[topic].cursor.offset + 1)
        return self._limits.journal_retry_s if self.journal_fault else 0.0

    def _entry(self, record: Record, unproven: set[str]) -> JournalEntry | None:
        """The record with its version; None for one that is not taken.

        `unproven` gets the topics whose last record must be read again before any more of them is taken.
        """
        prefix, group = self._prefixes[record.topic], self._groups[record.topic]
        if record.topic in unproven or group.health.holds(State.STOPPED, State.LOST):
            return None
        last = prefix.cursor
        continuation = prefix.judge(record, record_digest(record.value))
        if continuation is Continuation.NEXT:
            return JournalEntry.of(group.key, prefix.cursor.version, record)
        if continuation is Continuation.UNPROVEN:
            unproven.add(record.topic)
        if continuation is Continuation.FOREIGN:
            group.mark_log_lost(
                f"the log does not hold at offset {last.offset} the record that this node journaled, and has another "
                f"one at offset {record.offset}: it was truncated or recreated; {lost_log_choices(group.name)}"
            )
        return None

    def _make_durable(self, entries: Mapping[str, list[JournalEntry]]) -> bool:
        """Journal the entries; False when they are not durable and must be read again."""
        # The journal may have refused some entries and may not know of others (a failed sync). Either way the
        # log has them all, so reading them again is simpler than finding out, and a version is never given
        # twice.
        try:
            self._journal.append({self._groups[topic].key: found for topic, found in entries.items()})
        except (HeadraceError, OSError) as error:
            if not self.journal_fault:
                _log.error("journal refused", error=str(error), state_unknown=isinstance(error, StateUnknown))
            self.journal_fault = str(error)
            self._refused = frozenset(entries)
            return False
        if self.journal_fault:
            _log.info("journal accepts records again")
        self.journal_fault, self._refused = "", frozenset()
        return True

    def _repair_journal(self) -> None:
        """After a failed sync only a checkpoint makes the journal take updates again.

        While that fails too, the fault remains.
        """
        try:
            self._journal.checkpoint()
        except (HeadraceError, OSError) as error:
            self.journal_fault = str(error)
            return
        # A group that took files of another member meanwhile has nothing to journal, perhaps for long: no append
        # would end the fault.
        if not any(self._groups[topic].follows for topic in self._refused):
            self.journal_fault = ""

    def _rewind(self, reader: Reader, entries: Mapping[str, list[JournalEntry]]) -> None:
        """Go back to the newest durable record, to read again what could not be journaled."""
        for topic in entries:
            self._prefixes[topic].rewind(self._durable[topic])
            reader.seek(topic, self._durable[topic].offset + 1)
