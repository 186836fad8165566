"""The faults of a schedule: each is drawn, begins, and heals some time later."""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING, Any

from headrace.admin_client import most_advanced, unaware_of_loss
from headrace.connectors.deadline import GONE_AFTER_S
from headrace.connectors.log.port import TopicState
from headrace.consumers.recovery.log_gap import GapRefused
from headrace.consumers.replication.group_health import State
from headrace.consumers.replication.group_state import LogBase
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import FORMAT, FORMAT_HEADER, format_headers
from headrace.schemas.messages import (
    NO_CHAIN,
    Anchor,
    Claim,
    Leadership,
    Message,
    ProducerPosition,
    encode_message,
)
from tests.sim import rows
from tests.sim.liveness import EVERYBODY
from tests.sim.node import ClusterNode
from tests.sim.parts import CHAIN_INTERVAL
from tests.sim.stubs import TOPIC, TOPICS

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

COMMON = (
    "kill",
    "power loss",
    "kill inside",
    "kill inside",
    "pause",
    "pause inside",
    "pause inside",
    "wipe",
    "full",
    "full later",
    "sync fails",
    "cut sends",
    "cut reads",
    "cut both",
    "cut link",
    "garbage",
    "corrupt",
    "tamper",
    "zombie",
    "no topics",
    "undeliverable",
    "rot journal",
    "apply error",
)
"""Faults after which everything must heal by itself."""
CLOCKS = ("clock step",)
LOST_LOGS = ("truncate", "recreate")
RESTORED = "away"
ACCEPTED = "accept gap"
"""With it among the names, an operator accepts what a log has lost, and everything must heal behind the gap."""
STOPS = ("too new",)
"""Faults after which an operator must decide: only safety is checked behind them."""
FAULT_MS = 12_000


