"""The failure detector: which nodes are online, decided from the status topic, and which hold a record.

Time is that of the status topic. A node is offline when the newest status of any node is 3 s younger than that
node's own newest.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from headrace.consumers.replication.process_runs import ProcessRuns
from headrace.schemas.presence import Presence
from headrace.schemas.receipts import RECEIPT_BYTES, WrittenRecords, end_of
from headrace.schemas.records import Role, Status

OFFLINE_MS = 3_000
HEARTBEAT_INTERVAL_MS = 500
# Receipts that a producer remembers of each member: those of some seconds at thousands of records a second.
RECEIPTS_KEPT = 16_384


@dataclass(slots=True)
class StatusTime:
    """Milliseconds along the status topic: the broker's time without its steps. It never falls.

    `elapsed_ms` is 0 at the first status. `opened_ms` is the receiver's time since boot right before its reader was
    opened; None: the first status is taken to be received as it is appended.
    """

    # Each rule answers a schedule.
    # - The distance of two broker timestamps, and not that of two receipts: a reader that lags, or was stopped,
    #   receives the statuses of 30 s at once, sees every node equally old, and takes nobody for dead; a node that
    #   died meanwhile is dead at once.
    # - No distance is negative: the broker's clock is set back (or the topic moves to a broker with another
    #   clock). With the newest timestamp as the present, every node was offline until that clock caught up.
    #   A node that is offline does not come back to life by it either, since this time never falls.
    # - It runs ahead of the receiver's clock by at most STEP_SLACK_MS: the broker's clock is set forward. Every
    #   other node would be offline until its next status, and the next in order would claim.
    # - A status that was there before the reader is not bounded by the receiver's clock: nodes that were dead long
    #   before this one started must not count as online for its first 3 s.
    # - The first status behind those may be as old as the reader: a process is stopped right after it has opened
    #   it. The statuses of that time then come at once, as to any reader that was stopped, and a node that sent
    #   one and died would count as online. OFFLINE_MS of that age are enough to tell.
    STEP_SLACK_MS = 500
    REALIGN_MS = 60_000

    elapsed_ms: int = 0
    opened_ms: int | None = None
    _newest_ms: int | None = None
    _received_ms: int = 0
    _aligned_ms: int | None = None
    _window_ms: int = 0
    _least_lag_ms: int = 0

    def advance(self, timestamp_ms: int, received_ms: int | None) -> int:
        """Take the next status in log order; the time at it.

        `timestamp_ms` is the broker's time, `received_ms` the receiver's time since boot, None for a status that
        was in the topic before its reader was opened.
        """
        step_ms = 0 if self._newest_ms is None else timestamp_ms - self._newest_ms
        self._newest_ms = timestamp_ms
        if received_ms is None:
            self.elapsed_ms += max(0, step_ms)
        elif self._aligned_ms is None:
            self.elapsed_ms += max(0, step_ms)
            appended_ms = received_ms if self.opened_ms is None else max(self.opened_ms, received_ms - OFFLINE_MS)
            self._align(received_ms, appended_ms - self.elapsed_ms)
        else:
            if step_ms < 0:
                step_ms = min(received_ms - self._received_ms, HEARTBEAT_INTERVAL_MS)
            most_ms = received_ms - self._aligned_ms + self.STEP_SLACK_MS - self.elapsed_ms
            self.elapsed_ms += min(step_ms, most_ms)
            self._follow_drift(received_ms, self._aligned_ms)
        self._received_ms = received_ms or 0
        return self.elapsed_ms

    def silence_ms(self, now_ms: int) -> int:
        """How long ago the receiver, whose time since boot is `now_ms`, got the newest status; 0 before the first."""
        return now_ms - self._received_ms if self._received_ms else 0

    def _follow_drift(self, received_ms: int, aligned_ms: int) -> None:
        """Once a minute, align with the receiver's clock by the least lag of that minute."""
        # Clocks drift, and each step back loses some milliseconds. Over weeks the lag would grow beyond OFFLINE_MS,
        # and one step forward might then use all of it at once.
        self._least_lag_ms = min(self._least_lag_ms, received_ms - aligned_ms - self.elapsed_ms)
        if received_ms - self._window_ms >= self.REALIGN_MS:
            self._align(received_ms, aligned_ms + max(0, self._least_lag_ms))

    def _align(self, received_ms: int, aligned_ms: int) -> None:
        self._aligned_ms, self._window_ms = aligned_ms, received_ms
        self._least_lag_ms = received_ms - aligned_ms - self.elapsed_ms


