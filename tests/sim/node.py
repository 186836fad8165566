"""One node of the simulation, put together from the classes that ship as `consumers.node.node` does it."""

from __future__ import annotations

import copy
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from headrace.connectors.log.topic_settings import FORWARD, STATUS
from headrace.consumers.integrity.divergence_monitor import DivergenceMonitor
from headrace.consumers.integrity.scrubber import Scrubber
from headrace.consumers.membership.cluster_topics import ClusterTopics
from headrace.consumers.membership.group_changes import groups_at
from headrace.consumers.node.data_directory import Identity
from headrace.consumers.node.group_statuses import GroupStatuses
from headrace.consumers.node.local_groups import LocalGroups
from headrace.consumers.node.log_monitor import LogMonitor
from headrace.consumers.node.log_positions import LogPositions
from headrace.consumers.node.readiness import NoTasks, Readiness
from headrace.consumers.node.recovery_environment import NodeRecoveryEnvironment
from headrace.consumers.node.settings import StoreSection
from headrace.consumers.recovery.file_copy import Snapshot, Source, SourceFailed
from headrace.consumers.recovery.supervisor import RecoverySupervisor
from headrace.consumers.replication.election import Decision
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.hash_chain import next_chain
from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.replication.journal import Journal, JournalEntry, _decode, _key
from headrace.consumers.replication.leader_tasks import LeaderTasks, LogTrimmer
from headrace.consumers.replication.log_consumer import LogConsumer
from headrace.schemas.errors import HeadraceError
from headrace.schemas.records import Role
from tests.sim import rows
from tests.sim.broker import SimLog
from tests.sim.disk import SealedRows, SimDisk
from tests.sim.parts import COSTS, SimPool, snapshot_of
from tests.sim.process import Process
from tests.sim.stubs import GROUP, TOPIC, TOPICS, SimSchemas, SimSlotTable
from tests.sim.world import NodeClock, World

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

SEAL_ROWS = 18
KEEP_RECORDS = 22
TAKE_BACK_MS = 3_000
START_RETRY_MS = 1_000


class SimTasks(NoTasks):
    """The leader's tasks alone: no table of slots changes here."""

    def __init__(self, leader: LeaderTasks) -> None:
        self._leader = leader

    def decision(self, topic: str) -> Decision:
        """See ServingTasks."""
        return self._leader.decision(topic)


class SimRecovery(NodeRecoveryEnvironment):
    """What recovery asks of its node, without HTTP."""

    def __init__(self, node: ClusterNode, local: LocalGroups) -> None:
        super().__init__(local, node.log_consumer, node.positions, node.heartbeat, threading.Event())
        self._chain_of = node.simulation.chain_of(node.name)

    def source(self, url: str, group: str) -> Source:
        """See RecoveryEnvironment; only `SimFiles.fetch` reads it."""
        return cast("Source", (url, group))

    def chain_of(self, url: str, group: str, version: int) -> bytes | None:
        """See RecoveryEnvironment."""
        return self._chain_of(url, group, version)


class SimIdentity(Identity):
    """The document of a data directory on a simulated disk. See Identity."""

    owner: ClusterNode
    disk: SimDisk

    @classmethod
    def of(cls, node: ClusterNode) -> SimIdentity:
        """The identity that the disk of a node holds, or a new one."""
        new = {"cluster": "c", "node": node.name, "store": _hex(node.world.random), "topics": {}}
        found = cls(**copy.deepcopy(node.disk.identity or new))
        found.owner, found.disk = node, node.disk
        return found

    def renew(self) -> None:
        """See Identity."""
        self.store = _hex(self.disk.random)
        self.owner.simulation.invariants.replaced(self.owner)

    def save(self, directory: Path) -> None:
        """See Identity."""
        del directory
        self.disk.step_hook("identity")
        # Even if this cannot be saved: what was found wrong is no copy any more.
        if self.wrong:
            self.owner.simulation.invariants.replaced(self.owner)
        self.disk.take_space()
        self.disk.identity = copy.deepcopy(asdict(self))


def _hex(chance: random.Random) -> str:
    return f"{chance.getrandbits(64):016x}"


