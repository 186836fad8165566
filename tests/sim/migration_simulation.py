"""One schedule of changes of members from a seed: nodes, writers, operators and faults; then all heals, and must be well."""

from __future__ import annotations

from functools import cache
from unittest.mock import patch

from headrace.consumers.membership.balancer import ByteBalancer
from headrace.consumers.membership.changes import MembershipState, Verdict
from headrace.consumers.membership.placement import closable_ends
from headrace.consumers.membership.running_change import Phase, RunningChange
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.migration import change_tasks, hand_over_sender
from headrace.consumers.replication import replica
from headrace.consumers.replication.founding import Founding
from headrace.schemas.framing import BASE_FORMAT, format_headers
from headrace.schemas.group_changes import BarrierPhase, GroupKey
from headrace.schemas.membership_records import (
    Cancel,
    Change,
    ChangeKind,
    Exile,
    Formal,
    MembershipChange,
    MetadataClaim,
)
from headrace.schemas.messages import Leadership, decode_message
from headrace.schemas.presence import Presence
from headrace.schemas.records import Create, Status, encode_membership, format_of_membership
from tests.sim import migration_groups
from tests.sim.migration_groups import KEYS, REPLICATION, SLOTS, ClosableLog, TrueGroup, TrueGroups
from tests.sim.migration_node import TOPICS, MigrationNode
from tests.sim.migration_reads import Reads
from tests.sim.migration_writers import Writers
from tests.sim.world import Crash, InvariantBroken, World

NAMES = tuple(f"n{number}" for number in range(1, 7))
FAULT_MS = 20_000
HEAL_MS = 90_000
STEP_MS = (150, 700)
WRITE_MS = (80, 500)
OPERATOR_MS = (200, 900)
FAULTS_PER_STEP, KILLED_INSIDE, STOPPED_INSIDE = 0.02, 0.02, 0.03
FAULTY = 0.2
"""The share of nodes whose appends may fail in a calm schedule."""
CALM = 0.5
"""The share of schedules with a tenth of the faults: they have more changes."""
BEGIN, CANCEL = 0.8, 0.02
SEAL_ROWS = 4
"""Unsealed rows with which a group seals in the first phase."""
_decoded = cache(decode_message)