@dataclass(frozen=True, slots=True)
class ReceivedStatus:
    """One status, the broker's time at which it was appended, and the time along the status topic at it.

    `idle_ms`: for how long the process has sent that it is in sync and takes no role.
    """

    timestamp_ms: int
    elapsed_ms: int
    status: Status
    idle_ms: int = 0


@dataclass(frozen=True, slots=True)
class ReceivedPresence:
    """One presence, and the time along the status topic at it."""

    elapsed_ms: int
    presence: Presence


@dataclass(slots=True)
class FailureDetector:
    """The newest status of every node in every group. Pure: fed with records in log order.

    `newest_ms` is the broker's time at the newest status, right or wrong. `receipts_kept` of each member are
    remembered, 0 where nobody waits for a quorum. `present` has the newest presence of every node and store: two
    data directories may have the name of one node. `unread` has the time at the newest status of each sender, or
    presence (no group), of a schema that this build does not have. `runs`: the processes that sent them.
    """

    newest_ms: int = 0
    received: dict[tuple[str, str], ReceivedStatus] = field(default_factory=dict)
    receipts_kept: int = RECEIPTS_KEPT
    time: StatusTime = field(default_factory=StatusTime)
    present: dict[tuple[str, str], ReceivedPresence] = field(default_factory=dict)
    unread: dict[tuple[str, str], int] = field(default_factory=dict)
    runs: ProcessRuns = field(default_factory=lambda: ProcessRuns(OFFLINE_MS))
    _receipts: dict[tuple[str, str], bytearray] = field(default_factory=dict)

    def observe(self, timestamp_ms: int, status: Status, received_ms: int | None = None) -> None:
        """Take one record of the status topic; see `StatusTime.advance`."""
        key = status.group, status.node
        if self.receipts_kept:
            self._keep_receipts(key, status)
        self.newest_ms = timestamp_ms
        self.unread.pop(key, None)
        elapsed_ms = self.time.advance(timestamp_ms, received_ms)
        idle_ms = _idle_ms(self.received.get(key), status, elapsed_ms)
        self.received[key] = ReceivedStatus(timestamp_ms, elapsed_ms, status, idle_ms)
        self.runs.observe(status.node, status.incarnation, status.http, elapsed_ms)

    def observe_presence(self, timestamp_ms: int, presence: Presence, received_ms: int | None = None) -> None:
        """Take a record of the status topic that is a node's presence."""
        self.newest_ms = timestamp_ms
        self.unread.pop(("", presence.node), None)
        elapsed_ms = self.time.advance(timestamp_ms, received_ms)
        self.present[presence.node, presence.store] = ReceivedPresence(elapsed_ms, presence)
        self.runs.observe(presence.node, presence.incarnation, presence.http, elapsed_ms)

    def observe_unread(self, group: str, node: str) -> None:
        """Take a record of the status topic that only a newer build can read; no group for a presence."""
        # It moves no time and nobody in it: who leads is decided by what can be read alone.
        self.unread[group, node] = self.time.elapsed_ms

    def sends_unread(self, group: str, node: str) -> bool:
        """Whether the newest status of a node in a group is one that this build cannot read, and is recent."""
        since_ms = self.unread.get((group, node))
        return since_ms is not None and self.time.elapsed_ms - since_ms < OFFLINE_MS

    def unread_nodes(self) -> list[str]:
        """The nodes of which that holds for any group, or for their presence."""
        return sorted({node for group, node in list(self.unread) if self.sends_unread(group, node)})

    def unread_fault(self, reader: str = "this node") -> str:
        """Which nodes send what this build cannot read, and what `reader` is to do; empty when none does."""
        nodes = self.unread_nodes()
        send = "sends" if len(nodes) == 1 else "send"
        return f"{', '.join(nodes)} {send} statuses that this build cannot read: upgrade {reader}" if nodes else ""

    def presences(self) -> list[Presence]:
        """The newest presence of every node that is alive, the newest first."""
        live = [each for each in list(self.present.values()) if self.time.elapsed_ms - each.elapsed_ms < OFFLINE_MS]
        return [each.presence for each in sorted(live, key=lambda each: each.elapsed_ms, reverse=True)]

    def absences(self) -> dict[str, int]:
        """How long nodes are silent that have sent a presence and are not alive any more, ms."""
        found: dict[str, int] = {}
        for (node, _), each in list(self.present.items()):
            silent_ms = self.time.elapsed_ms - each.elapsed_ms
            found[node] = min(silent_ms, found.get(node, silent_ms))
        return {node: silent_ms for node, silent_ms in found.items() if silent_ms >= OFFLINE_MS}

    def _keep_receipts(self, key: tuple[str, str], status: Status) -> None:
        """Add a member's receipts to those that it has shown before."""
        # Every status is taken, not the newest alone: a burst is read at once, and each status has the receipts
        # of other records.
        shown, before = self._receipts.setdefault(key, bytearray()), self.received.get(key)
        if before is not None and not _continues(before.status, status):
            shown = self._receipts[key] = bytearray()
        shown += status.receipts[end_of(bytes(shown[-RECEIPT_BYTES:]), status.receipts) :]
        if len(shown) > 2 * self.receipts_kept * RECEIPT_BYTES:
            del shown[: -self.receipts_kept * RECEIPT_BYTES]

    def status(self, group: str, node: str) -> Status | None:
        """A node's newest status, alive or not."""
        found = self.received.get((group, node))
        return found.status if found else None

    def idle_ms(self, group: str, node: str) -> int:
        """For how long a node has sent that it is in sync and takes no role, as one that sees no majority."""
        found = self.received.get((group, node))
        return found.idle_ms if found else 0

    def alive(self, group: str, node: str) -> bool:
        """Whether a status of the node was appended within the last 3 s of the status topic's time."""
        return 0 <= self.silent_ms(group, node) < OFFLINE_MS

    def silent_ms(self, group: str, node: str) -> int:
        """The age of a node's newest status, -1 when there is none."""
        found = self.received.get((group, node))
        return self.time.elapsed_ms - found.elapsed_ms if found else -1

    def online(self) -> list[Status]:
        """The newest status of every live member of every group."""
        # A copy of the items: the receiving thread adds members while other threads read.
        return [found.status for (group, node), found in list(self.received.items()) if self.alive(group, node)]

    def reporting(self, group: str) -> list[str]:
        """The nodes that have sent a status of a group, members or not."""
        return [node for name, node in list(self.received) if name == group]

    def live(self, group: str, members: Iterable[str]) -> list[Status]:
        """The statuses of the members that are alive, in the order given."""
        return [self.received[group, node].status for node in members if self.alive(group, node)]

    def durable_copies(self, group: str, members: Iterable[str], topic_id: str, written: WrittenRecords) -> int:
        """How many live members hold what was written, durably, of the topic with that id."""
        return sum(self.holds(group, node, topic_id, written) for node in members)

    def holds(self, group: str, node: str, topic_id: str, written: WrittenRecords) -> bool:
        """Whether a member is a copy of what was written: alive, in sync, of that topic, and with its receipts.

        False for records of which nothing is known.
        """
        # The schedule that receipts answer: three members hold 31 records; an unclean election cuts the log to 11
        # under the same topic id; a writer appends at 11, and every status, old or new, reports offset 30 as
        # durable. No offset, epoch or time in a status shows which log it was read from, since the members do not
        # know of the cut yet. The receipt shows it: only a member that has read this very record can have it.
        # Everything before comes with it, since members read without gaps and compare what they read again.
        status = self.status(group, node)
        return (
            status is not None
            and self.alive(group, node)
            and status.topic_id == topic_id
            and status.eligible
            and not status.log_lost
            and status.durable_offset >= written.offset
            and self._has_receipts(group, node, written.receipts)
        )

    def _has_receipts(self, group: str, node: str, receipts: Sequence[bytes]) -> bool:
        shown = self._receipts.get((group, node), bytearray())
        # The newest first: a member that lags is known by it, and a missing receipt costs a search through all.
        return bool(receipts) and all(end_of(receipt, shown) for receipt in reversed(receipts))


def _idle_ms(before: ReceivedStatus | None, status: Status, elapsed_ms: int) -> int:
    """The `idle_ms` of a status that comes behind another one of its sender."""
    if status.role is not Role.UNSYNCED or not status.eligible:
        return 0
    if before is None or before.status.incarnation != status.incarnation:
        return 0
    # The one before had a role, or was not in sync: this one is the first.
    was_idle = before.status.role is Role.UNSYNCED and before.status.eligible
    return before.idle_ms + elapsed_ms - before.elapsed_ms if was_idle else 0


def _continues(before: Status, after: Status) -> bool:
    """Whether a member still has what it had at an earlier status, as far as its receipts show."""
    # Receipts are of the data directory and not of the process: a restart keeps them. Another directory, topic or
    # a lower offset means that the data was replaced.
    return (before.store, before.topic_id) == (after.store, after.topic_id) and (
        before.durable_offset <= after.durable_offset
    )