class Faults:
    """Draws and makes the faults of one schedule."""

    def __init__(self, simulation: Simulation, names: tuple[str, ...]) -> None:
        self._simulation = simulation
        self._world = simulation.world
        self.names = names
        self.can_converge = True
        self._accepted_ms = -8_000
        self._is_whole, self._is_accepted = True, False

    def begin(self) -> None:
        """The first fault comes after the start."""
        if self.names:
            self._world.after(self._world.random.uniform(1_500, 3_500), self._next)

    def _next(self) -> None:
        chance = self._world.random
        if self._world.now_ms >= FAULT_MS - 500:
            return
        node = self._simulation.nodes[chance.choice(self._simulation.liveness.victims)]
        fault, heal_ms = chance.choice(self.names), chance.uniform(500, 8_000)
        self._world.note(f"fault: {fault} {node.name}")
        if fault in EVERYBODY and self._simulation.liveness.spared:
            fault = "kill"
        getattr(self, "_" + fault.split(" ")[0])(fault, node, heal_ms)
        self._world.after(chance.uniform(200, 3_200), self._next)

    def heal(self) -> None:
        """Everything works again; a lost log and a clock stay as they are."""
        self._world.note("healed")
        for cut in (self._world.sends_cut, self._world.reads_cut, self._world.links_cut):
            cut.clear()
        for node in self._simulation.nodes.values():
            node.disk.full, node.disk.full_after = False, None
            node.disk.clear_faults()
            node.process.paused = False
            node.process.kill_after = node.process.pause_after = None
            node.process.answers_slow_until_ms = 0
            if node.started and node.group.health.holds(State.STOPPED) and self.can_converge:
                node.kill(power_loss=False)
            node.start()
        self._simulation.broker.undeliverable.clear()
        if any(node.started and node.tampered for node in self._simulation.nodes.values()):
            self._pass_a_sample()
        if ACCEPTED in self.names:
            self._operate()

    def _pass_a_sample(self) -> None:
        """Members compare samples, so the log continues up to one behind the fault, once it takes records again."""
        broker = self._simulation.broker
        if broker.is_away(TOPIC):
            self._world.after(broker.away_until_ms[TOPIC] - self._world.now_ms, self._pass_a_sample)
            return
        for _ in range(CHAIN_INTERVAL):
            self._garbage("", next(iter(self._simulation.nodes.values())), 0)

    # Processes.

    def _kill(self, fault: str, node: ClusterNode, heal_ms: float) -> None:
        if fault == "kill inside":
            node.process.kill_after = self._world.random.randint(0, 60)
            # A process that was killed inside a step is started again by whoever watches it.
            self._world.after(heal_ms, node.start)
            self._world.after(heal_ms + 3_000, node.start)
            return
        node.kill(power_loss=fault == "power loss")
        self._world.after(heal_ms, node.start)

    _power = _kill

    def _pause(self, fault: str, node: ClusterNode, heal_ms: float) -> None:
        process = node.process
        if fault == "pause inside":
            process.pause_after = (self._world.random.randint(0, 60), heal_ms)
            return
        if not process.paused:
            process.paused = True
            self._world.after(heal_ms, lambda: setattr(process, "paused", False))

    def _slow(self, _fault: str, node: ClusterNode, heal_ms: float) -> None:
        """Answers about topics arrive late, while records arrive in time: they come on another connection."""
        node.process.answers_slow_until_ms = self._world.now_ms + int(heal_ms)

    # Disks.

    def _wipe(self, _fault: str, node: ClusterNode, heal_ms: float) -> None:
        if node.running and self._keeps(node):
            node.kill(power_loss=False)
            node.wipe()
            self._simulation.invariants.forget(node.name)
            self._world.after(heal_ms, node.start)

    def _full(self, fault: str, node: ClusterNode, heal_ms: float) -> None:
        if fault == "full later":
            node.disk.full_after = self._world.random.randint(0, 40)
        else:
            node.disk.full = True

        def free() -> None:
            node.disk.full, node.disk.full_after = False, None

        self._world.after(heal_ms, free)

    def _sync(self, _fault: str, node: ClusterNode, _heal_ms: float) -> None:
        node.disk.fail(self._world.random.choice(("data", "sync", "write", "rename")), self._world.random.randint(1, 5))

    def _corrupt(self, _fault: str, node: ClusterNode, _heal_ms: float) -> None:
        # Rot that nobody has found yet does not keep a leader from trimming: a log that is trimmed counts as trimmed.
        if node.started and node.disk.sealed.segments and self._keeps(node, trimmed=self._simulation.trims):
            self._simulation.files.rot(node, self._world.random.choice(sorted(node.disk.sealed.segments)))
            node.scrubber.scrub_now()
            node.disk.wiped_ms = self._world.now_ms

    def _tamper(self, _fault: str, node: ClusterNode, _heal_ms: float) -> None:
        # With a trimmed log and two halves that disagree, an operator must decide and nothing converges by itself.
        if node.started and not self._simulation.trims and len(self._simulation.members) > 1 and node.group.version:
            node.tamper()

    def _keeps(self, victim: ClusterNode, *, trimmed: bool = False) -> bool:
        """One disk must keep what was trimmed from the log, or lost: without it the data is lost in any system."""
        begin = self._simulation.broker.topics[TOPIC].begin
        others = [
            node
            for node in self._simulation.nodes.values()
            if node is not victim
            and node.started
            and not (node.disk.full or node.disk.sealed.rotten or node.identity.wrong)
            and node.group.health.conditions.recovery is None
        ]
        if self._is_accepted:
            # One that serves may have been behind the cut, and has yet to notice.
            return any(node.serves() and node.group.replica.state.base != LogBase() for node in others)
        if not self._is_whole:
            lost = [node.group.version for node in others if node.group.health.holds(State.LOST)]
            return victim.started and victim.group.version <= max(lost, default=-1)
        return (begin == 0 and not trimmed) or any(
            node.log_consumer.durable_offset(TOPIC) + 1 >= begin for node in others
        )

    # The network and the log.

    def _cut(self, fault: str, node: ClusterNode, heal_ms: float) -> None:
        world, name = self._world, node.name
        if fault in ("cut sends", "cut both"):
            world.sends_cut.add(name)
            world.after(heal_ms, lambda: world.sends_cut.discard(name))
        if fault in ("cut reads", "cut both"):
            world.reads_cut.add(name)
            world.after(heal_ms, lambda: world.reads_cut.discard(name))
        if fault == "cut link":
            link = (name, world.random.choice(self._simulation.members))
            world.links_cut.add(link)
            world.after(heal_ms, lambda: world.links_cut.discard(link))

    def _garbage(self, _fault: str, _node: ClusterNode, _heal_ms: float) -> None:
        chance, broker = self._world.random, self._simulation.broker
        kind = chance.random()
        if kind < 0.4:
            value = bytes(chance.randrange(256) for _ in range(12))
        elif kind < 0.5:
            # Of a node that is no member of the group: another cluster's settings, or a member that was removed.
            stranger = Leadership(self._simulation.truth.epoch + 1, "stranger", f"s{self._world.now_ms}")
            claim = Claim(stranger, Anchor(0, 0, NO_CHAIN), 25, 1_000_000)
            value = encode_message(Message(ProducerPosition("stranger", self._world.now_ms, 0), claim))
        else:
            body = rows.unreadable(chance.randrange(4))
            value = encode_message(Message(ProducerPosition("garbage", self._world.now_ms, 0), body))
        broker.send("unknown", TOPIC, value, None, format_headers(), None)

    def _zombie(self, _fault: str, _node: ClusterNode, _heal_ms: float) -> None:
        """A task that was given up writes on: an older batch, a repeat, or the same sequence with other content."""
        chance, writer = self._world.random, self._world.random.choice(rows.WRITERS)
        newest = self._simulation.newest_batch(writer)
        position = ProducerPosition(writer, max(1, newest - chance.randint(0, 2)), chance.randint(0, 3))
        self._simulation.send_row(writer, position)

    def _undeliverable(self, _fault: str, _node: ClusterNode, heal_ms: float) -> None:
        """One record, or the next to come, cannot be read for a while: in a forward log or in the statuses."""
        chance, broker = self._world.random, self._simulation.broker
        topic = TOPICS.status if chance.random() < 0.3 else TOPIC
        found = broker.topics[topic]
        offset = chance.choice((found.end, max(found.begin, found.end - chance.randint(1, 10))))
        broker.undeliverable[topic] = (offset, self._world.now_ms + int(heal_ms))

    def _rot(self, _fault: str, node: ClusterNode, heal_ms: float) -> None:
        """A byte of a journal changes while the node is down."""
        if not (node.started and self._keeps(node)):
            return
        node.kill(power_loss=False)
        chance, files = self._world.random, node.disk.names_seen
        if names := sorted(name for name, inode in files.items() if inode.seen):
            inode = files[chance.choice(names)]
            place = chance.randrange(len(inode.seen))
            for content in (inode.seen, inode.durable):
                if place < len(content):
                    content[place] ^= 1 << chance.randrange(8)
            inode.pending.clear()
            inode.durable[:] = inode.seen
            # What the journal alone held may be lost.
            node.disk.wiped_ms = self._world.now_ms
            self._simulation.invariants.forget(node.name)
        self._world.after(heal_ms, node.start)

    def _apply(self, _fault: str, node: ClusterNode, heal_ms: float) -> None:
        """A record cannot be applied here, of no fault of its own: the group stops until its node is restarted."""
        if node.started:
            store: Any = node.group.store
            store.fails_next = True
            self._world.after(heal_ms, lambda: self._kill("kill", node, 100))

    def _too(self, _fault: str, _node: ClusterNode, _heal_ms: float) -> None:
        """A record of a later build: every replica stops at it."""
        self.can_converge = False
        value = encode_message(Message(ProducerPosition("later", self._world.now_ms, 0), rows.write(1)))
        self._simulation.broker.send("later", TOPIC, value, None, ((FORMAT_HEADER, str(FORMAT + 1).encode()),), None)

    def _no(self, _fault: str, _node: ClusterNode, _heal_ms: float) -> None:
        """The broker has just restarted."""
        self._simulation.broker.hidden_until_ms = self._world.now_ms + self._world.random.randint(100, 4_000)
        self._simulation.broker.elect(TOPIC)

    def _clock(self, _fault: str, _node: ClusterNode, _heal_ms: float) -> None:
        step_ms = self._world.random.choice((-600_000, -5_000, -1_000, 1_000, 5_000, 600_000))
        self._simulation.broker.step_clock(step_ms)
        self._world.note(f"the broker's clock steps by {step_ms} ms")

    def _truncate(self, _fault: str, _node: ClusterNode, _heal_ms: float) -> None:
        if self._lose():
            self._simulation.broker.truncate(TOPIC, self._world.random.randint(1, 12))

    def _away(self, _fault: str, _node: ClusterNode, heal_ms: float) -> None:
        """The log is gone for longer than the start of a broker takes, and is restored as it was, with its id."""
        self._simulation.broker.away_until_ms[TOPIC] = self._world.now_ms + int(1_000 * GONE_AFTER_S + heal_ms)

    def _recreate(self, _fault: str, _node: ClusterNode, _heal_ms: float) -> None:
        if self._lose():
            self._simulation.broker.make(TOPIC)

    def _lose(self) -> bool:
        """The log is about to lose records, perhaps again before an operator has accepted the loss before.

        Not while a damaged disk holds most: the log was to rebuild what is on it.
        """
        nodes = [node for node in self._simulation.nodes.values() if node.started]
        damaged = [node for node in nodes if node.disk.sealed.rotten or node.identity.wrong]
        kept = max((node.group.version for node in nodes if node not in damaged), default=0)
        if any(node.group.version > kept for node in damaged):
            return False
        self.can_converge = ACCEPTED in self.names
        # Then members hold parts of two histories, and the operator keeps one of them.
        if self._is_whole or (self._is_accepted and any(map(_serves, self._simulation.nodes.values()))):
            self._is_whole = self._is_accepted = False
        else:
            self._simulation.give_up_acknowledged()
        return True

    def _accept(self, _fault: str, _node: ClusterNode, _heal_ms: float) -> None:
        """An operator runs `headrace accept-gap`, which asks the member that has most. See AdminClient.accept_gap."""
        nodes = list(self._simulation.nodes.values())
        if not all(node.started and not node.process.paused for node in nodes) or any(map(_serves, nodes)):
            return
        # It waits until that member continues.
        if self._world.now_ms - self._accepted_ms < 8_000:
            return
        statuses = [node.statuses.statuses()[0] for node in nodes]
        found, log = most_advanced(statuses), self._simulation.broker.topics[TOPIC]
        known = TopicState(log.topic_id, log.begin, log.end)
        if found is not None and found.log_lost and not unaware_of_loss(statuses, found, known):
            best = self._simulation.nodes[found.node]
            with suppress(HeadraceError, OSError):
                self._accept_at(best, None)

    def _accept_at(self, best: ClusterNode, resume_offset: int | None) -> None:
        try:
            best.process.call(lambda: best.supervisor.accept_gap(TOPIC, resume_offset))
        except GapRefused:
            if resume_offset is not None:
                raise
            self._accept_at(best, self._first_new_offset(best))
            return
        self._is_accepted = True
        self._accepted_ms = self._world.now_ms
        self._world.note(f"the gap is accepted at {best.name}")

    def _first_new_offset(self, best: ClusterNode) -> int:
        """What the refusal asks an operator for: the first record of the log that a member never had."""
        log, history = self._simulation.broker.topics[TOPIC], self._simulation.truth.history(best.group.applied.chain)
        known = {(each.offset, each.record.value) for each in history}
        return next((each.offset for each in log.records if (each.offset, each.value) not in known), log.end)

    def _operate(self) -> None:
        self._accept("", next(iter(self._simulation.nodes.values())), 0)
        self._world.after(1_500, self._operate)


def _serves(node: ClusterNode) -> bool:
    return node.serves()
