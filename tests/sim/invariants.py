"""What must hold in every schedule, checked at every record, status, answer and acknowledgement."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NamedTuple

from headrace.consumers.replication.actions import Ignored
from headrace.consumers.replication.failure_detector import OFFLINE_MS
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import State
from headrace.consumers.replication.group_state import LogBase
from headrace.consumers.replication.hash_chain import next_chain
from headrace.consumers.wal import LogDamaged
from headrace.schemas.receipts import end_of, receipt_of
from headrace.schemas.records import Role, Status
from tests.sim import rows
from tests.sim.disk import SimDisk, sealed_state
from tests.sim.memory_limits import MemoryLimits
from tests.sim.node import KEEP_RECORDS, CheckedJournal, ClusterNode
from tests.sim.stubs import GROUP, TOPIC, TOPICS
from tests.sim.world import EPOCH_MS, InvariantBroken

if TYPE_CHECKING:
    from tests.sim.simulation import Simulation

DISK_IMAGES = 0.05
"""Acknowledgements whose copies are looked for on images of the disks; of the others the bookkeeping counts."""


MAJORITY_MS = 2 * OFFLINE_MS
"""A node decides by statuses up to 3 s old, and a decision holds for up to 3 s."""
DECIDED_BY_MS = OFFLINE_MS + 2_000
"""How old the statuses may be by which a leader appended the record that arrives now."""


_NONE: Mapping[Ignored, int] = {}


class Promise(NamedTuple):
    """What a node has confirmed: an offset, and the version there (or an earlier one), of a log that begins at `base`."""

    offset: int = -1
    version: int = 0
    base: LogBase = LogBase()

    def kept(self, version: int, offset: int, base: LogBase) -> bool:
        """Whether a state has what was confirmed. Behind a gap offsets are those of another history."""
        return offset >= self.offset if base == self.base else version >= self.version


NOTHING = Promise()


class Invariants:
    """Checks one schedule. The truth about a log is `Truth`, which shares no decision with the code under test."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation
        self._world = simulation.world
        self._truth = simulation.truth
        self._ignored: dict[str, tuple[Group, Mapping[Ignored, int]]] = {}
        self._served: dict[str, int] = {}
        # By node and topic id: an offset of one log means nothing in another.
        self._promises: dict[tuple[str, str], Promise] = {}
        self._statuses_read = 0
        self._sent_ms: dict[str, int] = {}
        self._newest: dict[str, tuple[int, Status]] = {}
        self._newest_ms = 0
        self._fresh_since_ms: dict[str, int] = {}
        self._arrived_ms: dict[str, int] = {}
        self.stale_reads = 0
        self._condemned: set[str] = set()
        self._down: dict[str, tuple[SimDisk, dict[int, bytes] | None]] = {}
        self._limits = MemoryLimits(simulation.settings)

    def require(self, holds: bool, violation: str) -> None:
        """Raises InvariantBroken with the last events; again behind the event, which a thread may log and survive."""
        if not holds:
            tail = "\n".join(self._world.lines[-40:])
            broken = InvariantBroken(f"seed {self._world.seed}, {self._world.now_ms} ms: {violation}\n{tail}")
            self._world.broken = self._world.broken or broken
            raise broken

    # Records.

    def applied(self, node: ClusterNode, group: Group) -> None:
        """A group has applied one more record: chain, leader, content and what it ignores are those of the log."""
        store: Any = group.store
        if group.health.holds(State.STOPPED) or store.tampered:
            return
        applied, name = group.applied, f"{node.process.incarnation} at version {group.version}"
        self.require(not (over := self._limits.exceeded(node)), f"{name} holds more than its limits: {over}")
        before_group, before = self._ignored.get(node.name, (None, _NONE))
        if before_group is not group:
            before = _NONE
        ignored, now = _NONE, group.replica.ignored
        if before != now:
            ignored = Counter(now) - Counter(before)
        if before_group is not group or ignored:
            self._ignored[node.name] = group, dict(now)
        truth = self._truth.by_chain.get(applied.chain)
        self.require(truth is None or truth.ignored != "too_new", f"{name} passes a record of a later build")
        self.require(truth is not None and truth.version == applied.version, f"{name} holds another log's records")
        assert truth is not None
        reason = next(iter(ignored), "")
        self.require(reason == truth.ignored, f"{name} ignores {reason or 'nothing'}, the log gives {truth.ignored}")
        self.require(applied.leader == truth.leader, f"{name} sees {applied.leader} lead, not {truth.leader}")
        self.require(applied.frontier == truth.frontier, f"{name} seals at {applied.frontier}, not {truth.frontier}")
        # A copy, or a restart, of files that a Drop or merge behind their state has shrunk: nobody reads
        # before that record, see `_has_all_of_its_files`.
        ahead = applied.version < node.disk.sealed.ahead_version
        self.require(ahead or store.matches(truth), f"{name} holds other rows than its log")

    # Statuses.

    def statuses(self) -> None:
        """Take the statuses that reached the broker: what they promise must outlive every crash."""
        records = self._simulation.broker.topics[TOPICS.status].records
        for record in records[self._statuses_read :]:
            status = rows.decoded_status(record.value)
            self._newest_ms = max(self._newest_ms, record.timestamp_ms)
            before = self._newest.get(status.node)
            same = (
                before is not None and before[1].store == status.store and before[1].incarnation == status.incarnation
            )
            if before is None or not same or record.timestamp_ms - before[0] > OFFLINE_MS // 2:
                self._fresh_since_ms[status.node] = self._world.now_ms
            self._newest[status.node] = (record.timestamp_ms, status)
            self._arrived_ms[status.node] = self._world.now_ms
            self.require(
                status.role is not Role.LEADER or self._was_accepted(status),
                f"{status.incarnation} shows itself as leader in epoch {status.epoch}, and the log has no such claim",
            )
            node = self._simulation.nodes[status.node]
            if node.started and node.group.health.is_wrong:
                self._condemned.add(node.identity.store)
            if node.process.incarnation == status.incarnation:
                boot_ms = node.clock.boot_ns() // 1_000_000 - self._world.now_ms
                sent_ms, newest_ms = status.sent_boot_ns // 1_000_000 - boot_ms, self._sent_ms.get(status.node, 0)
                self._sent_ms[status.node] = max(newest_ms, sent_ms)
                current = node.started and status.store == node.identity.store
                # A repeat that a newer one has overtaken promises nothing else, and before a gap in another history.
                if current and sent_ms >= newest_ms:
                    self._promise(node, status)
        self._statuses_read = len(records)
        self._drops()

    def _promise(self, node: ClusterNode, status: Status) -> None:
        """Note what a status has confirmed."""
        known, base = self._promises.get((status.node, status.topic_id), NOTHING), node.group.replica.state.base
        durable, version = node.log_consumer.durable_offset(TOPIC), node.log_consumer.durable_version(TOPIC)
        # One that was sent before its node passed a gap, and arrives behind that, has the offset of another history.
        newer = status.durable_offset > known.offset if base == known.base else status.durable_offset <= durable
        if newer:
            exact = status.durable_offset == durable
            self._promises[status.node, status.topic_id] = Promise(
                status.durable_offset, version if exact else known.version, base
            )

    def _drops(self) -> None:
        """What was dropped was old by the true time: some clocks are a year ahead."""
        for drop in self._truth.drops:
            age_ns = (EPOCH_MS + self._world.now_ms) * 1_000_000 - drop.before_ns
            # By the clock at the newest status that its leader had read: one up to 3 s old, and the Drop was on its way.
            since_ms = self._world.now_ms - DECIDED_BY_MS
            broker_ns = self._simulation.broker.most_error_ms(since_ms) * 1_000_000
            self.require(age_ns + broker_ns >= rows.RETENTION_NS, f"rows are dropped at an age of {age_ns / 1e9:.1f} s")
        self._truth.drops.clear()

    def _was_accepted(self, status: Status) -> bool:
        # Of any history: a leader of a log that was lost does not know it yet.
        return (status.node, status.incarnation) in self._truth.claimants

    def forget(self, name: str) -> None:
        """The disk of a node is replaced: nothing that it promised holds any more."""
        self._void(name)
        self._served.pop(name, None)

    def started(self, node: ClusterNode) -> None:
        """A process has read its disk: every record that a status reported as durable must be there."""
        self._sent_ms.pop(node.name, None)
        group, promised = node.group, self._promised(node)
        found = node.log_consumer.durable_offset(TOPIC)
        # A group that stops at a record of its journal follows nothing, and the journal keeps what it holds.
        stopped = group.health.holds(State.STOPPED)
        excused = group.health.conditions.recovery is not None or node.identity.wrong or stopped
        kept = promised.kept(node.log_consumer.durable_version(TOPIC), found, group.replica.state.base)
        self.require(
            kept or bool(excused),
            f"{node.process.incarnation} starts at offset {found}, and had reported {promised} as durable {group.health.reason}",
        )

        unshown = self._unshown(node)
        self.require(
            not unshown or bool(excused),
            f"{node.process.incarnation} shows no receipts of the journaled versions {unshown}",
        )

    @staticmethod
    def _unshown(node: ClusterNode) -> list[int]:
        """The versions that only the journal of a process that has just started holds, without a receipt."""
        stored, shown = sealed_state(node.disk.sealed.state).version, node.log_consumer.receipts(TOPIC)
        return [
            version
            for version, offset in node.journal.recovered_offsets.items()
            if version in node.journal.promised
            and stored < version <= node.log_consumer.durable_version(TOPIC)
            and not end_of(receipt_of(offset, node.journal.promised[version]), shown)
        ]

    def replaced(self, node: ClusterNode) -> None:
        """A node's data was found wrong, or replaced: its earlier statuses are void as soon as the others know."""
        self._void(node.name)
        node.disk.wiped_ms = self._world.now_ms

    # Acknowledgements.

    def acknowledged(self, number: int, offset: int, topic_id: str, quorum: int) -> None:
        """A write was acknowledged: so many members hold it now, in that log."""
        if quorum < 2:
            return
        images = self._world.random.random() < DISK_IMAGES
        written = self._truth.written.get((number, offset))
        self.require(
            written is not None and written.topic_id == topic_id,
            f"write {number} was acknowledged at offset {offset} of {topic_id}, where it never was",
        )
        assert written is not None
        digest, uncounted = self._truth.digests[number, offset], self._truth.uncounted.get((number, offset))
        # A member that was behind the cut all the time counts the log as it is, until it reads that a gap was
        # accepted. The record, and all that the log has before it, are on its disk as well.
        copies = [(each.version, next_chain(each.before, digest)) for each in (written, uncounted) if each is not None]
        holders = [
            node.name
            for node in self._simulation.nodes.values()
            if self._is_there(node)
            and (self._excused(node) or any(self._holds(node, *copy, images) for copy in copies))
        ]
        self.require(
            len(holders) >= quorum,
            f"write {number} at offset {offset} was acknowledged with {quorum} copies, {holders} hold it "
            f"(looked for on {'images of the disks' if images else 'the disks'})",
        )

    def _is_there(self, node: ClusterNode) -> bool:
        """Whether a member has sent statuses as the others did: one that is away is no copy, whatever it held."""
        newest_ms = max(self._arrived_ms.values(), default=0)
        return newest_ms - self._arrived_ms.get(node.name, -MAJORITY_MS) < MAJORITY_MS

    def _excused(self, node: ClusterNode) -> bool:
        """Whether a node may count although its disk does not hold what it has reported."""
        # A fault of hardware or code that nobody has noticed yet: no member can know better.
        tampered = node.disk.sealed.tampered or (node.started and node.tampered)
        return tampered or self._recently_wiped(node)

    def _recently_wiped(self, node: ClusterNode) -> bool:
        # A status is up to 3 s old and arrives with a delay: a disk that was lost since did hold the record.
        return node.disk.wiped_ms > self._world.now_ms - OFFLINE_MS - 2_000

    def _holds(self, node: ClusterNode, version: int, chain: bytes, images: bool) -> bool:
        """Whether the disk of a node holds a record and all before it: the chain there is that of the log."""
        disk = node.disk
        if node.started and not images:
            promised = node.journal.promised
        else:
            disk = node.disk.power_loss_image() if images else node.disk.restarted_image()
            found_on_disk = self._promised_on(node, disk, images)
            if found_on_disk is None:
                return False
            promised = found_on_disk
        sealed = sealed_state(disk.sealed.state)
        found = sealed.chain
        for back in range(sealed.version, version, -1):
            known = self._truth.by_chain.get(found)
            if known is None or known.version != back:
                return False
            found = known.before
        for wanted in range(sealed.version + 1, version + 1):
            if wanted not in promised:
                return False
            found = next_chain(found, promised[wanted])
        return found == chain

    def _promised_on(self, node: ClusterNode, disk: SimDisk, images: bool) -> dict[int, bytes] | None:
        """What the journal on an image of a disk holds, None for a damaged one."""
        # A node that is down changes nothing: its journal is read once.
        known = self._down.get(node.name)
        if not images and not node.running and known is not None and known[0] is node.disk:
            return known[1]
        promised: dict[int, bytes] | None = None
        with suppress(LogDamaged):
            journal = CheckedJournal(node.directory / "journal", (GROUP,), disk, maintained=False)
            promised = journal.promised
            journal.close()
        if not images and not node.running:
            self._down[node.name] = node.disk, promised
        return promised

    # Trimming.

    def trimmed(self, node: str, topic: str, before: int) -> None:
        """A leader deletes the beginning of the log: every live member, and a majority, has it in files."""
        assert topic == TOPIC
        behind = [
            each
            for each in self._simulation.nodes.values()
            if not self._recently_wiped(each) and self._sealed_offset(each) + 1 < before
        ]
        live = [each.name for each in behind if each.started and self._is_known_as_live(each)]
        # One that was stopped between its decision and the call decided by what it knew before.
        if self._world.now_ms - self._simulation.nodes[node].process.resumed_ms < 500:
            live = []
        self._world.note(f"{node} trims below offset {before}")
        end = self._simulation.broker.topics[TOPIC].end
        self.require(end - before >= KEEP_RECORDS, f"{node} trims below offset {before} of {end}, inside the window")
        self.require(not live, f"{node} trims below offset {before}, which live members {live} have not in files")
        members = self._simulation.members
        self.require(
            2 * len(behind) < len(members) or (len(members) == 1 and not behind),
            f"{node} trims below offset {before}, which a majority has not in files",
        )

    def _is_known_as_live(self, node: ClusterNode) -> bool:
        """Whether every leader must have read by now that a member is there, with these files."""
        timestamp_ms, status = self._newest.get(node.name, (0, None))
        # Nobody reads a status while the broker, which has just restarted, has no topics.
        readable_ms = max(self._fresh_since_ms.get(node.name, 0), self._simulation.broker.hidden_until_ms)
        return (
            status is not None
            and self._newest_ms - timestamp_ms < OFFLINE_MS // 2
            and self._world.now_ms - readable_ms > 1_000
            and node.identity.store == status.store
        )

    @staticmethod
    def _sealed_offset(node: ClusterNode) -> int:
        return sealed_state(node.disk.sealed.state).offset if node.disk.sealed.state else -1

    # Answers.

    def due(self, node: ClusterNode) -> tuple[int, Promise]:
        """What an answer which begins now must reach: the version of earlier answers, and what is confirmed."""
        return self._served.get(node.name, 0), self._promised(node)

    def _promised(self, node: ClusterNode) -> Promise:
        return self._promises.get((node.name, node.identity.topics[TOPIC]), NOTHING)

    def _void(self, name: str) -> None:
        self._promises = {key: promise for key, promise in self._promises.items() if key[0] != name}

    def answer_begins(self, node: ClusterNode) -> None:
        """A node accepts a query: none of a fenced process, none on data that was found wrong."""
        self.statuses()
        name = node.process.incarnation
        self.require(
            node.identity.store not in self._condemned, f"{name} serves data that was found wrong and never replaced"
        )
        self.require(not node.log_consumer.journal_fault, f"{name} serves, and its journal refuses records")
        self._has_all_of_its_files(node)
        age_ms = self._world.now_ms - self._sent_ms.get(node.name, -OFFLINE_MS)
        self.require(age_ms <= OFFLINE_MS, f"{name} serves, and its newest status in the log is {age_ms} ms old")
        members = self._simulation.members
        senders = [each for each in members if self._world.now_ms - self._arrived_ms.get(each, -60_000) < MAJORITY_MS]
        # With an even number of members the log counts as one more, online while it answers.
        self.require(
            2 * (len(senders) + (len(members) % 2 == 0)) > len(members),
            f"{name} serves, and only {senders} send statuses",
        )

    def _has_all_of_its_files(self, node: ClusterNode) -> None:
        """Files that lack rows of a Drop or delete are not read before their node has that record."""
        version, files = node.group.version, node.disk.sealed.ahead_version
        self.require(
            version >= files, f"{node.process.incarnation} answers at version {version} from files of version {files}"
        )

    def answered(self, node: ClusterNode, found: tuple[int, int], due: tuple[int, Promise]) -> None:
        """An answer is released: it is not older than an earlier one, nor than what its node had confirmed."""
        name = node.process.incarnation
        self.answer_begins(node)
        kept = due[1].kept(*found, node.group.replica.state.base)
        self.require(kept, f"{name} answers at offset {found[1]}, and had confirmed {due[1]}")
        self.require(found[0] >= due[0], f"{name} answers at version {found[0]}, and had answered at {due[0]}")
        self._served[node.name] = max(found[0], self._served.get(node.name, 0))

    def read_stale(self, node: ClusterNode) -> None:
        """A client allows any age: an answer has all that the log had at the moment that the answer names."""
        if not node.started or node.process.paused or node.readiness.objections():
            return
        moment, name, version = node.readiness.as_of(), node.process.incarnation, node.group.version
        if moment is None:
            return
        at_ms = self._world.now_ms - round(moment.age_s * 1_000)
        held, end = node.group.applied.offset + 1, self._simulation.broker.end_before(TOPIC, at_ms)
        self.require(held >= end, f"{name} answers as of {at_ms} ms with offsets below {held}, the log ended at {end}")
        self._has_all_of_its_files(node)
        served = self._served.get(node.name, 0)
        self.require(version >= served, f"{name} answers from version {version}, and has served {served}")
        self.stale_reads += not node.serves()

    # The end.

    def converged(self) -> bool:
        """Whether every member serves everything, under the preferred leader."""
        return not self.missing()

    def missing(self) -> str:
        """What keeps the cluster from being whole, empty when nothing does."""
        for node in self._simulation.nodes.values():
            if not node.serves():
                return f"{node.name} does not serve: {node.readiness.ready()[1] if node.started else 'down'}"
            if node.group.version != self._truth.version:
                return f"{node.name} is at version {node.group.version} of {self._truth.version}"
            if node.group.applied.chain != self._truth.chain:
                return f"{node.name} holds another log"
        leading = [node for node in self._simulation.nodes.values() if node.role is Role.LEADER]
        if [node.name for node in leading] != [self._simulation.members[0]]:
            return f"leaders: {[node.name for node in leading]}"
        leader = self._truth.leader
        if leader is None or leader.incarnation != leading[0].process.incarnation:
            return f"{leading[0].process.incarnation} leads without the newest claim, which is {leader}"
        rotten = [node.name for node in self._simulation.nodes.values() if node.disk.sealed.rotten]
        return f"rotten files at {rotten}" if rotten else ""

    def check_end(self) -> None:
        """Everything that was acknowledged is there, in every member, on its disk too."""
        for node in self._simulation.nodes.values():
            store: Any = node.group.store
            self.require(store.holds(self._truth.content), f"{node.name} holds other rows than the log")
        lost = [number for number in self._simulation.acknowledged if not self._simulation.is_known(number)]
        self.require(not lost, f"acknowledged writes are in no log: {lost[:5]}")
