"""One schedule from a seed: nodes, writers, readers and faults; then everything heals, and all must be well."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from typing import Any

from headrace.consumers.node.settings import StoreSection
from headrace.consumers.replication.failure_detector import RECEIPTS_KEPT, FailureDetector
from headrace.consumers.replication.heartbeat import StatusReader
from headrace.producers.acks import Quorum, QuorumTimeout
from headrace.producers.cluster import FixedRouting, MemberStatuses
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import format_headers
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.messages import Delete, Message, ProducerPosition, encode_message
from headrace.schemas.receipts import WrittenRecords, receipt_of, value_digest
from tests.sim import rows
from tests.sim.broker import SimBroker, SimLog
from tests.sim.faults import ACCEPTED, COMMON, FAULT_MS, LOST_LOGS, Faults
from tests.sim.invariants import Invariants
from tests.sim.liveness import Liveness
from tests.sim.node import KEEP_RECORDS, SEAL_ROWS, ClusterNode
from tests.sim.parts import SimFiles, shipping_parts
from tests.sim.reads import Reads
from tests.sim.stubs import GROUP, TOPIC, TOPICS, SimSlotTable
from tests.sim.truth import Truth
from tests.sim.world import NodeClock, World

FilesFactory = Callable[[dict[str, ClusterNode]], SimFiles]
HEAL_MS = 40_000
STARTED_MS = 1_100
PREMADE = 0.3
OTHER_SETTINGS = ({"retention.ms": "2000"}, {"cleanup.policy": "compact"}, {"cleanup.policy": "compact,delete"})
"""Settings of a forward topic with which records get lost."""
QUORUM_MS = 10_000
"""How long a writer waits for a quorum."""


@dataclass(slots=True)
class Pending:
    """A write that waits for its quorum; `offset` and `written` once the broker has confirmed it.

    `due_ms` is when its quorum is looked at again; what is known of the members cannot confirm it while no
    status has come since `looked`.
    """

    number: int
    quorum: int
    sent_ms: int
    due_ms: int = 0
    looked: int = -1
    offset: int = -1
    written: WrittenRecords = field(default_factory=WrittenRecords)


class StillWaiting(Exception):
    """A writer waits on for its quorum."""


class Watch:
    """The statuses as a writer sees them. See StatusSource."""

    error = ""
    last = False

    def __init__(self, log: SimLog, clock: NodeClock) -> None:
        self.reader = StatusReader(log, TOPICS.status, RECEIPTS_KEPT, clock)

    @property
    def statuses(self) -> FailureDetector:
        """See StatusSource."""
        return self.reader.detector

    def start(self) -> None:
        """See StatusSource."""

    def close(self) -> None:
        """See StatusSource."""

    def wait_for(self, holds: Callable[[MemberStatuses], bool], timeout_s: float) -> bool:
        """See StatusSource; raises StillWaiting unless this is the `last` look before the timeout."""
        del timeout_s
        if not (found := holds(self.statuses)) and not self.last:
            raise StillWaiting
        return found


class Simulation:
    """Runs one seed; `faults` are the names of those that may happen."""

    def __init__(
        self, seed: int, faults: tuple[str, ...] | None = None, verbose: bool = False, files: FilesFactory = SimFiles
    ) -> None:
        """`files` makes the stores and their copies: of the model, or real ones."""
        self.world = World(seed, verbose)
        chance = self.world.random
        count = chance.choice((1, 2, 3, 3, 3, 3, 4, 5))
        self.members = tuple(f"n{number}" for number in range(1, count + 1))
        names = COMMON if faults is None else faults
        # Offsets of two histories cannot be compared, as the check of trimming does.
        self.trims = chance.random() < 0.6 and not set(names) & set(LOST_LOGS)
        self.retention_ns = rows.RETENTION_NS if chance.random() < 0.5 else None
        self.settings = StoreSection(
            log_keep_records=KEEP_RECORDS if self.trims else 0,
            seal_rows=SEAL_ROWS,
            seal_age_ms=chance.choice((1_000, 4_000)),
            poll_records=chance.choice((3, 40)),
            apply_queue_bytes=chance.choice((2_000, 1_000_000)),
        )
        self.broker = SimBroker(self.world)
        for topic in (TOPIC, TOPICS.status):
            self.broker.make(topic)
        # Topics that somebody made before the first node was started.
        if chance.random() < PREMADE:
            self.broker.topics[TOPIC].settings.update(chance.choice(OTHER_SETTINGS))
        self.truth = self.broker.truths[TOPIC] = Truth(self.broker.topics[TOPIC].topic_id, self.members)
        self.nodes: dict[str, ClusterNode] = {}
        self.files = files(self.nodes)
        self.invariants = Invariants(self)
        self.broker.on_trim = self.invariants.trimmed
        self.faults = Faults(self, names)
        self.reads = Reads(self)
        self.liveness = Liveness(self)
        self.pending: list[Pending] = []
        self.acknowledged: set[int] = set()
        self.written = self.given_up = 0
        self._statuses_seen = 0
        self._batches: dict[str, tuple[int, int]] = {}

    def run(self) -> None:
        """Inject faults for a while, then heal the world, which must converge. Raises InvariantBroken."""
        with ExitStack() as resources:
            resources.enter_context(shipping_parts(self.files))
            self._start()
            # Clients cannot write before the first node has made the cluster, and its topics with it.
            self.world.after(STARTED_MS, self.broker.clean)
            self.liveness.begin()
            self.world.run_until(FAULT_MS)
            self.faults.heal()
            done = self.world.run_until(FAULT_MS + HEAL_MS, self.invariants.converged)
            if self.faults.can_converge:
                self.world.note("whole" if done else "not whole")
                self.invariants.require(done, f"{HEAL_MS} ms after everything healed: {self.invariants.missing()}")
                self.invariants.check_end()

    def _start(self) -> None:
        for name in self.members:
            self.nodes[name] = ClusterNode(self, name)
            self.world.after(self.world.random.uniform(0, STARTED_MS - 100), self.nodes[name].start)
        self.log = SimLog(self.broker, "writer")
        slots: Any = SimSlotTable(self.members)
        self.watch = Watch(self.log, NodeClock(self.world, 0))
        self.quorums = {
            copies: Quorum(self.log, TOPICS, FixedRouting(slots), self.watch, copies, 0)
            for copies in range(1, len(self.members) + 1)
        }
        self.topic_id = self.truth.topic_id
        for writer in rows.WRITERS:
            self._write(writer)
        self.reads.begin()
        self._confirm()
        self.faults.begin()

    # Clients.

    def _write(self, writer: str) -> None:
        chance = self.world.random
        if self.world.now_ms >= FAULT_MS:
            return
        self.send_row(writer, self._position(writer))
        if chance.random() < 0.02:
            delete = Delete("db", "t", {"writer": (chance.choice(rows.WRITERS),)})
            self.send(writer, Message(self._position(writer), delete), None)
        self.world.after(chance.uniform(20, 850), lambda: self._write(writer))

    def _position(self, writer: str) -> ProducerPosition:
        """The next position of a writer: batches of a few messages."""
        batch, sequence = self._batches.get(writer, (1, -1))
        batch, sequence = (batch + 1, 0) if self.world.random.random() < 0.3 else (batch, sequence + 1)
        self._batches[writer] = batch, sequence
        return ProducerPosition(writer, batch, sequence)

    def send_row(self, writer: str, position: ProducerPosition) -> None:
        """Write one new row under a position."""
        self.written += 1
        number = self.written * len(rows.WRITERS) + rows.WRITERS.index(writer)
        pending = Pending(number, self.world.random.randint(1, len(self.members)), self.world.now_ms)
        self.pending.append(pending)
        self.send(writer, Message(position, rows.write(number)), pending)

    def send(self, writer: str, message: Message, pending: Pending | None) -> None:
        """Send a message; `pending` gets its offset."""

        def delivered(offset: int | None, _error: object) -> None:
            if pending is not None and offset is not None:
                pending.offset = offset
                # As the Sender of a writer does.
                pending.written = WrittenRecords(offset, (receipt_of(offset, value_digest(value)),))

        value = encode_message(message)
        self.broker.send(writer, TOPIC, value, None, format_headers(), delivered)

    def _confirm(self) -> None:
        """Acknowledge writes as writers do."""
        self.invariants.statuses()
        with suppress(HeadraceError):
            self._statuses_seen += len(self.watch.reader.follow(0.0))
        now_ms = self.world.now_ms
        for pending in self.pending[:]:
            waited_ms = now_ms - pending.sent_ms
            self.watch.last = waited_ms >= QUORUM_MS
            if pending.offset < 0:
                if self.watch.last:
                    self.pending.remove(pending)
            elif self.watch.last or (pending.due_ms <= now_ms and pending.looked != self._statuses_seen):
                # A member may have the receipts of a later record only: it restarted, or a status was lost.
                pending.due_ms, pending.looked = now_ms + waited_ms // 2, self._statuses_seen
                self._confirm_one(pending)
        self.world.after(self.world.random.uniform(40, 200), self._confirm)

    def _confirm_one(self, pending: Pending) -> None:
        try:
            self.quorums[pending.quorum].confirm({GroupKey(GROUP, 1): pending.written}, 1)
        except StillWaiting:
            return
        except QuorumTimeout:
            self.pending.remove(pending)
            return
        self.pending.remove(pending)
        # One copy is the log's own, and is gone with it.
        demanded = pending.number >= (self.given_up + 1) * len(rows.WRITERS)
        if demanded and (pending.quorum > 1 or ACCEPTED not in self.faults.names):
            self.acknowledged.add(pending.number)
        self.invariants.acknowledged(pending.number, pending.offset, self.topic_id, pending.quorum)

    def give_up_acknowledged(self) -> None:
        """Nothing that was acknowledged until now must be there in the end."""
        self.acknowledged.clear()
        self.given_up = self.written

    # What the parts of a node ask.

    def chain_of(self, receiver: str) -> Callable[[str, str, int], bytes | None]:
        """The chain of a member, as its HTTP interface answers. See peer_source.chain_of_member."""

        def chain(url: str, _group: str, version: int) -> bytes | None:
            node = self.nodes[url]
            cut = (receiver, url) in self.world.links_cut or (url, receiver) in self.world.links_cut
            if cut or not node.started or node.process.paused:
                return None
            return node.group.chain_at(version)

        return chain

    def is_known(self, number: int) -> bool:
        """Whether a write is in the present log."""
        return number in self.truth.numbers

    def newest_batch(self, writer: str) -> int:
        """The newest batch of a writer."""
        return self._batches.get(writer, (1, 0))[0]
