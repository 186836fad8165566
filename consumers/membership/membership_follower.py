"""Follows the membership log on a running node: replays what arrives, and gives the state that it has decided.

An idle node looks at the end of the log once a second, and opens a reader only when there is something to read.
Each look also shows whether the topic is still the one that was read: the rules are those of the schema log.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import structlog

from headrace.connectors.clock import SYSTEM_CLOCK, Clock
from headrace.connectors.deadline import Deadline
from headrace.connectors.log.port import Log, LogUnavailable, Record
from headrace.consumers.membership.changes import MembershipState, Verdict
from headrace.consumers.membership.compared_log import ComparedLog
from headrace.consumers.membership.schema_history import SchemaHistory
from headrace.consumers.replication.failure_detector import OFFLINE_MS
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import FormatTooNew, FrameInvalid, check_format
from headrace.schemas.membership_records import Formal, MetadataClaim
from headrace.schemas.records import MembershipRecord, decode_membership

HISTORY_FILE = "membership.json"
LOOK_INTERVAL_S = 1.0
READER_IDLE_S = 5.0
POLL_RECORDS = 1_000
POLL_S = 0.2
READ_TIMEOUT_S = 30.0
_RESTORE = "restore all its records in their order; or begin with a new cluster, the data is kept"
_log = structlog.get_logger(__name__)


class MembershipLogLost(HeadraceError):
    """The membership log does not begin with its first record, or not with those that were read from it."""

    @classmethod
    def of(cls, topic: str, why: str) -> MembershipLogLost:
        """With what is missing, and what can be done."""
        return cls(f"topic {topic} {why}", action=_RESTORE)

    @staticmethod
    def is_reported(reason: str) -> bool:
        """Whether a node reports, as the reason of its presence, that it has lost the log."""
        return _RESTORE in reason

    @classmethod
    def trimmed(cls, topic: str, begin: int) -> MembershipLogLost:
        """Of a log whose first records were deleted."""
        return cls.of(topic, f"begins at offset {begin}: the records before it, which create the cluster, were deleted")


@dataclass(frozen=True, slots=True)
class ReadRecord:
    """A record of the membership log, who appended it, and whether it counts; None: it does not decode."""

    writer: str
    record: MembershipRecord | None
    verdict: Verdict


class MembershipFollower:
    """What the membership log has decided, as far as it was read. `turn` belongs to one thread, all else to any.

    `stopped` is why this build cannot follow any further, `lost` why the log is not the one that was read. Neither
    has a cure that waiting brings. `fault` is the newest error of the log. `claimed_ms` is the broker's time of the
    newest accepted claim, `formal_ms` that of the record with which the running change became formal.
    """

    def __init__(self, log: Log, topic: str, history_file: Path | None = None, clock: Clock = SYSTEM_CLOCK) -> None:
        """`history_file` keeps over restarts what was read, so that another log under the name is detected."""
        self._clock = clock
        self._compared = ComparedLog(log, topic, self._lost, history_file, clock.monotonic_s)
        self._reader_used_s = 0.0
        self._look_at_s = 0.0
        self._expects = False
        self._answered_s: float | None = None
        self._listeners: list[Callable[[MembershipState], None]] = []
        self._changed = threading.Condition()
        self.state = MembershipState()
        self.claimed_ms = 0
        self.formal_ms = 0
        self.caught_up = False
        self.stopped = ""
        self.fault = ""

    @property
    def lost(self) -> str:
        """Why the log is not the one that was read, empty while it is."""
        return self._compared.lost

    @property
    def failure(self) -> str:
        """Why changes of the cluster no longer reach this node, empty while they do."""
        return self.stopped or self.lost

    @property
    def log_answers(self) -> bool:
        """Whether the log has answered within the last 3 s."""
        answered_s = self._answered_s
        return answered_s is not None and self._clock.monotonic_s() - answered_s < OFFLINE_MS / 1_000

    def subscribe(self, listener: Callable[[MembershipState], None]) -> None:
        """Call `listener` with the state after each turn that read records, in the thread of the turn."""
        self._listeners.append(listener)

    def wait_for(self, holds: Callable[[MembershipState], bool], timeout_s: float) -> bool:
        """Whether `holds` becomes true within `timeout_s`; it is called at every change, so it must be quick."""
        with self._changed:
            return self._changed.wait_for(lambda: holds(self.state), timeout_s)

    def look_soon(self) -> None:
        """Look at the next turn, and not an interval after the look before."""
        self._look_at_s = 0.0

    def expect(self) -> None:
        """Records will come soon: the next turn takes those that have, from a reader that stays open for a while.

        The end of the log is asked for once an interval all the same.
        """
        self._expects = True

    def read_all(self, timeout_s: float = READ_TIMEOUT_S) -> MembershipState:
        """Read the log to its end, and return what it has decided: a start waits for it, before `turn` is called.

        Raises FormatTooNew, MembershipLogLost, TopicMissing, LogUnavailable.
        """
        deadline = Deadline(timeout_s)
        while not self.caught_up:
            try:
                self._look([], self._clock.monotonic_s())
            except HeadraceError:
                self._compared.close()
                raise
            if deadline.passed() and not self.caught_up:
                raise LogUnavailable(
                    f"topic {self._compared.topic} was not read to its end in {timeout_s:g} s",
                    action="check the broker",
                    retriable=True,
                )
        return self.state

    def turn(self) -> list[ReadRecord]:
        """Take what has arrived, if a look is due. Errors are noted in `stopped`, `lost` and `fault`."""
        now_s = self._clock.monotonic_s()
        expects, self._expects = self._expects, False
        looks = now_s >= self._look_at_s or (expects and not self.caught_up)
        if self.stopped or not (looks or (expects and not self.fault)):
            return []
        taken: list[ReadRecord] = []
        try:
            if looks:
                self._look_at_s = now_s + LOOK_INTERVAL_S
                self._look(taken, now_s)
                # Only now: a look that found the right topic may still find other records in it.
                self.fault = self._compared.lost = ""
            else:
                # What comes meanwhile comes to the reader by itself. A look in each turn would be three requests, ten
                # times a second from each node, while a change runs.
                self._reader_used_s = now_s
                self._take(self._compared.poll(POLL_RECORDS, 0.0), taken)
        except FormatTooNew as error:
            self.stopped = str(error)
            _log.error("membership log not followed any further", reason=self.stopped)
        except HeadraceError as error:
            if str(error) != self.fault:
                _log.warning("membership log not readable", error=str(error))
            self.fault = str(error)
            # What was not applied is read again: a record that is missed would give another state than others have.
            self._compared.close()
        if taken:
            self._notify()
        return taken

    def close(self) -> None:
        """Close the reader."""
        self._compared.close()

    def _notify(self) -> None:
        with self._changed:
            self._changed.notify_all()
        for listener in self._listeners:
            listener(self.state)

    def _look(self, taken: list[ReadRecord], now_s: float) -> None:
        compared = self._compared
        end = compared.verify()
        self._answered_s = now_s
        if compared.history.records == 0 and compared.known.records:
            self._check_known()
        if compared.next >= end:
            self.caught_up = True
            if now_s - self._reader_used_s > READER_IDLE_S:
                compared.close()
            return
        self._reader_used_s = now_s
        self._take(compared.poll(POLL_RECORDS, POLL_S), taken)

    def _take(self, records: Sequence[Record], taken: list[ReadRecord]) -> None:
        for record in records:
            self._apply(record, taken)
        if records:
            self._compared.save()
            # There may be more.
            self.look_soon()

    def _apply(self, record: Record, taken: list[ReadRecord]) -> None:
        check_format(record.headers, record.topic, record.offset)
        self._compared.take(record)
        try:
            writer, decoded = decode_membership(record.value)
        except FrameInvalid as error:
            self._compared.note_foreign(record, error)
            self.state, verdict = self.state.apply_value(record.value)
            taken.append(ReadRecord("", None, verdict))
            return
        self.state, verdict = self.state.apply(decoded)
        if isinstance(decoded, MetadataClaim) and verdict is Verdict.ACCEPTED:
            self.claimed_ms = record.timestamp_ms
        if isinstance(decoded, Formal) and verdict is Verdict.ACCEPTED:
            self.formal_ms = record.timestamp_ms
        taken.append(ReadRecord(writer, decoded, verdict))

    def _check_known(self) -> None:
        """Before the first record: this log begins with what was read before this start."""
        # Before, and not on the way: a state of other records must not be seen by anybody.
        known = self._compared.known
        read = self._compared.beginning(known.records)
        if len(read) < known.records:
            raise self._compared.lose(f"has {len(read)} records, {known.records} were read from it")
        if SchemaHistory().after(read) != known:
            raise self._compared.lose("begins with other records than those that were read from it")

    def _lost(self, topic: str, why: str) -> MembershipLogLost:
        error = MembershipLogLost.of(topic, why)
        if not self.lost:
            _log.error("membership log lost", reason=str(error))
        return error
