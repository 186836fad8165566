"""The leader of a group in a change: one barrier at a time, the report of the first phase, notes of what was accepted."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.migration.change_tasks import (
    ACCEPTED_INTERVAL_S,
    FIRST_NOTE_S,
    READ_BACK_TIMEOUT_S,
    SEAL_ROWS,
    SEAL_WAIT_S,
    ChangeTasks,
)
from headrace.consumers.migration.copies_ahead import NOTE_VALID_S, CopiesAhead, CopyNote
from headrace.consumers.replication.applied_state import AppliedState
from headrace.consumers.replication.failure_detector import OFFLINE_MS, FailureDetector
from headrace.consumers.replication.leader_parts import LeaderRecord
from headrace.schemas.framing import check_format
from headrace.schemas.group_changes import Barrier, BarrierPhase, GroupKey, HandOverAccepted
from headrace.schemas.membership_records import ChangeKind, PreDone
from headrace.schemas.messages import Seal
from headrace.schemas.presence import Presence
from headrace.schemas.records import Acceptance, Status, decode_membership
from tests.unit.migration.member_logs import STORE, MemberLog
from tests.unit.replication.slot_logs import SlotLog
from tests.unit.statuses import STATUS

TOPICS = Topics("c")
PRE, FORMAL, REVERT = BarrierPhase.PRE, BarrierPhase.FORMAL, BarrierPhase.REVERT


@dataclass
class Scene:
    """The leader of a group of four nodes, and the membership log; `turn` is one of its turns."""

    header: str
    members: MemberLog = field(default_factory=MemberLog)
    log: MemoryLog = field(default_factory=MemoryLog)
    detector: FailureDetector = field(default_factory=lambda: FailureDetector(receipts_kept=0))
    appended: list[LeaderRecord] = field(default_factory=list)
    now_s: float = 50.0
    incarnation: str = "run"
    unsealed_rows: int = 0
    sealed_version: int = 0
    copies: CopiesAhead | None = None

    def __post_init__(self) -> None:
        """The group has a leader, its header."""
        self.node = self.header
        self.group = SlotLog(self.header, self.members.table.group(self.header))
        self.leadership = self.group.claim(self.header)
        self.log.create_topic(TOPICS.membership, {})
        self.log.create_topic(self.group.topic, {})
        shared: Any = self
        self.tasks = ChangeTasks(self.log, TOPICS, self, self, self, shared, self.copies)

    @property
    def state(self) -> MembershipState:
        """See MembershipStates."""
        return self.members.state

    def monotonic_s(self) -> float:
        """See Clock."""
        return self.now_s

    def append(self, topic: str, body: LeaderRecord) -> None:
        """See LeaderRecords."""
        assert topic == self.group.topic
        self.appended.append(body)

    @property
    def group_key(self) -> GroupKey:
        """The group, of its first birth."""
        return GroupKey(self.header, 1)

    def turn(self) -> bool:
        """One turn."""
        applied = replace(AppliedState.of(self.group.replica.state, 0), unsealed_rows=self.unsealed_rows)
        shown: Any = _Shown(self.header, GroupKey(self.header, 1), applied, (self.sealed_version, 0))
        return self.tasks.turn(self.group.topic, shown, self.leadership)

    def read(self) -> None:
        """The group reads the newest record of its leader."""
        self.group.append(self.appended[-1])

    def show(self, node: str, **changed: Any) -> None:
        """A status of a node in this group."""
        status = replace(STATUS, node=node, group=self.header, store=f"store of {node}", eligible=True, log_lost=False)
        status = replace(status, **changed)
        self.detector.observe(self.detector.newest_ms, status)
        self.present(status, self.state.records)

    def present(self, status: Status, records: int) -> None:
        """The presence of a node, which has read so much of the membership log."""
        run = status.node, status.incarnation, status.store
        present = Presence(*run, "", 3, 12, eligible=True, epoch=1, records=records, changes=True)
        self.detector.observe_presence(self.detector.newest_ms, present)

    def reports(self) -> list[PreDone]:
        """What is in the membership log."""
        found = []
        for record in self.log.topic(TOPICS.membership).records:
            check_format(record.headers)
            _, body = decode_membership(record.value)
            assert isinstance(body, PreDone)
            found.append(body)
        return found


@dataclass(frozen=True)
class _Shown:
    name: str
    birth_key: GroupKey
    applied: AppliedState
    sealed_for_others: tuple[int, int]


def joining() -> tuple[Scene, str]:
    """A group that a joiner enters, and the joiner."""
    table = MemberLog().table
    for joiner in ("n5", "n6", "n7"):
        change = MemberLog().begin(ChangeKind.ADD, joiner)
        for header in table.headers:
            if joiner in change.pre_members(header) and header != joiner:
                return Scene(header), joiner
    raise AssertionError("no group is entered")


def test_nothing_is_appended_without_a_change() -> None:
    """Nor is anything opened."""
    scene = Scene("n2")
    assert not scene.turn()
    assert [] == scene.appended


def test_a_barrier_is_repeated_only_when_it_was_not_read_back_in_time() -> None:
    """A delivery report proves nothing, so the view of the group ends the wait."""
    scene = Scene("n2")
    scene.members.begin(ChangeKind.ADD, "n5")
    assert scene.turn()
    [barrier] = scene.appended
    assert isinstance(barrier, Barrier)
    assert (PRE, scene.leadership) == (barrier.phase, barrier.leadership)
    assert scene.turn()
    assert 1 == len(scene.appended)
    scene.now_s += READ_BACK_TIMEOUT_S
    assert scene.turn()
    assert [barrier, barrier] == scene.appended
    scene.read()
    assert not scene.turn()
    scene.members.formal()
    assert scene.turn()
    assert [PRE, PRE, FORMAL] == [each.phase for each in scene.appended if isinstance(each, Barrier)]


def test_another_leader_decides_anew() -> None:
    """A node that leads again after another one waits for nothing of its earlier term."""
    scene = Scene("n2")
    scene.members.begin(ChangeKind.ADD, "n5")
    scene.turn()
    scene.tasks.forget(scene.group.topic)
    scene.turn()
    assert 2 == len(scene.appended)


@pytest.mark.parametrize(
    "missing",
    [
        {"change": 0},
        {"eligible": False},
        {"log_lost": True},
        {"durable_offset": -1},
        {"topic_id": "an earlier topic"},
    ],
    ids=lambda each: next(iter(each)),
)
def test_the_first_phase_is_reported_when_new_members_follow(missing: dict[str, Any]) -> None:
    """In sync, behind the barrier, from this very topic."""
    scene, joiner = joining()
    scene.members.begin(ChangeKind.ADD, joiner)
    scene.turn()
    scene.read()
    scene.show(scene.header, change=1)
    scene.turn()
    assert [] == scene.reports()
    good = {"change": 1, "store": STORE}
    scene.show(joiner, **{**good, **missing})
    scene.turn()
    assert [] == scene.reports()
    scene.show(joiner, **good)
    scene.turn()
    [report] = scene.reports()
    version = scene.group.replica.state.version
    assert PreDone(1, scene.header, scene.header, scene.leadership.epoch, version) == report


def test_a_new_member_that_does_not_know_of_the_change_is_waited_for() -> None:
    """It has the group from the change before, at whose end it drops it."""
    scene, joiner = joining()
    change = scene.members.begin(ChangeKind.ADD, joiner)
    scene.turn()
    scene.read()
    scene.show(scene.header, change=1)
    scene.show(joiner, change=1, store=STORE)
    status = scene.detector.status(scene.header, joiner)
    assert status is not None
    scene.present(status, change.began - 1)
    scene.turn()
    # That of another run of the node proves nothing.
    scene.present(replace(status, incarnation="before"), change.began)
    scene.turn()
    assert [] == scene.reports()
    scene.present(status, change.began)
    scene.turn()
    assert 1 == len(scene.reports())


def test_a_joiner_may_have_another_data_directory_but_not_two() -> None:
    """A recovery renews the id of a directory, and a lost one is replaced. Of two at once nobody knows which joins."""
    scene, joiner = joining()
    scene.members.begin(ChangeKind.ADD, joiner)
    scene.turn()
    scene.read()
    scene.show(scene.header, change=1)
    for store in (STORE, "a second directory"):
        present = Presence(joiner, store, store, "", 3, 12, eligible=True, epoch=1, records=1, changes=True)
        scene.detector.observe_presence(scene.detector.newest_ms, present)
    scene.show(joiner, change=1, store="a second directory")
    scene.turn()
    assert [] == scene.reports()
    del scene.detector.present[joiner, STORE]
    scene.turn()
    assert 1 == len(scene.reports())


def test_a_new_member_that_is_away_is_waited_for() -> None:
    """A status of some seconds ago is that of a node which may be gone."""
    scene, joiner = joining()
    scene.members.begin(ChangeKind.ADD, joiner)
    scene.turn()
    scene.read()
    scene.show(joiner, change=1, store=STORE)
    scene.detector.newest_ms += OFFLINE_MS
    scene.show(scene.header, change=1)
    scene.turn()
    assert [] == scene.reports()


def test_a_group_whose_members_stay_reports_at_once_and_until_it_is_read() -> None:
    """Every group of the old table reports; one report in some seconds, until the membership log has it."""
    scene = Scene("n2")
    change = scene.members.begin(ChangeKind.ADD, "n5")
    header = next(each.group for each in change.groups() if each.before and each.before == each.pre)
    scene = Scene(header, scene.members)
    scene.turn()
    scene.read()
    scene.show(header, change=1)
    scene.turn()
    scene.turn()
    assert 1 == len(scene.reports())
    scene.now_s += READ_BACK_TIMEOUT_S
    scene.turn()
    [_, again] = scene.reports()
    scene.members.take(again)
    scene.now_s += READ_BACK_TIMEOUT_S
    scene.turn()
    assert 2 == len(scene.reports())


@pytest.mark.parametrize("arrives", [True, False])
def test_a_group_with_many_unsealed_rows_seals_before_it_reports(arrives: bool) -> None:
    """So the cut finds few, and queries of its slots wait for a moment. A seal that never commits holds up nothing."""
    scene = Scene("n2")
    change = scene.members.begin(ChangeKind.ADD, "n5")
    header = next(each.group for each in change.groups() if each.before and each.before == each.pre)
    scene = Scene(header, scene.members, unsealed_rows=SEAL_ROWS)
    scene.turn()
    scene.read()
    scene.show(header, change=1)
    for _ in range(3):
        scene.turn()
    [_, seal] = scene.appended
    assert isinstance(seal, Seal)
    assert (scene.leadership, scene.group.replica.state.version) == (seal.leadership, seal.anchor.version)
    assert [] == scene.reports()
    if arrives:
        scene.sealed_version = seal.anchor.version
    else:
        scene.now_s += SEAL_WAIT_S
    scene.turn()
    assert 1 == len(scene.reports())
    # Rows that come meanwhile are those of a moment.
    assert 2 == len(scene.appended)


def giving(unsealed_rows: int) -> Scene:
    """A group that adds no member and gives slots, with so many unsealed rows, behind the barrier of the first phase."""
    scene = Scene("n2")
    change = scene.members.begin(ChangeKind.ADD, "n5")
    givers = {former for _, former in change.table.moved}
    header = next(each.group for each in change.groups() if each.before == each.pre and each.group in givers)
    scene = Scene(header, scene.members, unsealed_rows=unsealed_rows)
    clock: Any = scene
    scene.copies = CopiesAhead(clock)
    scene.__post_init__()
    scene.turn()
    scene.read()
    scene.show(header, change=1)
    return scene


def test_the_first_phase_waits_for_files_that_are_copied_ahead() -> None:
    """The group seals before they are copied, and once more after that; then nothing is left to wait for."""
    scene = giving(SEAL_ROWS)
    assert scene.copies is not None
    key = scene.group_key
    scene.turn()
    [_, first] = scene.appended
    scene.sealed_version = first_version = anchor_of(first)
    for left in (4, 1):
        scene.copies.take(key, CopyNote(1, "n5", left))
        scene.now_s += NOTE_VALID_S - 1
        scene.turn()
        assert [] == scene.reports()
    assert 2 == len(scene.appended)
    scene.copies.take(key, CopyNote(1, "n5", 0))
    scene.read()
    scene.turn()
    [_, _, last] = scene.appended
    assert anchor_of(last) > first_version
    assert [] == scene.reports()
    scene.sealed_version = anchor_of(last)
    scene.turn()
    assert 1 == len(scene.reports())
    assert 3 == len(scene.appended)


@pytest.mark.parametrize("noted", [True, False])
def test_a_node_that_copies_no_more_holds_up_no_change(noted: bool) -> None:
    """One that sends no note is waited for a moment only, and so is one whose notes end."""
    scene = giving(0)
    assert scene.copies is not None
    if noted:
        scene.copies.take(scene.group_key, CopyNote(1, "n5", 9))
    # A note of another change, and of another group, say nothing.
    scene.copies.take(scene.group_key, CopyNote(2, "n6", 9))
    scene.copies.take(GroupKey("n9", 1), CopyNote(1, "n5", 9))
    scene.turn()
    assert [] == scene.reports()
    scene.now_s += NOTE_VALID_S if noted else FIRST_NOTE_S
    scene.turn()
    assert 1 == len(scene.reports())


def anchor_of(record: LeaderRecord) -> int:
    """The version that a seal puts into files."""
    assert isinstance(record, Seal)
    return record.anchor.version


def test_a_cancelled_change_is_reverted_by_the_leader() -> None:
    """The old members are all still there."""
    scene, joiner = joining()
    scene.members.begin(ChangeKind.ADD, joiner)
    scene.turn()
    scene.read()
    assert joiner in scene.group.replica.state.changes.members
    scene.members.cancel()
    scene.turn()
    scene.read()
    assert REVERT is scene.group.replica.state.changes.phase
    assert joiner not in scene.group.replica.state.changes.members
    assert not scene.turn()


def test_what_a_next_holder_accepted_is_noted_once_in_a_while() -> None:
    """It ends what is due. With records one by one, notes come at most twice a second."""
    scene = Scene("n2")
    change = scene.members.begin(ChangeKind.ADD, "n5")
    donor = change.table.moved[0][1]
    scene = Scene(donor, scene.members)
    scene.turn()
    scene.read()
    scene.members.formal()
    scene.turn()
    scene.read()
    target = GroupKey("n5", 2)
    topic = TOPICS.forward("n5", 2)
    scene.log.create_topic(topic, {})
    assert not scene.turn()
    assert 0 < len(scene.log.topic(topic).records)
    due = scene.group.replica.state.changes.targets[target].outstanding
    shown = {"topic_id": scene.log.describe(topic).topic_id, "group": "n5"}
    for number, each in enumerate([due[0], due[-1]]):
        scene.show("n5", accepted=(Acceptance.of(GroupKey(donor, 1), each.position),), **shown)
        before = len(scene.appended)
        assert scene.turn()
        assert HandOverAccepted(scene.leadership, target, each.position) == scene.appended[-1]
        assert (before + 1, True) == (len(scene.appended), scene.turn())
        scene.read()
        if number == 0:
            scene.show("n5", accepted=(Acceptance.of(GroupKey(donor, 1), due[-1].position),), **shown)
            assert not scene.turn()
        scene.now_s += ACCEPTED_INTERVAL_S
    assert not scene.group.replica.state.changes.targets[target].outstanding
    assert not scene.turn()
    scene.tasks.close()