class CheckedJournal(Journal):
    """A Journal that remembers for the invariants which records it has promised to hold."""

    def __init__(self, directory: Path, groups: Sequence[str], files: SimDisk, *, maintained: bool) -> None:
        super().__init__(directory, groups, files, maintained=maintained)
        # By version: the digest of the record.
        self.promised: dict[int, bytes] = {}
        self.recovered_offsets: dict[int, int] = {}
        # Not by `recovered`: entries that a copy of files has made void may leave a gap before those of use.
        for group, versions in self._recovered.items():
            for version in versions:
                entry = _decode(group, version, self._state[_key(group, version)][1])
                self.promised[version] = rows.digest(entry.value)
                self.recovered_offsets[version] = entry.offset

    def append(self, entries: Mapping[str, Sequence[JournalEntry]]) -> None:
        """See Journal."""
        super().append(entries)
        for found in entries.values():
            self.promised.update({entry.version: rows.digest(entry.value) for entry in found})

    def forget_all(self, group: str) -> None:
        """See Journal."""
        super().forget_all(group)
        self.promised.clear()


class ClusterNode:
    """One node over its restarts. `process` is the present run, the last one while the node is down."""

    journal_class = CheckedJournal
    journal: CheckedJournal
    log_consumer: LogConsumer
    heartbeat: Heartbeat
    positions: LogPositions
    readiness: Readiness
    statuses: GroupStatuses

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.simulation = simulation
        self.world: World = simulation.world
        self.name = name
        self.starts = 0
        wall_error_ms = self.world.random.choice((0, 0, 3_000, -600_000, 31_536_000_000, -31_536_000_000))
        self.clock = NodeClock(self.world, wall_error_ms)
        self.fetched: SealedRows | None = None
        self.directory = simulation.files.root / name
        self.scans = random.Random(f"{simulation.world.seed}/{name}")
        self.running = False
        self.started = False
        self.disk = SimDisk(lambda _name: None)
        self.disk.random = self.world.random
        self.process = Process(self)

    # Start and stop.

    def start(self) -> None:
        """Start a process; it is tried again while the log or the disk does not let it."""
        if self.running:
            return
        self.starts += 1
        process = self.process = Process(self)
        self.running, self.started = True, False
        self.disk.step_hook = process.step
        process.once(1, lambda: self._open(process))

    def _open(self, process: Process) -> None:
        try:
            self._build(process)
        except (HeadraceError, OSError) as error:
            process.note(f"does not start: {error}")
            self.kill(power_loss=False)
            self.world.after(START_RETRY_MS, self.start)
            return
        self.started = True
        self.simulation.invariants.started(self)
        process.note(f"starts at version {self.group.version}, sealed {self.group.store_jobs.sealed_version}")
        self._schedule(process)

    def _build(self, process: Process) -> None:
        settings, clock, directory = self.simulation.settings, self.clock, self.directory
        self.log = SimLog(self.simulation.broker, self.name, process.step)
        self.identity = SimIdentity.of(self)
        self.heartbeat = Heartbeat(
            self.log, TOPICS.status, self.name, process.incarnation, lambda: self.statuses.statuses(), clock
        )
        self.heartbeat.on_elder = lambda _http: self.simulation.invariants.require(False, f"{self.name} runs twice")
        schemas: Any = SimSchemas(self.simulation.retention_ns)
        slots: Any = SimSlotTable(self.simulation.members)
        wanted = groups_at(slots, self.name)
        local = LocalGroups(directory, self.identity, wanted, TOPICS, schemas, self.heartbeat, settings)
        topics = ClusterTopics(self.log)
        topics.ensure({TOPIC: FORWARD, TOPICS.status: STATUS})
        local.check_topics(self.log)
        self.identity.save(directory)
        local.open(lambda _line: None)
        assert isinstance(local.journal, CheckedJournal)
        self.groups, self.journal = local.groups, local.journal
        self.log_consumer = LogConsumer(
            self.log, self.name, self.groups, local.cursors, self.journal, settings, self, clock
        )
        self.log_consumer.restore(self.identity.topics, local.receipts)
        self._build_statuses(local)
        self.log_monitor = LogMonitor(
            self.log, schemas, self.groups, self.identity, self.log_consumer, self.readiness, topics, clock
        )
        trimmer = LogTrimmer(self.log, self.heartbeat, settings.log_keep_records)
        self.leader_tasks = LeaderTasks(
            self.log, self.groups, settings, self.statuses, self.heartbeat, schemas, trimmer, clock
        )
        self.readiness.tasks = SimTasks(self.leader_tasks)
        self._build_recovery(local, settings, process)

    def _build_statuses(self, local: LocalGroups) -> None:
        parts = (self.log_consumer, self.heartbeat)
        self.positions = LogPositions(self.groups, self.log_consumer, local.ends, self.clock)
        self.readiness = Readiness(self.groups, self.log, *parts, self.positions, self.identity.topics)
        self.statuses = GroupStatuses(self.identity, self.groups, *parts, self.readiness, TAKE_BACK_MS, self.clock)
        self.statuses.http_address = self.name

    def _build_recovery(self, local: LocalGroups, settings: StoreSection, process: Process) -> None:
        environment = SimRecovery(self, local)
        copies: Any = SimPool(process, (10, 500))
        self.supervisor = RecoverySupervisor(self.log, environment, settings, copies, self.clock, COSTS)
        self.divergence_monitor = DivergenceMonitor(self.log, environment, self.positions, self.supervisor, self.clock)
        self.scrubber = Scrubber(self.groups, settings, self.supervisor, self.clock)

    def _schedule(self, process: Process) -> None:
        """What the threads of a node do, in turns whose periods are drawn so that they meet in every order."""
        self.leader_tasks.prepare()
        process.every(40, 320, self.log_consumer.turn)
        process.every(40, 300, self._apply)
        process.every(80, 350, self._send)
        process.every(80, 400, self.heartbeat.receive_turn)
        process.every(100, 400, self.leader_tasks.turn)
        process.every(200, 900, self.journal.turn)
        for part in (self.supervisor, self.divergence_monitor, self.scrubber):
            part.start()
        # The log monitor also follows the schema log, which is always complete here.
        process.every(700, 1_300, self.log_monitor.turn)

    def _apply(self) -> None:
        group = self.group
        for _ in range(self.world.random.randint(1, 60)):
            # A group whose jobs are behind would wait in the middle of a record: here it waits before it.
            if group.store_jobs.full or not group.turn():
                return
            self.on_applied(group)

    def _send(self) -> float:
        now_s = self.clock.monotonic_s()
        if self.heartbeat.send_due or now_s - getattr(self, "_sent_s", 0.0) >= 0.25:
            self._sent_s = now_s
            return self.heartbeat.send_turn()
        return 0.0

    def kill(self, *, power_loss: bool) -> None:
        """The process ends; with a power loss its disk loses what was not synced."""
        if not self.running:
            return
        self.process.alive = self.running = self.started = False
        self.world.note(f"{self.process.incarnation} is killed{', the power is lost' if power_loss else ''}")
        sectors = power_loss and self.world.random.random() < 0.3
        self.disk = self.disk.restarted(power_loss=power_loss, any_sectors=sectors)
        self.disk.step_hook = lambda _name: None
        self.simulation.files.ended(self)

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self.disk = SimDisk(lambda _name: None)
        self.disk.random, self.disk.wiped_ms = self.world.random, self.world.now_ms
        self.simulation.files.wiped(self)
        self.world.note(f"{self.name} lost its disk")

    # Events of its parts.

    def on_applied(self, group: Group) -> None:
        """A record was applied."""
        self.simulation.invariants.applied(self, group)

    def on_durable(self) -> None:
        """See LogConsumerListener."""
        self.heartbeat.send_now()

    # What others see of it.

    @property
    def group(self) -> Group:
        """Its one group."""
        return self.groups[TOPIC]

    @property
    def tampered(self) -> bool:
        """Whether what it holds has another chain than its log, by a fault that `tamper` made."""
        store: Any = self.group.store
        return bool(store.tampered)

    @property
    def role(self) -> Role:
        """Its role now."""
        return self.leader_tasks.decision(TOPIC).role

    def serves(self) -> bool:
        """Whether it would answer a query now."""
        return self.started and not self.process.paused and self.readiness.ready()[0]

    def snapshot(self, receiver: str) -> tuple[Snapshot, SealedRows]:
        """Its files, for another member. Raises SourceFailed."""
        self.check_reachable(receiver)
        if self.readiness.reason(TOPIC) or self.disk.sealed.state is None:
            raise SourceFailed("the group is not in sync here", retriable=True)
        sealed = self.disk.sealed.copy()
        return snapshot_of(sealed, GROUP, self.identity.topics[TOPIC]), sealed

    def check_reachable(self, receiver: str) -> None:
        """Raises SourceFailed while another node cannot talk to this one."""
        cut = (self.name, receiver) in self.world.links_cut or (receiver, self.name) in self.world.links_cut
        if cut or not self.started or self.process.paused:
            raise SourceFailed("does not answer", retriable=True)

    def tamper(self) -> None:
        """A fault of hardware or code: from here on the chain and the content differ from the other members'."""
        group = self.group
        # A hash of it: the same change a second time would give the right chain again.
        group.replica.state.chain = next_chain(group.replica.state.chain, group.replica.state.chain)
        store: Any = group.store
        store.tampered = True
        if store.content:
            number = self.world.random.choice(sorted(store.content))
            store.content_hash ^= rows.hash_of(number, store.content.pop(number))
