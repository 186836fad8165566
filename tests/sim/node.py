"""A simulated node of one group with the production replica, election, failure detector, recovery plan and
trimming.

The layers below are simulated. A crash loses the unsynced tail of the journal. The store commits a seal some
time after its decision. Clocks are virtual, and payloads are opaque bytes.
"""

from __future__ import annotations

from collections.abc import Callable

from headrace.consumers.integrity.divergence import ChainSamples, Finding, Kind
from headrace.consumers.recovery.plan import Costs, RecoveryMethod, ReplicaPosition, plan_recovery
from headrace.consumers.replication.election import Decision, GroupView, MemberView, decide
from headrace.consumers.replication.failure_detector import OFFLINE_MS, FailureDetector
from headrace.consumers.replication.group_state import GroupState
from headrace.consumers.replication.hash_chain import content_digest, next_chain, record_digest
from headrace.consumers.replication.leader_tasks import trim_before
from headrace.consumers.replication.replica import ApplyWrite, Replica, SealNow
from headrace.schemas.messages import Anchor, Body, Claim, Message, ProducerPosition, Seal, encode_message
from headrace.schemas.receipts import RECEIPT_BYTES, receipt_of
from headrace.schemas.records import Role, Status
from tests.sim.disk import Disk
from tests.sim.world import SimRecord, World

GROUP = "g"
HEADERS = (("format", b"1"),)
SEAL_ROWS = 40
TAKE_BACK_MS = 8_000
SAMPLE_INTERVAL = 16
RECEIPTS_MAX = 256
COSTS = Costs(log_bytes_per_second=1e4, file_bytes_per_second=1e6, worth_s=0.5)


