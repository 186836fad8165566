"""One node of the simulated metadata group: the classes that ship, and a small model of its groups."""

from __future__ import annotations

from typing import Any

from headrace.connectors.log.append import append_one
from headrace.connectors.log.memory import MemoryLog
from headrace.consumers.membership.membership_follower import MembershipFollower
from headrace.consumers.membership.metadata_group import MetadataGroup, StartSettings
from headrace.consumers.replication.failure_detector import OFFLINE_MS, FailureDetector, StatusTime
from headrace.schemas.errors import HeadraceError
from headrace.schemas.membership_records import MEMBERSHIP_CHANGE_FORMAT, MembershipChange, PreDone, SlotDone
from headrace.schemas.presence import Presence
from headrace.schemas.records import encode_membership
from tests.sim.membership_log import MemberLog
from tests.sim.world import EPOCH_MS, NodeClock, World

TOPIC = "c.membership"
REPLICATION = 2
SLOTS = 14
PRESENCE_MS = 1_000
PRE_DONE = 0.3
SLOTS_DONE = 0.3
"""The chance that a group's leader reports the first phase in a step, and that a node reports some slots."""


class Statuses:
    """The status topic: presences in one order, with the broker's time."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.sent: list[tuple[int, Presence]] = []
        self.newest_ms: dict[str, int] = {}

    def send(self, presence: Presence) -> None:
        """Append a presence."""
        self.sent.append((EPOCH_MS + self.world.now_ms, presence))
        self.newest_ms[presence.node] = self.world.now_ms

    def sent_since(self, node: str, since_ms: int) -> bool:
        """Whether a node's presence has arrived since a moment."""
        return self.newest_ms.get(node, -1) >= since_ms


class SimHeartbeats:
    """The statuses as one process has read them. See `Heartbeats`."""

    def __init__(self, statuses: Statuses, clock: NodeClock, node: str, incarnation: str) -> None:
        self.node = node
        self.incarnation = incarnation
        self.detector = FailureDetector(time=StatusTime(opened_ms=clock.boot_ns() // 1_000_000))
        self._statuses = statuses
        self._clock = clock
        self._position = len(statuses.sent)
        self._read_back_ns = -(10**18)

    @property
    def fenced(self) -> bool:
        """See `Heartbeat.fenced`."""
        return self._clock.boot_ns() - self._read_back_ns >= OFFLINE_MS * 1_000_000

    def receive(self) -> None:
        """Take what has arrived."""
        received_ms = self._clock.boot_ns() // 1_000_000
        new, self._position = self._statuses.sent[self._position :], len(self._statuses.sent)
        for timestamp_ms, presence in new:
            self.detector.observe_presence(timestamp_ms, presence, received_ms)
            if (presence.node, presence.incarnation) == (self.node, self.incarnation):
                self._read_back_ns = max(self._read_back_ns, presence.sent_boot_ns)


class MemberNode:
    """One run of a node."""

    def __init__(self, world: World, log: MemoryLog, statuses: Statuses, node: str, run: int) -> None:
        self.world = world
        self.name = node
        self.clock = NodeClock(world, world.random.randint(-(10**6), 10**6))
        self.log = MemberLog(world, log, node)
        self.statuses = statuses
        self.heartbeats = SimHeartbeats(statuses, self.clock, node, f"{node}-{run}")
        shared: Any = self.log
        self.follower = MembershipFollower(shared, TOPIC, clock=self.clock)
        settings = StartSettings(f"store-{run}", REPLICATION, SLOTS, changes=True)
        self.group = MetadataGroup(shared, TOPIC, self.follower, self.heartbeats, settings, self.clock)
        self.alive = True
        self.exiled = False
        self.turn_ms = 0
        self._sent_ms = -PRESENCE_MS
        self._written = 0

    def step(self) -> None:
        """One step of every thread of the node."""
        self.turn_ms = self.world.now_ms
        if not self.log.cut:
            self.heartbeats.receive()
            if self.world.now_ms - self._sent_ms >= PRESENCE_MS:
                self._sent_ms = self.world.now_ms
                self.statuses.send(self.group.presence(f"http://{self.name}"))
        self.group.turn()
        self._report()

    def _report(self) -> None:
        """The groups of this node carry out a part of the change that runs."""
        state, chance = self.group.state, self.world.random
        change = state.change
        if change is None:
            return
        if not change.formal:
            for group in change.groups_waiting:
                if self.name in change.pre_members(group) and chance.random() < PRE_DONE:
                    self._append(PreDone(change.number, group, self.name, 1, 1))
                    return
        elif chance.random() < SLOTS_DONE and self.name in change.table.nodes:
            missing = change.due_from(self.name) & ~dict(change.received).get(self.name, 0)
            slots = [slot for slot in range(SLOTS) if missing >> slot & 1]
            if slots:
                self._append(SlotDone(change.number, self.name, tuple(slots[: chance.randint(1, SLOTS)])))

    def _append(self, record: MembershipChange) -> None:
        self._written += 1
        writer = f"groups/{self.heartbeats.incarnation}/{self._written}"
        shared: Any = self.log
        try:
            append_one(shared, TOPIC, encode_membership(writer, record), needed_format=MEMBERSHIP_CHANGE_FORMAT)
        except HeadraceError:
            return
