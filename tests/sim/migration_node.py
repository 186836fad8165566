"""One simulated node whose groups change: the tasks of a leader that ships, over a log with faults."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.migration.change_tasks import ChangeTasks
from headrace.consumers.migration.hand_over_sender import HandOverSender
from headrace.consumers.replication.applied_state import AppliedState
from headrace.consumers.replication.failure_detector import FailureDetector
from headrace.consumers.replication.leader_parts import LeaderRecord
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import format_headers
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.membership_records import SlotDone
from headrace.schemas.messages import (
    Anchor,
    Claim,
    Leadership,
    Message,
    ProducerPosition,
    encode_message,
    format_of,
)
from headrace.schemas.presence import Presence
from headrace.schemas.records import Status, encode_membership, format_of_membership
from tests.sim.membership_log import MemberLog
from tests.sim.migration_copies import SimCopies
from tests.sim.migration_groups import REPLICATION, SLOTS, TrueGroup
from tests.sim.world import EPOCH_MS, NodeClock
from tests.unit.statuses import STATUS

if TYPE_CHECKING:
    from tests.sim.migration_simulation import MigrationSimulation

TOPICS = Topics("c")
STATUS_MS = 700
CLAIM_AGAIN_MS = 2_000
SLOTS_DONE = 0.5
"""The chance that a node reports, in a step, slots that have arrived."""
REPEATED = 0.15
"""The chance that a leader's record comes once more, later."""
REPEATED_MS_MAX = 12_000
SEAL_ROWS, SEAL_BYTES = 1_000_000, 1 << 40


class SimGroup:
    """A group at one node: it has read `version` records, and is what the group's replica was at that one."""

    def __init__(self, truth: TrueGroup, version: int) -> None:
        self.truth = truth
        self.name = truth.key.group
        self.birth_key = truth.key
        self.version = version
        # As at each start: in sync once it has reached the end that the log had then.
        self.in_sync_from = len(truth.history) - 1
        self.claimed_ms = -CLAIM_AGAIN_MS

    @property
    def applied(self) -> AppliedState:
        """See Group."""
        return self.truth.history[self.version]

    @property
    def sealed_for_others(self) -> tuple[int, int]:
        """See Group; a seal is stored at once here."""
        return self.applied.frontier, 0

    @property
    def in_sync(self) -> bool:
        """Whether it has read all that was there when it started."""
        return self.version >= self.in_sync_from


class SimStatuses:
    """The statuses as one process has read them. See `ChangeHeartbeats`."""

    def __init__(self, node: str, incarnation: str, position: int) -> None:
        self.node = node
        self.incarnation = incarnation
        self.detector = FailureDetector(receipts_kept=0)
        self.position = position

    def receive(self, sent: list[tuple[int, Status | Presence]], received_ms: int) -> None:
        """Take what has arrived."""
        new, self.position = sent[self.position :], len(sent)
        for timestamp_ms, each in new:
            if isinstance(each, Presence):
                self.detector.observe_presence(timestamp_ms, each, received_ms)
            else:
                self.detector.observe(timestamp_ms, each, received_ms)


