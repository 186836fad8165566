"""One schedule of the metadata group from a seed: nodes, operators and faults; then all heals, and must be well."""

from __future__ import annotations

from collections import defaultdict
from functools import cache
from unittest.mock import patch

from headrace.connectors.log.memory import MemoryLog
from headrace.consumers.membership import membership_follower
from headrace.consumers.membership.change_requests import ChangeUnconfirmed, Ticket
from headrace.consumers.membership.changes import Outcome
from headrace.consumers.membership.metadata_leader import due_exiles
from headrace.consumers.membership.requests import ChangeRequest
from headrace.consumers.membership.slot_table import SlotTable
from headrace.schemas.errors import HeadraceError
from headrace.schemas.membership_records import ChangeKind, MetadataClaim
from headrace.schemas.records import Create, decode_membership, encode_membership
from tests.sim.membership_node import REPLICATION, SLOTS, TOPIC, MemberNode, Statuses
from tests.sim.membership_rules import MembershipInvariants
from tests.sim.world import EPOCH_MS, Crash, World

NAMES = tuple(f"n{number}" for number in range(1, 8))
FAULT_MS = 12_000
HEAL_MS = 45_000
STEP_MS = (400, 1_000)
FAULTS_PER_STEP = 0.02
REQUEST_EVERY_MS = (400, 1_500)
CANCELLED = 0.35
REPEATED = 0.2
WAIT_MS = 8_000
START_MS = 2_000

_decoded = cache(decode_membership)
_table = cache(SlotTable.from_bytes)


