"""One simulated schedule from a seed: nodes, writers, readers and faults.

Invariants are checked after every event, convergence at the end.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.consumers.replication.failure_detector import FailureDetector
from headrace.schemas.framing import FrameInvalid
from headrace.schemas.messages import Claim, Message, ProducerPosition, Write, decode_message, encode_message
from headrace.schemas.receipts import WrittenRecords, receipt_of, value_digest
from headrace.schemas.records import Role
from tests.sim.node import GROUP, SimNode
from tests.sim.world import World

FAULT_MS = 30_000
HEAL_MS = 30_000
WRITERS = 3


class InvariantBroken(AssertionError):
    """A schedule violated an invariant; the message holds the last events."""


@dataclass(slots=True)
class Pending:
    """A write that waits for its quorum."""

    write: str
    quorum: int
    appended_ms: int


@dataclass
class Simulation:
    """Runs one seed; `members` are the nodes of the one group."""

    seed: int
    verbose: bool = False
    nodes: dict[str, SimNode] = field(default_factory=dict)
    pending: list[Pending] = field(default_factory=list)
    acknowledged: dict[str, int] = field(default_factory=dict)
    history: dict[int, bytes] = field(default_factory=dict)
    leaders: dict[int, str] = field(default_factory=dict)
    served: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.world = World(self.seed, self.verbose)
        random = self.world.random
        count = random.choice((1, 2, 3, 3, 3, 4, 5))
        members = tuple(f"n{number}" for number in range(1, count + 1))
        for name in members:
            self.nodes[name] = SimNode(self.world, name, members, self.nodes)
        self.members = members
        self.written = 0
        self.log_index = self.status_index = 0
        self.detector = FailureDetector()
        self.checked: dict[str, tuple[int, int, Role]] = {}
        self.offsets: dict[str, WrittenRecords] = {}
        self.log_epoch = 0

    def run(self) -> None:
        """Inject faults for a while, then heal the world, which must converge. Raises InvariantBroken."""
        for node in self.nodes.values():
            self.world.after(self.world.random.uniform(0, 2_000), node.start)
        for number in range(WRITERS):
            self._write(f"writer{number}")
        self.world.after(1_000, self._fault)
        self.world.after(100, self._read)
        self.world.run_until(FAULT_MS, self._check)
        self._heal()
        self.world.run_until(FAULT_MS + HEAL_MS, self._check)
        self._check_converged()

    # Clients.

    def _write(self, writer: str) -> None:
        random = self.world.random
        if self.world.now_ms < FAULT_MS:
            self.written += 1
            name = f"w{self.written}"
            body = Write("db", "t", 1, 1, random.randint(1, 8), name.encode())
            value = encode_message(Message(ProducerPosition(writer, self.written, 0), body))
            self.pending.append(Pending(name, random.randint(1, len(self.members)), self.world.now_ms))
            self.world.send(writer, self.world.forward, value)
            self.world.after(random.uniform(20, 600), lambda: self._write(writer))

    def _acknowledge(self) -> None:
        """Acknowledge writes as writers do, by a failure detector of their own."""
        for pending in list(self.pending):
            written = self.offsets.get(pending.write)
            if written is None:
                continue
            copies = 1 if pending.quorum == 1 else self.detector.durable_copies(GROUP, self.members, "t", written)
            if copies >= pending.quorum:
                self.pending.remove(pending)
                self.acknowledged[pending.write] = written.offset
                self._check_copies(pending, written.offset)

    def _check_copies(self, pending: Pending, offset: int) -> None:
        if pending.quorum == 1:
            return
        # A status is up to 3 s old and arrives with a delay: a disk that was wiped since did hold the record.
        wiped_after_ms = self.world.now_ms - 5_000
        copies = sum(
            node.disk.durable_offset() >= offset or node.disk.wiped_ms > wiped_after_ms for node in self.nodes.values()
        )
        self._require(
            copies >= pending.quorum, f"{pending.write} was acknowledged with {pending.quorum}, {copies} disks hold it"
        )

    def _read(self) -> None:
        node = self.nodes[self.world.random.choice(self.members)]
        # Reads of one node are monotonic, also across a restart.
        if node.serves():
            version = node.replica.state.version
            self._require(
                version >= self.served.get(node.name, 0),
                f"{node.name} served version {version} after {self.served.get(node.name)}",
            )
            self.served[node.name] = version
        self.world.after(self.world.random.uniform(20, 200), self._read)

    # Faults.

    def _fault(self) -> None:
        random = self.world.random
        if self.world.now_ms >= FAULT_MS:
            return
        node = self.nodes[random.choice(self.members)]
        fault = random.choice(
            (
                "kill",
                "kill",
                "pause",
                "pause",
                "wipe",
                "full",
                "cut sends",
                "cut reads",
                "cut both",
                "cut link",
                "garbage",
                "corrupt",
                "tamper",
                "broker clock",
            )
        )
        self.world.note(f"fault: {fault} {node.name}")
        heal_ms = random.uniform(500, 12_000)
        if fault == "garbage":
            self.world.send("unknown", self.world.forward, bytes(random.randrange(256) for _ in range(12)))
        elif fault == "kill" and node.running:
            node.kill()
            self.world.after(heal_ms, lambda: node.start() if not node.running else None)
        elif fault == "wipe" and node.running and self._may_wipe(node):
            node.kill()
            node.wipe()
            self.served.pop(node.name, None)
            self.world.after(heal_ms, lambda: node.start() if not node.running else None)
        elif fault == "corrupt" and node.running and self._may_corrupt(node):
            node.disk.corrupted = bool(node.disk.sealed)
        # With a trimmed log and two halves that disagree, an operator must decide and nothing converges by
        # itself.
        elif fault == "tamper" and node.running and not self.world.trims and len(self.members) > 1:
            node.tamper()
        elif fault == "pause" and node.running:
            node.paused = True
            self.world.after(heal_ms, lambda: setattr(node, "paused", False))
        elif fault == "full":
            node.disk.full = True
            disk = node.disk
            self.world.after(heal_ms, lambda: setattr(disk, "full", False))
        elif fault == "broker clock":
            self.world.broker_ms = random.choice((-600_000, -4_000, 4_000, 600_000, 31_536_000_000))
            if random.random() < 0.5:
                self.world.after(heal_ms, lambda: setattr(self.world, "broker_ms", 0))
        elif fault.startswith("cut"):
            self._cut(fault, node.name, heal_ms)
        self.world.after(random.uniform(200, 6_000), self._fault)

    def _cut(self, fault: str, name: str, heal_ms: float) -> None:
        world = self.world
        if fault in ("cut sends", "cut both"):
            world.sends_cut.add(name)
            world.after(heal_ms, lambda: world.sends_cut.discard(name))
        if fault in ("cut reads", "cut both"):
            world.reads_cut.add(name)
            world.after(heal_ms, lambda: world.reads_cut.discard(name))
        if fault == "cut link":
            link = (name, world.random.choice(self.members))
            world.links_cut.add(link)
            world.after(heal_ms, lambda: world.links_cut.discard(link))

    def _may_wipe(self, victim: SimNode) -> bool:
        """One disk must keep what was trimmed from the log: without it the data is lost in any system."""
        begin = self.world.forward.begin
        return begin == 0 or any(
            node is not victim
            and node.disk.durable_offset() + 1 >= begin
            and not (node.disk.full or node.disk.corrupted)
            for node in self.nodes.values()
        )

    def _may_corrupt(self, victim: SimNode) -> bool:
        """Another member must hold everything now: the log may be trimmed before the scrubber finds the
        corruption, also past a member that is paused.
        """
        begin = self.world.forward.begin
        return not self.world.trims or any(
            node is not victim
            and node.running
            and not node.paused
            and node.disk.durable_offset() + 1 >= max(1, begin)
            and not (node.disk.full or node.disk.corrupted)
            for node in self.nodes.values()
        )

    def _heal(self) -> None:
        self.world.note("healed")
        for cut in (self.world.sends_cut, self.world.reads_cut, self.world.links_cut):
            cut.clear()
        for node in self.nodes.values():
            node.disk.full = False
            node.paused = False
            if not node.running:
                node.start()

    # Invariants.

    def _check(self) -> None:
        statuses = self.world.status.records[self.status_index :]
        for record in statuses:
            self.status_index += 1
            self.detector.observe(record.timestamp_ms, record.value, self.world.now_ms)
        if statuses or len(self.world.forward.records) > self.log_index:
            self._read_log()
            self._acknowledge()
        for node in self.nodes.values():
            observed = (node.generation, node.replica.state.version, node.decision.role) if node.running else None
            if observed is not None and self.checked.get(node.name) != observed:
                self.checked[node.name] = observed
                self._check_node(node)

    def _read_log(self) -> None:
        for record in self.world.forward.records[self.log_index :]:
            self.log_index += 1
            try:
                body = decode_message(record.value).body
            except FrameInvalid:
                continue
            if isinstance(body, Write):
                receipt = receipt_of(record.offset, value_digest(record.value))
                self.offsets.setdefault(body.rows.decode(), WrittenRecords(record.offset, (receipt,)))
            elif isinstance(body, Claim) and body.leadership.epoch == self.log_epoch + 1:
                self.log_epoch += 1
                self.leaders[self.log_epoch] = body.leadership.incarnation

    def _check_node(self, node: SimNode) -> None:
        state = node.replica.state
        # A tampered node may serve until a comparison detects it, so its content is not checked.
        if node.tampered:
            self._require(
                not (node.disk.wrong and node.serves()), f"{node.name} serves data that it has marked as wrong"
            )
            return
        if state.version:
            expected_chain = self.history.setdefault(state.version, state.chain)
            self._require(expected_chain == state.chain, f"{node.name} has another content at version {state.version}")
        if state.leader is not None:
            expected = self.leaders.get(state.epoch)
            self._require(
                expected == state.leader.incarnation,
                f"{node.name} sees {state.leader} lead epoch {state.epoch}, not {expected}",
            )

    def _check_converged(self) -> None:
        log_version = len(self.world.forward.records)
        for node in self.nodes.values():
            self._require(node.serves(), f"{node.name} does not serve: {node.decision} {node._reason()}")
            self._require(
                node.replica.state.version == log_version,
                f"{node.name} is at {node.replica.state.version} of {log_version}",
            )
            missing = [write for write in self.acknowledged if write not in node.visible]
            self._require(not missing, f"{node.name} lost acknowledged {missing[:5]}")
        contents = {name: node.visible for name, node in self.nodes.items()}
        first = contents[self.members[0]]
        for name, content in contents.items():
            self._require(content == first, f"{name} and {self.members[0]} hold other rows at the same version")
        leading = [node.name for node in self.nodes.values() if node.decision.role is Role.LEADER]
        self._require(leading == [self.members[0]], f"leaders at the end: {leading}")

    def _require(self, holds: bool, violation: str) -> None:
        if not holds:
            tail = "\n".join(self.world.lines[-40:])
            raise InvariantBroken(f"seed {self.seed}, {self.world.now_ms} ms: {violation}\n{tail}")


__all__ = ["GROUP", "InvariantBroken", "Simulation"]
