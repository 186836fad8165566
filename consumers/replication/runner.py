"""The consuming thread: reads the forward logs of all groups, makes what it read durable, then hands it to the groups.

One poll, one group commit. A record's version is its count in its log, given here and written into the journal with it, so that after a crash the
count goes on where the journal ends. Nothing is handed on, shown as durable or acknowledged before the journal has it.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import structlog

from connectors.log.port import Log, Reader, Record, TopicMissing
from consumers.replication.absence import Absence
from consumers.replication.chain import record_digest
from consumers.replication.gap import choices
from consumers.replication.group import Group
from consumers.replication.journal import Journal, JournalEntry
from consumers.replication.limits import ReplicationLimits
from consumers.replication.state import GroupState
from schemas.errors import HeadraceError, StateUnknown
from schemas.messages import NO_CHAIN

_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Cursor:
    """Where a group's log has been read to: version, offset and digest of the last record, which is compared when it is read again."""

    version: int
    offset: int
    digest: bytes

    @classmethod
    def of(cls, state: GroupState) -> Cursor:
        """Behind the newest record of a state."""
        return cls(state.version, state.offset, state.record_digest)


class Runner:
    """Consumes for all groups of a node. `durable_offset` and `position` may be read by any thread."""

    def __init__(
        self,
        log: Log,
        name: str,
        topics: Mapping[str, Group],
        cursors: Mapping[str, Cursor],
        journal: Journal,
        limits: ReplicationLimits,
        on_durable: Callable[[], None],
        on_trimmed: Callable[[str, int, int], None],
    ) -> None:
        """`topics` may get other values while the runner runs, each for a topic whose group did not follow. `on_trimmed(topic, needed, begin)` is
        told that a log does not hold what its group needs; it stops the group or makes it recover."""
        self._on_durable = on_durable
        self._on_trimmed = on_trimmed
        self._log = log
        self._name = name
        self._groups = topics
        self._durable = dict(cursors)
        self._read = dict(cursors)
        self._comparing: set[str] = set()
        self._reading: list[str] = []
        self._rejoining: dict[str, Cursor | None] = {}
        self._held: frozenset[str] = frozenset()
        self._settled = threading.Condition()
        self._changed = threading.Event()
        self._journal = journal
        self._limits = limits
        self._positions = {topic: cursor.offset + 1 for topic, cursor in cursors.items()}
        self._paused: set[str] = set()
        self._short = Absence()
        self._reopen_s = math.inf
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="consume", daemon=True)
        self.journal_fault = ""
        self.log_fault = ""
        self.bytes_consumed = 0

    def start(self) -> None:
        """Begin to consume."""
        self._thread.start()

    def stop(self) -> None:
        """Stop after the poll in hand."""
        self._stopping.set()
        self._changed.set()
        if self._thread.is_alive():
            self._thread.join(30.0)

    def let_go(self, topic: str, timeout_s: float) -> bool:
        """Whether this thread has nothing of a topic in hand any more, waited for: a group that does not follow may be replaced only then. What was
        read before it stopped following is handed to it until then."""
        with self._settled:
            self._changed.set()
            return self._settled.wait_for(lambda: topic not in self._held, timeout_s)

    def rejoin(self, topic: str, cursor: Cursor | None) -> None:
        """Read the log of a group that did not follow on from a cursor, which another member's files have reached; None: from where it was."""
        with self._settled:
            self._rejoining[topic] = cursor or self._rejoining.get(topic)
            self._changed.set()

    @property
    def alive(self) -> bool:
        """Whether the consuming thread runs."""
        return self._thread.is_alive()

    def durable_offset(self, topic: str) -> int:
        """Every record of the topic up to this offset survives a crash of this node."""
        return self._durable[topic].offset

    def durable_version(self, topic: str) -> int:
        """Version of the record at the durable offset."""
        return self._durable[topic].version

    def position(self, topic: str) -> int:
        """Next offset to be read: everything readable below it has been journaled and handed on."""
        return self._positions[topic]

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._follow()
            except HeadraceError as error:
                # Whether a topic is gone or cut is found out where it is opened again.
                self.log_fault = str(error)
                _log.warning("log not readable", error=str(error))
                self._stopping.wait(self._limits.journal_retry_s)

    def _follow(self) -> None:
        """Read every group that follows until one of them is to be read otherwise, or the log cannot be read."""
        self._settle()
        reader = self._open()
        self.log_fault = ""
        if reader is None:
            wait_s = self._reopen_s - time.monotonic()
            self._changed.wait(None if math.isinf(wait_s) else max(0.0, wait_s))
            return
        try:
            while not self._changed.is_set() and time.monotonic() < self._reopen_s:
                self._turn(reader)
        finally:
            reader.close()

    def _settle(self) -> None:
        """Take the places to read on from, and hold the topics of the groups that follow until the next time."""
        with self._settled:
            if not self._stopping.is_set():
                self._changed.clear()
            for topic, cursor in self._rejoining.items():
                if cursor is not None:
                    self._durable[topic] = cursor
                    self._positions[topic] = cursor.offset + 1
            self._rejoining = {}
            self._held = frozenset(topic for topic, group in self._groups.items() if group.follows)
            self._settled.notify_all()

    def _open(self) -> Reader | None:
        """A reader of every topic that is held and there, None when there is none.

        The last journaled record is read again and compared, unless the log was trimmed right behind it.
        """
        starts: dict[str, int] = {}
        self._comparing = set()
        self._reopen_s = math.inf
        for topic in self._held:
            start = self._start_of(topic)
            if start is not None:
                starts[topic] = start
        self._read = dict(self._durable)
        self._paused = set()
        self._reading = list(starts)
        return self._log.reader(starts, name=self._name) if starts else None

    def _start_of(self, topic: str) -> int | None:
        """Where to read a group's log from; None when it is not there, or does not hold what the group needs. A broker that has just started may
        know less than there is for a moment, so it is looked at again a little later, and only what lasts is believed."""
        try:
            log = self._log.describe(topic)
        except TopicMissing:
            self._reopen_s = time.monotonic() + self._limits.journal_retry_s
            return None
        cursor, group = self._durable[topic], self._groups[topic]
        if cursor.offset + 1 < log.begin:
            self._on_trimmed(topic, cursor.offset + 1, log.begin)
            return None
        if cursor.offset >= log.end:
            self._reopen_s = time.monotonic() + self._limits.journal_retry_s
            if self._short.missing(topic):
                group.lose(
                    f"topic {topic} holds offsets {log.begin} to {log.end}, this node needs {cursor.offset + 1}; {choices(group.name)}"
                )
            return None
        self._short.present(topic)
        if log.begin <= cursor.offset and cursor.digest != NO_CHAIN:
            self._comparing.add(topic)
            return cursor.offset
        return max(log.begin, cursor.offset + 1)

    def _turn(self, reader: Reader) -> None:
        self._apply_back_pressure(reader)
        records = reader.poll(self._limits.poll_records, self._limits.poll_timeout_s)
        self.log_fault = ""
        entries: dict[str, list[JournalEntry]] = {}
        for record in records:
            entry = self._entry(record)
            if entry is not None:
                entries.setdefault(record.topic, []).append(entry)
        if entries and not self._make_durable(entries):
            self._rewind(reader, entries)
            return
        for topic, found in entries.items():
            self.bytes_consumed += sum(len(entry.value) for entry in found)
            self._durable[topic] = self._read[topic]
            self._groups[topic].enqueue(found)
        if entries:
            self._on_durable()
        for topic in self._reading:
            if topic not in self._paused and self._groups[topic].follows:
                self._positions[topic] = max(reader.position(topic), self._read[topic].offset + 1)

    def _entry(self, record: Record) -> JournalEntry | None:
        """The record with its version; None for the one that was only read again to be compared."""
        cursor, group = self._read[record.topic], self._groups[record.topic]
        if group.fault or group.lost:
            return None
        digest = record_digest(record.value)
        if record.topic in self._comparing:
            self._comparing.discard(record.topic)
            if record.offset == cursor.offset and digest == cursor.digest:
                return None
            if record.offset <= cursor.offset:
                group.lose(
                    f"the log holds another record at offset {record.offset} than the one this node journaled: it was truncated or made again; "
                    f"{choices(group.name)}"
                )
                return None
        self._read[record.topic] = Cursor(cursor.version + 1, record.offset, digest)
        return JournalEntry.of(group.name, cursor.version + 1, record)

    def _make_durable(self, entries: Mapping[str, list[JournalEntry]]) -> bool:
        """Journal the entries; False when they are not durable and must be read again."""
        try:
            self._journal.append({self._groups[topic].name: found for topic, found in entries.items()})
        except (HeadraceError, OSError) as error:
            if not self.journal_fault:
                _log.error("journal refused", error=str(error), state_unknown=isinstance(error, StateUnknown))
            self.journal_fault = str(error)
            self._stopping.wait(self._limits.journal_retry_s)
            self._mend_journal()
            return False
        if self.journal_fault:
            _log.info("journal takes records again")
        self.journal_fault = ""
        return True

    def _mend_journal(self) -> None:
        """After a failed sync only a checkpoint makes the journal take updates again; while that fails too, the fault stays."""
        try:
            self._journal.checkpoint()
        except (HeadraceError, OSError) as error:
            self.journal_fault = str(error)

    def _rewind(self, reader: Reader, entries: Mapping[str, list[JournalEntry]]) -> None:
        """Go back to the newest durable record: read again what could not be journaled."""
        for topic in entries:
            self._read[topic] = self._durable[topic]
            reader.seek(topic, self._durable[topic].offset + 1)

    def _apply_back_pressure(self, reader: Reader) -> None:
        full = {topic for topic in self._reading if self._groups[topic].full} - self._paused
        drained = {topic for topic in self._paused if self._groups[topic].drained}
        if full:
            reader.pause(full)
        if drained:
            reader.resume(drained)
        self._paused = (self._paused | full) - drained