class MigrationNode:
    """One run of a node. What it has read of logs survives its end, and what it has not: its tasks and statuses."""

    def __init__(self, simulation: MigrationSimulation, name: str, run: int, kept: Mapping[str, int]) -> None:
        self.simulation = simulation
        self.world = simulation.world
        self.name = name
        self.incarnation = f"{name}-{run}"
        self.clock = NodeClock(self.world, 0)
        self.log = MemberLog(self.world, simulation.memory, name)
        self.heartbeats = SimStatuses(name, self.incarnation, len(simulation.sent))
        self.records = 0
        self.groups = {
            topic: SimGroup(simulation.truth.groups[topic], version)
            for topic, version in kept.items()
            if not simulation.truth.groups[topic].deleted
        }
        shared: Any = self.log
        self.copies = SimCopies(self)
        self._copied: dict[str, int] = {}
        self.tasks = ChangeTasks(shared, TOPICS, self, self.heartbeats, self, self.clock, self.copies.notes)
        self.drains: dict[str, HandOverSender] = {}
        self.alive = True
        self._appender = shared.appender()
        self._batch = 0
        self._sent_ms = -STATUS_MS

    @property
    def state(self) -> MembershipState:
        """See MembershipStates."""
        return self.simulation.states[self.records]

    def append(self, topic: str, body: LeaderRecord) -> None:
        """See LeaderRecords."""
        self._batch += 1
        value = encode_message(Message(ProducerPosition(self.incarnation, self._batch, 0), body))
        headers = format_headers(format_of(body))
        self._appender.append(topic, value, headers=headers, on_delivery=lambda *_: None)
        # The replicas drop a repeat of a message. One of another number is a new one, as from a leader that repeats
        # what it has not read back in time, and whose first record comes after the second.
        if self.log.faulty and self.world.random.random() < REPEATED:
            self._batch += 1
            again = encode_message(Message(ProducerPosition(f"{self.incarnation}/again/{self._batch}", 1, 0), body))
            memory = self.simulation.memory
            delay_ms = self.world.random.uniform(1, REPEATED_MS_MAX)
            self.world.after(delay_ms, lambda: memory.store(topic, again, None, headers))

    def step(self) -> None:
        """One step of every thread of the node."""
        simulation, chance = self.simulation, self.world.random
        if not self.log.cut:
            self.heartbeats.receive(simulation.sent, self.clock.boot_ns() // 1_000_000)
            self.records = min(len(simulation.states) - 1, self.records + chance.randint(0, 12))
            self._place()
            self.copies.step()
            for group in self.groups.values():
                group.version = min(len(group.truth.history) - 1, group.version + chance.choice((0, 1, 3, 10, 40)))
            self._send()
        for topic, group in list(self.groups.items()):
            # As the threads of a node: an error ends the step for this group.
            with suppress(HeadraceError):
                if topic in simulation.memory.closed:
                    self._drain(topic, group)
                else:
                    self._lead(topic, group)
        with suppress(HeadraceError):
            self._report_slots()

    def _place(self) -> None:
        """Open the groups that this node needs, and close those that have gone."""
        simulation = self.simulation
        for topic, group in list(self.groups.items()):
            if group.truth.deleted or not simulation.needs(self.name, group.truth, self.state):
                del self.groups[topic]
                self.tasks.forget(topic)
        for topic, truth in simulation.truth.groups.items():
            if topic not in self.groups and not truth.deleted and simulation.needs(self.name, truth, self.state):
                self.groups[topic] = SimGroup(truth, 0)

    def _send(self) -> None:
        if self.world.now_ms - self._sent_ms < STATUS_MS:
            return
        self._sent_ms = self.world.now_ms
        run = self.name, self.incarnation, f"store of {self.name}"
        present = Presence(*run, "", REPLICATION, SLOTS, eligible=True, epoch=0, records=self.records, changes=True)
        sent: tuple[Status | Presence, ...] = present, *map(self._status, self.groups.values())
        self.simulation.sent += ((EPOCH_MS + self.world.now_ms, each) for each in sent)

    def _status(self, group: SimGroup) -> Status:
        view = group.applied.changes
        return replace(
            STATUS,
            node=self.name,
            incarnation=self.incarnation,
            store=f"store of {self.name}",
            group=group.name,
            topic_id=self.simulation.topic_id(group.truth.topic),
            eligible=group.in_sync,
            version=group.version,
            durable_offset=group.applied.offset if group.version else 0,
            accepted=view.acceptances(),
            change=view.change,
            settled=view.settled_version,
        )

    def _lead(self, topic: str, group: SimGroup) -> None:
        applied = group.applied
        if applied.leader == Leadership(applied.epoch, self.name, self.incarnation):
            self._turn(topic, group, applied.leader)
            return
        self.tasks.forget(topic)
        self._copied.pop(topic, None)
        members, detector = applied.changes.members, self.heartbeats.detector
        alive = [status for status in detector.live(group.name, members) if self._counts(group, status)]
        leads = applied.leader is not None and any(
            (each.node, each.incarnation) == (applied.leader.node, applied.leader.incarnation) for each in alive
        )
        first = alive[0].node if alive else ""
        if leads or first != self.name or self.world.now_ms - group.claimed_ms < CLAIM_AGAIN_MS:
            return
        group.claimed_ms = self.world.now_ms
        anchor = Anchor(applied.offset, applied.version, applied.chain)
        wanted = Leadership(applied.epoch + 1, self.name, self.incarnation)
        self.append(topic, Claim(wanted, anchor, SEAL_ROWS, SEAL_BYTES))

    def _turn(self, topic: str, group: SimGroup, leadership: Leadership) -> None:
        """A turn of the leader.

        It does not report the first phase before all that show files to copy have copied them.
        """
        change, notes = self.state.change, self.copies.notes
        number = change.number if change is not None else 0
        reports, left = self.tasks.reports, notes.left(group.birth_key, number)
        if left == 0:
            self._copied[topic] = number
        shown: Any = group
        self.tasks.turn(topic, shown, leadership)
        # A copier that is new, or was restarted, is not waited for again: what it lacks costs time and no row. Notes
        # may end while the process is stopped inside of the turn.
        late = self._copied.get(topic) == number or not notes.left(group.birth_key, number)
        if self.tasks.reports > reports and left and not late:
            self.simulation.fail(f"{self.name} reports change {number} for {topic} with {left} files left to copy")

    def _drain(self, topic: str, group: SimGroup) -> None:
        """A member of a group whose log is closed hands over what is in it, and deletes the log then."""
        self.tasks.forget(topic)
        if topic not in self.drains:
            shared: Any = self.log
            detector = self.heartbeats.detector
            self.drains[topic] = HandOverSender(shared, topic, group.birth_key, self.incarnation, detector, self.clock)
        view = group.applied.changes
        self.drains[topic].turn(view)
        if group.applied.offset + 1 == self.log.describe(topic).end and self.drains[topic].handed_over(view):
            self.simulation.delete(topic)

    def _counts(self, group: SimGroup, status: Status) -> bool:
        """Whether a member may lead: it is in sync in this group, and not one of another birth or an earlier run."""
        right = status.topic_id == self.simulation.topic_id(group.truth.topic) and status.eligible
        return right and (status.node != self.name or status.incarnation == self.incarnation)

    def _report_slots(self) -> None:
        """Report the slots that have arrived: their takeovers were accepted, as this node has read it."""
        change = self.state.change
        if change is None or not change.formal or self.world.random.random() > SLOTS_DONE:
            return
        missing = change.due_from(self.name) & ~dict(change.received).get(self.name, 0)
        done = [slot for slot in range(SLOTS) if missing >> slot & 1 and self._has(slot)]
        if done:
            record = SlotDone(change.number, self.name, tuple(done))
            value = encode_membership(f"{self.incarnation}/slots", record)
            headers = format_headers(format_of_membership(record))
            self._appender.append(TOPICS.membership, value, headers=headers, on_delivery=lambda *_: None)

    def _has(self, slot: int) -> bool:
        change = self.state.change
        assert change is not None
        holder, former = change.table.holder(slot), change.table.previous_holder(slot)
        assert former is not None
        key, donor = GroupKey(holder, change.table.birth(holder)), GroupKey(former, change.base.birth(former))
        here = self.groups.get(TOPICS.forward(key.group, key.birth))
        cut = self.simulation.truth.cut_of(donor, key, change.table.version)
        accepted = here.applied.changes.accepted.get(donor) if here is not None else None
        return cut is not None and accepted is not None and accepted >= cut