class MembershipSimulation:
    """Runs one seed."""

    def __init__(self, seed: int, verbose: bool = False) -> None:
        self.world = World(seed, verbose)
        chance = self.world.random
        self.memory = MemoryLog(clock_ms=lambda: EPOCH_MS + self.world.now_ms)
        self.memory.create_topic(TOPIC, {})
        self.topic = self.memory.topic(TOPIC)
        members = NAMES[: chance.choice((3, 3, 3, 4, 4, 5, 6))]
        self.memory.store(TOPIC, encode_membership("birth", Create(members, REPLICATION, SLOTS)), None, ())
        self.statuses = Statuses(self.world)
        self.nodes: dict[str, MemberNode] = {}
        self.invariants = MembershipInvariants(self)
        self.answers: dict[str, list[Outcome | str]] = defaultdict(list)
        self._tickets: list[tuple[str, Ticket, int]] = []
        self._requests: dict[str, ChangeRequest] = {}
        self._runs = 0
        self._healed = False
        for name in NAMES[: len(members) + chance.randint(1, 2)]:
            self._start(name)

    def run(self) -> None:
        """Inject faults for a while, then heal the world. Raises InvariantBroken."""
        # Every node reads the same records, and most runs read all of them: each is decoded once.
        with (
            patch.object(membership_follower, "decode_membership", _decoded),
            patch.object(SlotTable, "from_bytes", _table),
        ):
            self._run()

    def _run(self) -> None:
        world = self.world
        self._request_later()
        world.run_until(FAULT_MS)
        self._heal()
        world.run_until(FAULT_MS + HEAL_MS, self._is_well)
        self._collect(0)
        self.invariants.ended()

    def _is_well(self) -> bool:
        alive = [node for node in self.nodes.values() if node.alive]
        return (
            not self._tickets
            and self.invariants.settled(alive)
            and all(node.group.state.change is None and not due_exiles(node.group.state) for node in alive)
            and sum(node.group.leads for node in alive) == 1
        )

    def _start(self, name: str) -> None:
        self._runs += 1
        node = self.nodes[name] = MemberNode(self.world, self.memory, self.statuses, name, self._runs)
        node.log.faulty = not self._healed
        node.log.on_step = lambda call: self._inside(node, call)
        node.log.on_append = lambda value: self._appended(node, value)
        self.world.after(self.world.random.uniform(1, STEP_MS[1]), lambda: self._step(node))

    def _appended(self, node: MemberNode, value: bytes) -> None:
        _, record = decode_membership(value)
        if isinstance(record, MetadataClaim):
            self.invariants.claimed(node, record)

    def _step(self, node: MemberNode) -> None:
        if not node.alive:
            return
        try:
            node.step()
        except Crash:
            self._kill(node)
            return
        if node.alive:
            self.invariants.check(node)
            self._end_if_exiled(node)
            self._collect(WAIT_MS)
            self.world.after(self.world.random.uniform(*STEP_MS), lambda: self._step(node))
            if not self._healed:
                self._maybe_fault(node)

    def _end_if_exiled(self, node: MemberNode) -> None:
        state = node.group.state
        if node.name in state.exiled and (state.change is None or state.change.node != node.name):
            node.alive = False

    # Faults.

    def _inside(self, node: MemberNode, call: str) -> None:
        """A process may be killed or stopped inside any call of the log."""
        if not node.alive:
            raise Crash
        if self._healed:
            return
        chance = self.world.random
        dice = chance.random()
        limit = 0.08 if call in ("append", "flush") else 0.004
        if dice < limit / 2:
            raise Crash
        if dice < limit and self.world.may_stop:
            self.world.note(f"{node.name} is stopped in {call}")
            self.world.stand_still(chance.uniform(500, 7_000))
            if not node.alive:
                raise Crash

    def _maybe_fault(self, node: MemberNode) -> None:
        chance, name = self.world.random, node.name
        if chance.random() >= FAULTS_PER_STEP:
            return
        if chance.random() < 0.5:
            self._kill(node)
        else:
            self.world.note(f"{name} is cut off")
            self.world.reads_cut.add(name)
            self.world.after(chance.uniform(500, 8_000), lambda: self.world.reads_cut.discard(name))

    def _kill(self, node: MemberNode) -> None:
        if not node.alive:
            return
        node.alive = False
        self.world.note(f"{node.name} is killed")
        if self._healed:
            self._start(node.name)
        else:
            self.world.after(self.world.random.uniform(300, 9_000), lambda: self._restart(node))

    def _restart(self, node: MemberNode) -> None:
        if self.nodes[node.name] is node:
            self._start(node.name)

    def _heal(self) -> None:
        self._healed = True
        self.world.reads_cut.clear()
        for node in self.nodes.values():
            node.log.faulty = False
        self._start_missing()

    def _start_missing(self) -> None:
        """Start again what is down, except for nodes that have been exiled; one of those may join again."""
        state = max((node.group.state for node in self.nodes.values()), key=lambda each: each.records)
        for node in list(self.nodes.values()):
            joins = state.change is not None and state.change.node == node.name
            if not node.alive and (joins or node.name not in state.exiled):
                self._start(node.name)
        self.world.after(START_MS, self._start_missing)

    # Operators.

    def _request_later(self) -> None:
        if not self._healed:
            self._request()
            self.world.after(self.world.random.uniform(*REQUEST_EVERY_MS), self._request_later)

    def _request(self) -> None:
        chance = self.world.random
        alive = [node for node in self.nodes.values() if node.alive]
        if not alive:
            return
        # Mostly the leader: an operator follows the answer of another node.
        leading = [node for node in alive if node.group.leads]
        node = chance.choice(leading if leading and chance.random() < 0.8 else alive)
        if chance.random() < CANCELLED:
            self._cancel(node)
            return
        repeated = bool(self._requests) and chance.random() < REPEATED
        name = chance.choice(list(self._requests)) if repeated else f"r{len(self._requests) + 1}"
        request = self._requests.setdefault(name, self._new_request(name, node))
        self._send(node, request)

    def _new_request(self, name: str, node: MemberNode) -> ChangeRequest:
        chance, table = self.world.random, node.group.state.table
        members = NAMES[:3] if table is None else table.nodes
        kind = chance.choice((ChangeKind.ADD, ChangeKind.ADD, ChangeKind.REMOVE, ChangeKind.REMOVE, ChangeKind.BALANCE))
        if kind is ChangeKind.BALANCE:
            return ChangeRequest(name, kind)
        joiners = [each for each, found in self.nodes.items() if each not in members and found.alive] or list(NAMES)
        return ChangeRequest(name, kind, chance.choice(joiners if kind is ChangeKind.ADD else members))

    def _send(self, node: MemberNode, request: ChangeRequest) -> None:
        self.world.note(f"request {request} to {node.name}")
        try:
            ticket = node.group.requests.submit(request)
        except HeadraceError as error:
            self._answer(request.id, error)
            return
        self._tickets.append((request.id, ticket, self.world.now_ms))

    def _answer(self, name: str, answer: Outcome | HeadraceError) -> None:
        self.world.note(f"request {name}: {answer!r}")
        if isinstance(answer, HeadraceError):
            # Empty: the operator does not know.
            unknown = isinstance(answer, ChangeUnconfirmed)
            self.answers[name].append("" if unknown else type(answer).__name__)
        else:
            self.answers[name].append(answer)

    def _collect(self, wait_ms: int) -> None:
        """Note the answers that are there; an operator does not wait for ever."""
        waiting = []
        for name, ticket, sent_ms in self._tickets:
            if not ticket.decided and self.world.now_ms - sent_ms < wait_ms:
                waiting.append((name, ticket, sent_ms))
                continue
            try:
                self._answer(name, ticket.answer())
            except HeadraceError as error:
                self._answer(name, error)
        self._tickets = waiting

    def _cancel(self, node: MemberNode) -> None:
        change = node.group.state.change
        if change is None:
            return
        try:
            node.group.requests.request_cancel(change.number)
        except HeadraceError as error:
            self.world.note(f"cancel {change.number}: {error!r}")