class MigrationSimulation:
    """Runs one seed."""

    def __init__(self, seed: int, verbose: bool = False) -> None:
        self.world = World(seed, verbose)
        self.memory = ClosableLog()
        self.memory.create_topic(TOPICS.membership, {})
        self.truth = TrueGroups(self.memory)
        self.states = [MembershipState()]
        self.sent: list[tuple[int, Status | Presence]] = []
        self.nodes: dict[str, MigrationNode] = {}
        self.ended: list[tuple[int, Phase]] = []
        # How many records of a topic are in the journal of a node, whether it runs or not.
        self.durable: dict[tuple[str, str], int] = {}
        self.writers = Writers(self)
        self.reads = Reads(self)
        self._needed: dict[tuple[str, str, int], bool | None] = {}
        self._runs = 0
        self._healed = False
        self._faults = 0.1 if self.world.random.random() < CALM else 1.0
        members = NAMES[: self.world.random.choice((3, 3, 4))]
        self._decide(Create(members, REPLICATION, SLOTS))
        self._decide(MetadataClaim(Leadership(1, members[0], "metadata")))
        for name in NAMES:
            self._start(name, {})

    @property
    def state(self) -> MembershipState:
        """What the membership log has decided."""
        return self.states[-1]

    @property
    def table(self) -> SlotTable:
        """The present table."""
        assert self.state.table is not None
        return self.state.table

    def fail(self, why: str) -> None:
        """Raises InvariantBroken."""
        raise InvariantBroken(f"seed {self.world.seed}: {why}")

    def run(self) -> None:
        """Inject faults for a while, then heal the world. Raises InvariantBroken."""
        # Every record is decoded for the replica, for what is expected and for whoever hands it over.
        with (
            patch.object(replica, "decode_message", _decoded),
            patch.object(migration_groups, "decode_message", _decoded),
            patch.object(hand_over_sender, "decode_message", _decoded),
            patch.object(change_tasks, "SEAL_ROWS", SEAL_ROWS),
        ):
            self._run()
            _decoded.cache_clear()

    def _run(self) -> None:
        world, chance = self.world, self.world.random
        world.after(chance.uniform(*WRITE_MS), self._write)
        world.after(chance.uniform(*OPERATOR_MS), self._operate)
        try:
            world.run_until(FAULT_MS)
            self._heal()
            world.run_until(FAULT_MS + HEAL_MS, self._is_well)
            self.read()
            self._check()
        except InvariantBroken:
            raise
        except AssertionError as error:
            raise InvariantBroken(f"seed {world.seed}: {error}") from error

    # The logs.

    def read(self) -> None:
        """Take every new record of every log."""
        records = self.memory.topic(TOPICS.membership).records
        for record in records[len(self.states) - 1 :]:
            self._apply(record.value)
        self.truth.read_all()

    def _apply(self, value: bytes) -> None:
        before = self.state
        after, verdict = before.apply_value(value)
        self.states.append(after)
        if verdict is not Verdict.ACCEPTED:
            return
        if before.change is not None and after.change is None:
            self.ended.append((before.change.number, after.requests[-1][1].phase))
        if after.table is not None and after.table is not before.table:
            self.truth.tables.append(after.table)
            if before.table is None:
                gains: dict[str, list[int]] = {}
            else:
                assert before.change is not None
                self._check_formal(before.change)
                gains = {header: _numbers(bits) for header, bits in before.change.gained.items()}
            known = () if before.table is None else before.table.headers
            for header in after.table.headers:
                if header not in known:
                    self._found(after.table, header, tuple(gains.get(header, ())))

    def _found(self, table: SlotTable, header: str, gains: tuple[int, ...]) -> None:
        topic = TOPICS.forward(header, table.birth(header))
        self.memory.create_topic(topic, {})
        founding = Founding(table.group(header), table.birth(header), gains)
        self.truth.groups[topic] = TrueGroup(self.memory, topic, header, founding)

    def topic_id(self, topic: str) -> str:
        """The id of a group's topic; that of a deleted one is no other one's."""
        return "deleted" if self.truth.groups[topic].deleted else self.memory.describe(topic).topic_id

    def _decide(self, record: Create | MembershipChange) -> None:
        value = encode_membership("metadata", record)
        needed = BASE_FORMAT if isinstance(record, Create) else format_of_membership(record)
        self.memory.store(TOPICS.membership, value, None, format_headers(needed))
        self.read()

    # Nodes.

    def _start(self, name: str, kept: dict[str, int]) -> None:
        self._runs += 1
        node = self.nodes[name] = MigrationNode(self, name, self._runs, kept)
        node.log.faulty = not self._healed and self.world.random.random() < self._faults + FAULTY
        node.log.on_step = lambda _call: self._inside(node)
        self.world.after(self.world.random.uniform(1, STEP_MS[1]), lambda: self._step(node))

    def _step(self, node: MigrationNode) -> None:
        if not node.alive:
            return
        self.read()
        try:
            node.step()
        except Crash:
            self._kill(node)
            return
        self._read_all_keys()
        if node.alive:
            self.world.after(self.world.random.uniform(*STEP_MS), lambda: self._step(node))
            if not self._healed and self.world.random.random() < FAULTS_PER_STEP * self._faults:
                self._fault(node)

    def needs(self, node: str, group: TrueGroup, state: MembershipState) -> bool:
        """Whether a node that has read so much holds a group: it joins it, is in it, or reads it to its end."""
        name = node, group.topic, state.records
        if name not in self._needed:
            self._needed[name] = self._needs(node, group, state)
        needed = self._needed[name]
        return node in group.newest.changes.members if needed is None else needed

    def _needs(self, node: str, group: TrueGroup, state: MembershipState) -> bool | None:
        """None for a group that has ended: its members read it to its end."""
        change, table, header = state.change, state.table, group.key.group
        if table is None:
            return False
        tables = [table] if change is None else [change.base, table]
        if any(_is_of(each, group.key) and node in each.group(header) for each in tables):
            return True
        if change is not None and _is_of(change.base, group.key):
            return node in change.pre_members(header)
        return None if group.key.birth <= table.version and not _is_of(table, group.key) else False

    def delete(self, topic: str) -> None:
        """A member has handed over everything that was in a closed log."""
        group = self.truth.groups[topic]
        self.read()
        if not group.deleted:
            self.world.note(f"{topic} is deleted")
            self.memory.delete_topic(topic)
            group.deleted = True
            self.reads.note_gone(group)

    # Faults.

    def _inside(self, node: MigrationNode) -> None:
        """A process may be killed or stopped inside any call of the log."""
        if not node.alive:
            raise Crash
        if self._healed:
            return
        chance = self.world.random
        dice = chance.random()
        if dice < KILLED_INSIDE * self._faults:
            raise Crash
        if dice < (KILLED_INSIDE + STOPPED_INSIDE) * self._faults and self.world.may_stop:
            self.world.note(f"{node.name} is stopped")
            self.world.stand_still(chance.uniform(500, 7_000))
            if not node.alive:
                raise Crash
            self.read()

    def _fault(self, node: MigrationNode) -> None:
        chance, name = self.world.random, node.name
        if chance.random() < 0.5:
            self._kill(node)
        else:
            self.world.note(f"{name} is cut off")
            self.world.reads_cut.add(name)
            self.world.after(chance.uniform(500, 8_000), lambda: self.world.reads_cut.discard(name))

    def _kill(self, node: MigrationNode) -> None:
        if not node.alive:
            return
        node.alive = False
        self._note_durable()
        self.world.note(f"{node.name} is killed")
        chance = self.world.random
        # What it has applied is in its journal; the journal begins again at a seal.
        kept = {topic: chance.choice((group.version, group.version // 2)) for topic, group in node.groups.items()}

        def restart() -> None:
            if self.nodes[node.name] is node:
                self._start(node.name, kept)

        self.world.after(1 if self._healed else chance.uniform(300, 9_000), restart)

    def _heal(self) -> None:
        self._healed = True
        self.world.reads_cut.clear()
        self.writers.log.faulty = False
        for node in self.nodes.values():
            node.log.faulty = False

    # Operators, and the leader of the metadata group.

    def _operate(self) -> None:
        self.read()
        state, chance = self.state, self.world.random
        leader = state.leader
        if leader is None:
            leader = Leadership(state.epoch + 1, self.table.nodes[0], "metadata")
            self._decide(MetadataClaim(leader))
        change = self.state.change
        if change is None:
            if not self._healed and chance.random() < BEGIN:
                self._begin(leader)
        elif change.phase is Phase.FORMAL:
            self._decide(Formal(leader, change.number))
        elif change.phase is Phase.PRE and not self._healed and chance.random() < CANCEL:
            self.world.note(f"change {change.number} is cancelled")
            self._decide(Cancel(leader, change.number))
        for node in self.state.removed:
            # It may join again, with another birth of its group.
            if node not in self.state.exiles and not self._still_there(node) and self.state.change is None:
                self._decide(Exile(leader, node))
        self._close_ended()
        self.world.after(chance.uniform(*OPERATOR_MS), self._operate)

    def _begin(self, leader: Leadership) -> None:
        chance, table = self.world.random, self.table
        joined = [node for node in table.nodes if table.birth(node) > 1]
        wanted = ChangeKind.REMOVE if len(joined) > 1 else ChangeKind.ADD
        kind = chance.choice((wanted, wanted, ChangeKind.ADD, ChangeKind.REMOVE, ChangeKind.BALANCE))
        spare = [name for name in NAMES if name not in table.nodes and not self._still_there(name)]
        if kind is ChangeKind.ADD and spare:
            node = chance.choice(spare)
            after = table.add_node(node)
        elif kind is ChangeKind.REMOVE and len(table.nodes) > REPLICATION + 1:
            # Mostly one that has joined: others have given it slots, for which late records come.
            node = chance.choice(joined or table.nodes)
            after = table.remove_node(node)
        else:
            kind, node = ChangeKind.BALANCE, ""
            after = table.balance(ByteBalancer([chance.randint(1, 1_000) for _ in range(SLOTS)]))
            if not after.moved:
                return
        request = f"r{self.state.changes}"
        self.world.note(f"change {self.state.changes + 1}: {kind} {node}")
        self._decide(Change(leader, request, kind, node, f"store of {node}", after.to_bytes()))

    def _still_there(self, name: str) -> bool:
        """Whether a former group of a node is not deleted yet: one birth of a header is present at a time."""
        return any(group.key.group == name and not group.deleted for group in self.truth.groups.values())

    def _close_ended(self) -> None:
        """Close the logs of groups that have ended, once every other group has the members of the new table."""
        if self.state.change is not None:
            return
        groups = [group for group in self.truth.groups.values() if not group.deleted]
        staying = [group for group in groups if _is_of(self.table, group.key)]
        # One that ended before may have late records for a later one.
        ends = closable_ends(self.state)
        left = [group for group in groups if group not in staying]
        left.sort(key=lambda group: ends.index(group.key))
        if self._all_settled(staying):
            self.memory.closed.update(group.topic for group in left[:1])

    def _all_settled(self, groups: list[TrueGroup]) -> bool:
        return all(group.newest.changes.settled_version >= self.table.version for group in groups)

    def _write(self) -> None:
        self.read()
        self.writers.write()
        self._read_all_keys()
        if not self._healed:
            self.world.after(self.world.random.uniform(*WRITE_MS), self._write)

    def _read_all_keys(self) -> None:
        """What a query answers after each step."""
        self.read()
        self.reads.read()

    # What must hold.

    def _check_formal(self, change: RunningChange) -> None:
        """With the second phase a new member counts, so it must have read the first."""
        self.truth.read_all()
        self._note_durable()
        for header in change.base.headers:
            group = self.truth.by_key(GroupKey(header, change.base.birth(header)))
            barrier = group.barriers.get((change.number, BarrierPhase.PRE))
            if barrier is None:
                self.fail(f"change {change.number} is formal, and group {header} has no first phase")
            assert barrier is not None
            for node in set(change.pre_members(header)) - set(change.base.group(header)):
                if self.durable.get((group.topic, node), 0) < barrier:
                    self.fail(f"change {change.number} is formal, and {node} does not follow group {header}")

    def _note_durable(self) -> None:
        for node in self.nodes.values():
            for topic, group in node.groups.items():
                name = topic, node.name
                self.durable[name] = max(self.durable.get(name, 0), group.version)

    def _is_well(self) -> bool:
        self.read()
        groups = [group for group in self.truth.groups.values() if not group.deleted]
        return (
            self.state.change is None
            and len(groups) == len(self.table.headers)
            and not any(due for group in groups for due in group.newest.changes.due.values())
            and all(self._is_settled(group) for group in groups)
        )

    def _is_settled(self, group: TrueGroup) -> bool:
        view = group.newest.changes
        return view.phase is not BarrierPhase.PRE and view.members == self.table.group(group.key.group)

    def _check(self) -> None:
        if (change := self.state.change) is not None:
            self.fail(f"change {change.number} does not end: {change.phase}, {change.groups_waiting}")
        for group in self.truth.groups.values():
            view = group.newest.changes
            if not group.deleted and not _is_of(self.table, group.key):
                self.fail(f"group {group.key} has ended, and its log is not deleted")
            if group.deleted:
                continue
            if due := {key: len(each) for key, each in view.due.items() if each}:
                self.fail(f"group {group.key} has records that were never accepted: {due}")
            if not self._is_settled(group):
                self.fail(f"group {group.key} has members {view.members} in phase {view.phase}")
        for key in KEYS:
            wanted, found = self.truth.expected.value(key), self.truth.value(key)
            if wanted != found:
                self.fail(f"{key} is {found} instead of {wanted}: {self.truth.expected.entries.get(key)}")


def _is_of(table: SlotTable, key: GroupKey) -> bool:
    return key.group in table.headers and table.birth(key.group) == key.birth


def _numbers(bits: int) -> list[int]:
    return [slot for slot in range(SLOTS) if bits >> slot & 1]