class SimNode:
    """One node. `running` is False between a kill and the restart, `paused` between SIGSTOP and SIGCONT."""

    def __init__(self, world: World, name: str, members: tuple[str, ...], peers: dict[str, SimNode]) -> None:
        self.world = world
        self.name = name
        self.members = members
        self.peers = peers
        self.disk = Disk()
        self.running = False
        self.paused = False
        self.generation = 0
        self.served: list[tuple[int, int]] = []

    # Start and stop.

    def start(self) -> None:
        """Recover from the disk: the last seal, then the journal beyond it."""
        self.generation += 1
        self.running, self.paused = True, False
        self.incarnation = f"{self.name}#{self.generation}"
        state = GroupState.from_bytes(self.disk.state) if self.disk.state else GroupState()
        self.replica = Replica(self.members, state)
        self.visible = dict(self.disk.sealed)
        self.sealed_version, self.sealed_offset = state.frontier, state.offset
        self.sealed_log_bytes = state.log_bytes
        self.samples, self.chains, self.sample = ChainSamples(self.name), {state.version: state.chain}, (0, bytes(16))
        self.excluded: set[str] = set()
        self.digested: tuple[dict[str, int], bytes] = ({}, content_digest({}))
        self.divergence, self.tampered = "", self.disk.tampered
        self.trusted: frozenset[str] | None = None
        self.unsynced: list[SimRecord[bytes]] = []
        self.receipts = b""
        self.status_end = self.world.status.end
        self.detector, self.status_offset = FailureDetector(), max(self.world.status.begin, self.status_end - 200)
        self.read_back_ms = -OFFLINE_MS
        self.decision = Decision(Role.UNSYNCED, False)
        self.follower_since_ms: int | None = None
        self.reached_end = False
        self.copying = False
        self.claimed_ms = -1_000_000
        self.batch = 0
        self.pending_append = (-1, -1, -1)
        for version in sorted(version for version in self.disk.journal if version > state.version):
            self._apply(self.disk.journal[version])
        self.durable_version = self.replica.state.version
        self.durable_offset = self.replica.state.offset
        self.target = self.world.forward.end
        self.world.note(
            f"{self.incarnation} starts at version {self.replica.state.version}, sealed {self.sealed_version}"
        )
        for period_ms, task in (
            (50, self._poll),
            (250, self._send_statuses),
            (80, self._receive_statuses),
            (150, self._leader_tasks),
            (1_000, self._trim),
            (400, self._compare_members),
        ):
            self._schedule(period_ms, task)

    def kill(self) -> None:
        """SIGKILL: every unsynced record is lost."""
        self.running = False
        self.generation += 1
        self.world.note(
            f"{self.name} is killed at version {self.replica.state.version}, {len(self.unsynced)} records unsynced"
        )

    def wipe(self) -> None:
        """Replace the disk by an empty one."""
        self.disk = Disk(wiped_ms=self.world.now_ms)
        self.world.note(f"{self.name} lost its disk")

    def _schedule(self, period_ms: int, task: Callable[[], None]) -> None:
        generation = self.generation

        def run() -> None:
            if self.generation != generation:
                return
            if not self.paused:
                task()
            self.world.after(period_ms * self.world.random.uniform(0.5, 1.5), run)

        # Random periods and first delays, so that the tasks of all nodes interleave in every order.
        self.world.after(self.world.random.uniform(1, period_ms), run)

    # The path of a record: poll, journal, sync, apply.

    def _poll(self) -> None:
        # As the log consumer: no poll before the records of the previous poll are durable.
        if self.name in self.world.reads_cut or self.unsynced or self.copying:
            return
        next_offset = self.durable_offset + 1
        state, begin = self.replica.state, self.world.forward.begin
        wrong, trusted = bool(self.disk.wrong), self.trusted if self.disk.wrong else None
        position = ReplicaPosition(
            self.name, next_offset, begin, state.version, state.log_bytes, wrong, trusted, begin == 0
        )
        live = [status for status in self.detector.live(GROUP, self.members) if status.node not in self.excluded]
        plan = plan_recovery(position, live, COSTS)
        if plan.method is RecoveryMethod.FILES and (position.wrong or next_offset < begin or not self.reached_end):
            self._copy_from(plan.source)
            self.reached_end = False
            return
        if plan.method is RecoveryMethod.REBUILD:
            self._replace(Disk(full=self.disk.full, wiped_ms=self.disk.wiped_ms), "no data, for a rebuild from the log")
            return
        if plan.method is RecoveryMethod.WAIT:
            self.reached_end = False
            return
        records = self.world.forward.read(next_offset, self.world.random.randint(1, 40))
        if not records:
            self.reached_end = True
            return
        if self.disk.full:
            return
        self.unsynced = records
        generation = self.generation
        self.world.after(self.world.random.uniform(1, 15), lambda: self._synced(generation))

    def _synced(self, generation: int) -> None:
        if self.generation != generation:
            return
        # A process that was paused in the middle of a sync continues there, with records that are old by
        # then.
        if self.paused:
            self.world.after(50, lambda: self._synced(generation))
            return
        for record in self.unsynced:
            self.durable_version += 1
            self.disk.journal[self.durable_version] = record
            self.durable_offset = record.offset
            self.receipts += receipt_of(record.offset, record_digest(record.value))
            self.receipts = self.receipts[-RECEIPTS_MAX * RECEIPT_BYTES :]
            self._apply(record)
        self.unsynced = []

    def _apply(self, record: SimRecord[bytes]) -> None:
        epoch = self.replica.state.epoch
        for action in self.replica.apply(record.offset, record.value, HEADERS):
            if isinstance(action, ApplyWrite):
                self.visible[action.write.rows.decode()] = action.version
            elif isinstance(action, SealNow):
                self._seal(action, record.offset)
        if self.replica.state.epoch != epoch:
            self.claimed_ms = record.timestamp_ms
        state = self.replica.state
        self.chains[state.version] = state.chain
        if state.version % SAMPLE_INTERVAL == 0:
            self.sample = (state.version, state.chain)

    def _seal(self, action: SealNow, offset: int) -> None:
        """Commit some time later, all or nothing; then drop the journal records that the segments hold."""
        generation, content, log_bytes = self.generation, dict(self.visible), self.replica.state.log_bytes
        tampered = self.tampered

        def commit() -> None:
            # A commit of a killed process must not reach the disk of the restarted one.
            if self.generation != generation or self.disk.full or action.version <= self.sealed_version:
                return
            self.disk.state, self.disk.sealed, self.disk.tampered = action.state, content, tampered
            self.sealed_version, self.sealed_offset, self.sealed_log_bytes = action.version, offset, log_bytes
            for version in [version for version in self.disk.journal if version <= action.version]:
                del self.disk.journal[version]

        self.world.after(self.world.random.uniform(5, 400), commit)

    def _copy_from(self, source: str) -> None:
        """Copy another member's files, which replace the node's own only when they are complete."""
        self.copying = True
        generation = self.generation

        def finish() -> None:
            if self.generation != generation:
                return
            self.copying = False
            peer = self.peers[source]
            cut = (self.name, source) in self.world.links_cut or (source, self.name) in self.world.links_cut
            if not peer.running or peer.paused or cut or peer.disk.state is None:
                self.world.note(f"{self.name} could not copy from {source}")
                return
            copied = GroupState.from_bytes(peer.disk.state)
            # The source may not know yet that its data is wrong, so the copy is compared with a complete log.
            log_is_complete = self.world.forward.begin == 0
            if log_is_complete and copied.chain != self._chain_of_log(copied.version):
                self.world.note(f"{self.name} rejects the files of {source}: their chain is not that of the log")
                self.excluded.add(source)
                return
            if peer.disk.wrong or peer.disk.corrupted:
                self.world.note(f"{source} refuses its files to {self.name}")
                return
            copy = Disk(
                state=peer.disk.state,
                sealed=dict(peer.disk.sealed),
                full=self.disk.full,
                wiped_ms=self.disk.wiped_ms,
                tampered=peer.disk.tampered,
            )
            self._replace(copy, f"the files of {source}")

        self.world.after(self.world.random.uniform(50, 3_000), finish)

    def _replace(self, disk: Disk, content: str) -> None:
        """Restart on other data."""
        self.disk = disk
        self.world.note(f"{self.name} restarts on {content}")
        self.generation += 1
        self.start()

    # Divergence.

    def tamper(self) -> None:
        """Simulate a fault of hardware or code: from here on the chain and the content differ from the other
        members'.
        """
        self.tampered = True
        self.replica.state.chain = record_digest(self.replica.state.chain)
        if self.visible:
            del self.visible[self.world.random.choice(sorted(self.visible))]

    def mark_wrong(self, why: str, trusted: frozenset[str] | None = None) -> None:
        """As headrace.consumers.recovery.supervisor: the mark stays on the disk until the data was
        replaced.
        """
        if not self.disk.wrong:
            self.world.note(f"{self.name} holds wrong data: {why}")
            self.disk.wrong, self.trusted = why, trusted
            self.disk.wiped_ms = self.world.now_ms
            self.reached_end = False

    def _compare_members(self) -> None:
        """As divergence_monitor and scrubber of headrace.consumers.integrity.

        While the log is complete, its chain decides which member is right.
        """
        # The scrubber reaches a file some time after its corruption.
        if self.disk.corrupted and self.world.random.random() < 0.3:
            self.mark_wrong("a file has changed")
        if self.disk.wrong or self.copying or not self.reached_end:
            return
        for status in self.detector.live(GROUP, self.members):
            if status.node != self.name or status.store == self._store():
                self.samples.observe(status)
        dispute = self.samples.dispute(self.chains.get)
        if dispute is None:
            self.divergence = ""
            return
        log_is_complete = self.world.forward.begin == 0
        truth = self._chain_of_log(dispute.version) if log_is_complete and dispute.kind is Kind.RECORDS else None
        finding = dispute.judge(len(self.members), truth)
        if finding is Finding.RIGHT:
            self.samples.dismiss(dispute)
            self.divergence = ""
        elif finding is Finding.WRONG or (dispute.kind is Kind.FILES and log_is_complete):
            self.mark_wrong(str(dispute), dispute.right(len(self.members), truth))
        else:
            self.divergence = str(dispute)

    def _chain_of_log(self, version: int) -> bytes:
        chain = bytes(16)
        for record in self.world.forward.records[:version]:
            chain = next_chain(chain, record_digest(record.value))
        return chain

    def _store(self) -> str:
        """Identity of the data. It may change with every start as well as with every replacement."""
        return f"{self.name}/{self.generation}"

    # Heartbeats.

    def _reason(self) -> str:
        if self.disk.wrong or self.divergence:
            return self.disk.wrong or self.divergence
        if self.disk.full:
            return "disk full"
        return "" if self.reached_end and not self.copying else "recovering"

    def _send_statuses(self) -> None:
        state = self.replica.state
        status = Status(
            node=self.name,
            incarnation=self.incarnation,
            store=self._store(),
            http="",
            flight="",
            group=GROUP,
            topic_id="t",
            role=self.decision.role,
            eligible=not self._reason(),
            epoch=state.epoch,
            version=state.version,
            offset=state.offset,
            position=state.offset + 1,
            durable_offset=-1 if self.disk.wrong else self.durable_offset,
            sealed_version=0 if self.disk.wrong else self.sealed_version,
            sealed_offset=-1 if self.disk.wrong else self.sealed_offset,
            chain_version=self.sample[0],
            chain=self.sample[1],
            stored_version=self.sealed_version if self.reached_end else -1,
            content=self._content(),
            sealed_log_bytes=self.sealed_log_bytes,
            segment_bytes=0,
            log_lost=False,
            recovery_done=0,
            recovery_total=0,
            format=1,
            reason=self._reason(),
            sent_boot_ns=self.world.now_ms,
            receipts=self.receipts,
        )
        self.world.send(self.name, self.world.status, status)

    def _content(self) -> bytes:
        if self.disk.sealed is not self.digested[0]:
            sealed = self.disk.sealed
            self.digested = (sealed, content_digest({write: str(version) for write, version in sealed.items()}))
        return self.digested[1]

    def _receive_statuses(self) -> None:
        if self.name in self.world.reads_cut:
            return
        for record in self.world.status.read(self.status_offset, 1_000):
            status = record.value
            received_ms = self.world.now_ms if record.offset >= self.status_end else None
            self.detector.observe(record.timestamp_ms, status, received_ms)
            self.status_offset = record.offset + 1
            if status.node == self.name and status.incarnation == self.incarnation:
                self.read_back_ms = max(self.read_back_ms, status.sent_boot_ns)

    # Roles and leader tasks.

    def fenced(self) -> bool:
        """See headrace.consumers.replication.heartbeat."""
        return self.world.now_ms - self.read_back_ms >= OFFLINE_MS

    def serves(self) -> bool:
        """Whether the node would answer a query now."""
        return (
            self.running
            and not self.paused
            and not self.fenced()
            and self.decision.role is not Role.UNSYNCED
            and not self._reason()
        )

    def view(self) -> GroupView:
        """As headrace.consumers.node.readiness builds it."""
        steady = 0 if self.follower_since_ms is None else self.world.now_ms - self.follower_since_ms
        return GroupView(
            members=tuple(self._member(node) for node in self.members),
            node=self.name,
            leader=self.replica.state.leader,
            claim_age_ms=self.detector.newest_ms - self.claimed_ms,
            log_answers=self.name not in self.world.reads_cut,
            fenced=self.fenced(),
            steady_ms=steady,
            take_back_ms=TAKE_BACK_MS,
        )

    def _member(self, node: str) -> MemberView:
        if node == self.name:
            epoch = self.replica.state.epoch
            return MemberView(node, self.incarnation, not self.fenced(), not self._reason(), epoch)
        status = self.detector.status(GROUP, node)
        if status is None:
            return MemberView(node, "", False, False, 0)
        return MemberView(node, status.incarnation, self.detector.alive(GROUP, node), status.eligible, status.epoch)

    def _leader_tasks(self) -> None:
        before, self.decision = self.decision, decide(self.view())
        if self.decision.role is not before.role:
            self.world.note(f"{self.incarnation} is {self.decision.role} {self.decision.reason}")
        if self.decision.role is not Role.FOLLOWER:
            self.follower_since_ms = None
        elif self.follower_since_ms is None:
            self.follower_since_ms = self.world.now_ms
        state = self.replica.state
        pending = (
            self.pending_append[:2] == (state.epoch, state.frontier) and self.world.now_ms < self.pending_append[2]
        )
        if pending:
            return
        leadership = self.decision.leadership
        if leadership is None:
            return
        if self.decision.claim:
            self._append(Claim(leadership, self._anchor(), SEAL_ROWS, 1 << 30))
        elif state.unsealed_rows and self.world.random.random() < 0.05:
            self._append(Seal(leadership, self._anchor()))
        else:
            return
        self.pending_append = (state.epoch, state.frontier, self.world.now_ms + 5_000)

    def _anchor(self) -> Anchor:
        state = self.replica.state
        return Anchor(state.offset, state.version, state.chain)

    def _append(self, body: Body) -> None:
        self.batch += 1
        self.world.note(f"{self.incarnation} appends {type(body).__name__}")
        value = encode_message(Message(ProducerPosition(self.incarnation, self.batch, 0), body))
        self.world.send(self.name, self.world.forward, value)

    def _trim(self) -> None:
        if self.decision.role is Role.LEADER and self.world.trims:
            live = self.detector.live(GROUP, self.members)
            before = trim_before(live, self.members, self.sealed_offset, self.world.forward.end - 30)
            if before > self.world.forward.begin:
                self.world.note(f"{self.name} trims below offset {before}")
                self.world.forward.trim(before)
