"""A simulated node of one group, made of the pieces a real one is made of: replica, roles, status board, recovery and trimming.

What is simulated is what those pieces stand on: a journal whose unsynced tail is lost in a crash, a store that commits a seal some time after it was
decided, and clocks. Payloads are opaque bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from consumers.replication.chain import content_digest, next_chain, record_digest
from consumers.replication.divergence import Finding, Kind, Marks
from consumers.replication.recovery import Costs, Need, Way, plan_recovery, trim_before
from consumers.replication.replica import ApplyWrite, Replica, SealNow
from consumers.replication.roles import Decision, GroupView, MemberView, decide
from consumers.replication.state import GroupState
from consumers.replication.status import OFFLINE_MS, StatusBoard
from schemas.messages import Anchor, Body, Claim, Leadership, Message, ProducerPosition, Seal, encode_message
from schemas.records import Role, Status
from tests.sim.world import SimRecord, World

GROUP = "g"
HEADERS = (("format", b"1"),)
SEAL_ROWS = 40
TAKE_BACK_MS = 8_000
MARK_INTERVAL = 16
COSTS = Costs(log_bytes_per_second=1e4, file_bytes_per_second=1e6, worth_s=0.5)


@dataclass(slots=True)
class Disk:
    """What survives a crash: synced journal records by version, and the last committed seal with the writes it holds."""

    journal: dict[int, SimRecord[bytes]] = field(default_factory=dict)
    state: bytes | None = None
    sealed: dict[str, int] = field(default_factory=dict)
    full: bool = False
    wiped_ms: int = -1_000_000
    wrong: str = ""
    rotted: bool = False
    tampered: bool = False

    def durable_offset(self) -> int:
        """Newest offset such that everything up to it is on this disk, and right as far as is known."""
        if self.wrong:
            return -1
        newest = max(self.journal, default=0)
        if newest:
            return self.journal[newest].offset
        return GroupState.from_bytes(self.state).offset if self.state else -1


class SimNode:
    """One node. `running` is False between a kill and the restart, `paused` while it is stopped by a signal."""

    def __init__(self, world: World, name: str, members: tuple[str, ...], peers: dict[str, SimNode]) -> None:
        self.world = world
        self.name = name
        self.members = members
        self.peers = peers
        self.disk = Disk()
        self.running = False
        self.paused = False
        self.life = 0
        self.served: list[tuple[int, int]] = []

    # Life and death.

    def start(self) -> None:
        """Recover from the disk: the last seal, then the journal beyond it."""
        self.life += 1
        self.running, self.paused = True, False
        self.incarnation = f"{self.name}#{self.life}"
        state = GroupState.from_bytes(self.disk.state) if self.disk.state else GroupState()
        self.replica = Replica(self.members, state)
        self.visible = dict(self.disk.sealed)
        self.sealed_version, self.sealed_offset = state.frontier, state.offset
        self.sealed_log_bytes = state.log_bytes
        self.marks, self.chains, self.mark = Marks(self.name), {state.version: state.chain}, (0, bytes(16))
        self.shunned: set[str] = set()
        self.digested: tuple[dict[str, int], bytes] = ({}, content_digest({}))
        self.disputed, self.tampered = "", self.disk.tampered
        self.trusted: frozenset[str] | None = None
        self.unsynced: list[SimRecord[bytes]] = []
        self.board, self.board_at = StatusBoard(), max(self.world.status.begin, self.world.status.end - 200)
        self.read_back_ms = -OFFLINE_MS
        self.decision = Decision(Role.UNSYNCED, False)
        self.follower_since_ms: int | None = None
        self.reached_end = False
        self.copying = False
        self.claimed_ms = -1_000_000
        self.batch = 0
        self.asked = (-1, -1, -1)
        for version in sorted(version for version in self.disk.journal if version > state.version):
            self._apply(self.disk.journal[version])
        self.durable_version = self.replica.state.version
        self.durable_offset = self.replica.state.offset
        self.target = self.world.forward.end
        self.world.note(
            f"{self.incarnation} starts at version {self.replica.state.version}, sealed {self.sealed_version}"
        )
        for every_ms, step in (
            (50, self._poll),
            (250, self._speak),
            (80, self._listen),
            (150, self._duties),
            (1_000, self._trim),
            (400, self._inspect),
        ):
            self._every(every_ms, step)

    def kill(self) -> None:
        """Everything that was not synced is gone."""
        self.running = False
        self.life += 1
        self.world.note(
            f"{self.name} is killed at version {self.replica.state.version}, {len(self.unsynced)} records unsynced"
        )

    def wipe(self) -> None:
        """The disk is replaced by an empty one."""
        self.disk = Disk(wiped_ms=self.world.now_ms)
        self.world.note(f"{self.name} lost its disk")

    def _every(self, every_ms: int, step: Callable[[], None]) -> None:
        life = self.life

        def turn() -> None:
            if self.life != life:
                return
            if not self.paused:
                step()
            self.world.after(every_ms * self.world.random.uniform(0.5, 1.5), turn)

        self.world.after(self.world.random.uniform(1, every_ms), turn)

    # The way of a record: read, journal, sync, apply.

    def _poll(self) -> None:
        if self.name in self.world.reads_cut or self.unsynced or self.copying:
            return
        next_offset = self.durable_offset + 1
        state, begin = self.replica.state, self.world.forward.begin
        wrong, trusted = bool(self.disk.wrong), self.trusted if self.disk.wrong else None
        need = Need(self.name, next_offset, begin, state.version, state.log_bytes, wrong, trusted, begin == 0)
        live = [status for status in self.board.live(GROUP, self.members) if status.node not in self.shunned]
        plan = plan_recovery(need, live, COSTS)
        if plan.way is Way.FILES and (need.wrong or next_offset < begin or not self.reached_end):
            self._copy_from(plan.source)
            self.reached_end = False
            return
        if plan.way is Way.REBUILD:
            self._replace(Disk(full=self.disk.full, wiped_ms=self.disk.wiped_ms), "nothing, to begin anew")
            return
        if plan.way is Way.WAIT:
            self.reached_end = False
            return
        records = self.world.forward.read(next_offset, self.world.random.randint(1, 40))
        if not records:
            self.reached_end = True
            return
        if self.disk.full:
            return
        self.unsynced = records
        life = self.life
        self.world.after(self.world.random.uniform(1, 15), lambda: self._synced(life))

    def _synced(self, life: int) -> None:
        if self.life != life:
            return
        if self.paused:
            self.world.after(50, lambda: self._synced(life))
            return
        for record in self.unsynced:
            self.durable_version += 1
            self.disk.journal[self.durable_version] = record
            self.durable_offset = record.offset
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
        if state.version % MARK_INTERVAL == 0:
            self.mark = (state.version, state.chain)

    def _seal(self, action: SealNow, offset: int) -> None:
        """The store commits some time later, all or nothing; then the journal forgets what the segments hold."""
        life, content, log_bytes = self.life, dict(self.visible), self.replica.state.log_bytes
        tampered = self.tampered

        def commit() -> None:
            if self.life != life or self.disk.full or action.version <= self.sealed_version:
                return
            self.disk.state, self.disk.sealed, self.disk.tampered = action.state, content, tampered
            self.sealed_version, self.sealed_offset, self.sealed_log_bytes = action.version, offset, log_bytes
            for version in [version for version in self.disk.journal if version <= action.version]:
                del self.disk.journal[version]

        self.world.after(self.world.random.uniform(5, 400), commit)

    def _copy_from(self, source: str) -> None:
        """Copy another member's files; they take the place of ours only when they are complete."""
        self.copying = True
        life = self.life

        def finish() -> None:
            if self.life != life:
                return
            self.copying = False
            peer = self.peers[source]
            cut = (self.name, source) in self.world.links_cut or (source, self.name) in self.world.links_cut
            if not peer.running or peer.paused or cut or peer.disk.state is None:
                self.world.note(f"{self.name} could not copy from {source}")
                return
            found = GroupState.from_bytes(peer.disk.state)
            whole = self.world.forward.begin == 0
            if whole and found.chain != self._chain_of_log(found.version):
                self.world.note(f"{self.name} found the files of {source} not to be what the log says")
                self.shunned.add(source)
                return
            if peer.disk.wrong or peer.disk.rotted:
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

    def _replace(self, disk: Disk, what: str) -> None:
        """Other data takes the place of what is here."""
        self.disk = disk
        self.world.note(f"{self.name} has {what}")
        self.life += 1
        self.start()

    # What is found wrong.

    def tamper(self) -> None:
        """A fault of hardware or code in this process: from here on it counts and holds something else than the others."""
        self.tampered = True
        self.replica.state.chain = record_digest(self.replica.state.chain)
        if self.visible:
            del self.visible[self.world.random.choice(sorted(self.visible))]

    def found_wrong(self, why: str, trusted: frozenset[str] | None = None) -> None:
        """As consumers.mending does it: remembered on the disk until other data has taken its place."""
        if not self.disk.wrong:
            self.world.note(f"{self.name} holds wrong data: {why}")
            self.disk.wrong, self.trusted = why, trusted
            self.disk.wiped_ms = self.world.now_ms
            self.reached_end = False

    def _inspect(self) -> None:
        """As consumers.replication.inspector and scrub do it; the truth is the log's own chain where the log is whole."""
        if self.disk.rotted and self.world.random.random() < 0.3:
            self.found_wrong("a file has changed")
        if self.disk.wrong or self.copying or not self.reached_end:
            return
        for status in self.board.live(GROUP, self.members):
            if status.node != self.name or status.store == self._store():
                self.marks.hear(status)
        dispute = self.marks.dispute(self.chains.get)
        if dispute is None:
            self.disputed = ""
            return
        whole = self.world.forward.begin == 0
        truth = self._chain_of_log(dispute.version) if whole and dispute.kind is Kind.RECORDS else None
        finding = dispute.judge(len(self.members), truth)
        if finding is Finding.RIGHT:
            self.marks.settle(dispute)
            self.disputed = ""
        elif finding is Finding.WRONG or (dispute.kind is Kind.FILES and whole):
            self.found_wrong(str(dispute), dispute.right(len(self.members), truth))
        else:
            self.disputed = str(dispute)

    def _chain_of_log(self, version: int) -> bytes:
        chain = bytes(16)
        for record in self.world.forward.records[:version]:
            chain = next_chain(chain, record_digest(record.value))
        return chain

    def _store(self) -> str:
        """Identity of the data: another one after every start is as good as another one after every replacement."""
        return f"{self.name}/{self.life}"

    # What is said and heard.

    def _reason(self) -> str:
        if self.disk.wrong or self.disputed:
            return self.disk.wrong or self.disputed
        if self.disk.full:
            return "disk full"
        return "" if self.reached_end and not self.copying else "recovering"

    def _speak(self) -> None:
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
            chain_version=self.mark[0],
            chain=self.mark[1],
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
        )
        self.world.send(self.name, self.world.status, status)

    def _content(self) -> bytes:
        if self.disk.sealed is not self.digested[0]:
            sealed = self.disk.sealed
            self.digested = (sealed, content_digest({write: str(version) for write, version in sealed.items()}))
        return self.digested[1]

    def _listen(self) -> None:
        if self.name in self.world.reads_cut:
            return
        for record in self.world.status.read(self.board_at, 1_000):
            status = record.value
            self.board.hear(record.timestamp_ms, status)
            self.board_at = record.offset + 1
            if status.node == self.name and status.incarnation == self.incarnation:
                self.read_back_ms = max(self.read_back_ms, status.sent_boot_ns)

    # Roles and duties.

    def fenced(self) -> bool:
        """See consumers.replication.broadcast."""
        return self.world.now_ms - self.read_back_ms >= OFFLINE_MS

    def serves(self) -> bool:
        """Whether a reader would get an answer now."""
        return (
            self.running
            and not self.paused
            and not self.fenced()
            and self.decision.role is not Role.UNSYNCED
            and not self._reason()
        )

    def view(self) -> GroupView:
        """As consumers.node builds it."""
        steady = 0 if self.follower_since_ms is None else self.world.now_ms - self.follower_since_ms
        return GroupView(
            members=tuple(self._member(node) for node in self.members),
            node=self.name,
            leader=self.replica.state.leader,
            claim_age_ms=self.board.newest_ms - self.claimed_ms,
            log_answers=self.name not in self.world.reads_cut,
            fenced=self.fenced(),
            steady_ms=steady,
            take_back_ms=TAKE_BACK_MS,
        )

    def _member(self, node: str) -> MemberView:
        if node == self.name:
            epoch = self.replica.state.epoch
            return MemberView(node, self.incarnation, not self.fenced(), not self._reason(), epoch)
        status = self.board.status(GROUP, node)
        if status is None:
            return MemberView(node, "", False, False, 0)
        return MemberView(node, status.incarnation, self.board.alive(GROUP, node), status.eligible, status.epoch)

    def _duties(self) -> None:
        before, self.decision = self.decision, decide(self.view())
        if self.decision.role is not before.role:
            self.world.note(f"{self.incarnation} is {self.decision.role} {self.decision.reason}")
        if self.decision.role is not Role.FOLLOWER:
            self.follower_since_ms = None
        elif self.follower_since_ms is None:
            self.follower_since_ms = self.world.now_ms
        state = self.replica.state
        pending = self.asked[:2] == (state.epoch, state.frontier) and self.world.now_ms < self.asked[2]
        if pending:
            return
        if self.decision.claim:
            self._append(
                Claim(Leadership(state.epoch + 1, self.name, self.incarnation), self._anchor(), SEAL_ROWS, 1 << 30)
            )
        elif self.decision.role is Role.LEADER and state.unsealed_rows and self.world.random.random() < 0.05:
            assert state.leader is not None
            self._append(Seal(state.leader, self._anchor()))
        else:
            return
        self.asked = (state.epoch, state.frontier, self.world.now_ms + 5_000)

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
            live = self.board.live(GROUP, self.members)
            before = trim_before(live, self.members, self.sealed_offset, self.world.forward.end - 30)
            if before > self.world.forward.begin:
                self.world.note(f"{self.name} trims below offset {before}")
                self.world.forward.trim(before)
