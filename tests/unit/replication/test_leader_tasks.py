"""What a leader appends and under which leadership, what it may trim from the log, and when rows expire."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from headrace.connectors.log.memory import MemoryLog
from headrace.consumers.replication.applied_state import AppliedState
from headrace.consumers.replication.change_view import ChangeView
from headrace.consumers.replication.election import GroupView, MemberView
from headrace.consumers.replication.failure_detector import FailureDetector
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.heartbeat import Heartbeat
from headrace.consumers.replication.leader_tasks import (
    LeadershipForeign,
    LeaderTasks,
    LogTrimmer,
    NotLeader,
    retention_time_ns,
    trim_before,
)
from headrace.consumers.replication.settings import SealPolicy
from headrace.consumers.replication.upkeep import DEFERRED_MERGES_MAX
from headrace.schemas.group_changes import BarrierPhase
from headrace.schemas.messages import Anchor, Body, Claim, Compact, Drop, Leadership, Seal, decode_message
from headrace.schemas.records import Status
from tests.unit.statuses import STATUS
from tests.unit.store.foreign import foreign_files, load_of

TOPIC = "forward"
MEMBERS = ("n1", "n2", "n3")
MINE, OTHER = Leadership(1, "n1", "mine"), Leadership(2, "n2", "other")
DAY_NS = 86_400_000_000_000
NOW_NS = 1_767_225_600_000_000_000


@dataclass
class FakeHeartbeat(Heartbeat):
    """The statuses of the live members, and the broker's time at the newest one."""

    statuses: list[Status] = field(default_factory=list)
    node: str = MINE.node
    incarnation: str = MINE.incarnation
    detector: FailureDetector = field(default_factory=lambda: FailureDetector(newest_ms=NOW_NS // 1_000_000))

    def live(self, group: str, members: Iterable[str]) -> list[Status]:
        """See Heartbeat."""
        return [status for status in self.statuses if status.node in members]

    def send_now(self) -> None:
        """See Heartbeat."""


@dataclass
class FakeStore:
    """One segment of yesterday."""

    oldest_ns: int = NOW_NS - DAY_NS
    loaded_version: int = 0

    def segments(self) -> list[Any]:
        """See Store."""
        of = {"name": "s", "database": "plant", "table": "pumps", "loaded_version": self.loaded_version}
        return [SimpleNamespace(**of, max_time_ns=self.oldest_ns)]

    def pending_jobs(self) -> int:
        """See Store."""
        return 0

    def awaited(self) -> list[Any]:
        """See Store."""
        return []

    def plan_compaction(self) -> list[Any]:
        """See Store."""
        return []

    def database(self, _database: str, _table: str) -> Any:
        """See Store."""
        return SimpleNamespace(slice_ns=DAY_NS // 24)


class Scene:
    """The leader tasks of node n1, whose view of its group is fixed while the group reads on."""

    def __init__(self, leader: Leadership | None, epoch: int, applied: Leadership) -> None:
        self.log = MemoryLog()
        self.log.create_topic(TOPIC, {})
        members = tuple(MemberView(node, MINE.incarnation, True, True, epoch) for node in MEMBERS)
        view = GroupView(members, "n1", leader, 60_000, True, False, 0)
        state = AppliedState(version=9, offset=9, epoch=applied.epoch, leader=applied, unsealed_rows=3)
        jobs = SimpleNamespace(sealed_offset=4, sealed_version=4)
        self.group: Any = SimpleNamespace(name="n1", applied=state, store=FakeStore(), store_jobs=jobs)
        self.heartbeat = FakeHeartbeat()
        self.tasks = LeaderTasks(
            self.log,
            {TOPIC: cast("Group", self.group)},
            SealPolicy(),
            SimpleNamespace(view=lambda _topic, _steady_ms: view),
            self.heartbeat,
            SimpleNamespace(retention_ns=lambda _database, _table: 30 * DAY_NS),
            LogTrimmer(self.log, self.heartbeat, keep_records=0),
        )
        self.tasks._appender = self.log.appender()

    def appended(self) -> list[Body]:
        """What is in the log."""
        return [decode_message(record.value).body for record in self.log.topic(TOPIC).records]

    def turn(self) -> list[Body]:
        """One turn, and what is in the log then."""
        self.tasks._run_group(TOPIC, self.group, True)
        return self.appended()


def test_a_seal_names_the_leadership_it_was_decided_under() -> None:
    """Another node's claim is applied between decision and append: the Seal is of the old leadership, which is void."""
    scene = Scene(leader=MINE, epoch=1, applied=OTHER)
    scene.tasks.seal(TOPIC)
    [seal] = scene.appended()
    assert isinstance(seal, Seal)
    assert MINE == seal.leadership


def test_a_claim_is_one_above_the_epoch_it_was_decided_under() -> None:
    """Another node's claim is applied between decision and append: this one must lose, and not be the next epoch."""
    scene = Scene(leader=None, epoch=1, applied=OTHER)
    [claim] = scene.turn()
    assert isinstance(claim, Claim)
    assert Leadership(2, "n1", "mine") == claim.leadership


def test_upkeep_names_the_leadership_it_was_decided_under(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Drop of an ex-leader is void like its Seal."""
    monkeypatch.setattr(time, "time_ns", lambda: NOW_NS)
    scene = Scene(leader=MINE, epoch=1, applied=OTHER)
    scene.group.store = FakeStore(NOW_NS - 40 * DAY_NS)
    [drop] = scene.turn()
    assert isinstance(drop, Drop)
    assert MINE == drop.leadership


@pytest.mark.parametrize(("before", "seals"), [(5, 0), (6, 1)], ids=["what is in files", "one record more"])
def test_a_log_that_was_trimmed_beyond_the_files_is_sealed_at_once(before: int, seals: int) -> None:
    """By an operator: a member that has not read it could get these records from nobody. One seal is enough."""
    scene = Scene(leader=MINE, epoch=1, applied=MINE)
    for _ in range(10):
        scene.log.store(TOPIC, b"", None, ())
    scene.log.trim(TOPIC, before)
    for _ in range(3):
        scene.tasks._run_group(TOPIC, scene.group, True)
    found = [decode_message(record.value).body for record in scene.log.topic(TOPIC).records if record.value]
    assert seals * [Seal] == list(map(type, found))


@pytest.mark.parametrize(
    ("loaded", "sealed", "merges", "behind", "expected"),
    [
        (3, 4, 1, False, [Compact]),
        (5, 4, 1, False, [Seal]),
        (5, 4, 1, True, []),
        (5, 4, 0, False, []),
        (5, 0, 0, True, [Seal]),
        (0, 0, 0, False, []),
    ],
    ids=["sealed", "loaded since", "a member is behind", "nothing to merge", "never sealed", "no files of others"],
)
def test_loaded_files_are_merged_behind_a_seal(
    monkeypatch: pytest.MonkeyPatch, loaded: int, sealed: int, merges: int, behind: bool, expected: list[type]
) -> None:
    """A member that reads the load needs the file: it recovered without end, each time from a log whose file was gone."""
    scene = Scene(leader=MINE, epoch=1, applied=MINE)
    scene.group.store = FakeStore(loaded_version=loaded)
    scene.group.store_jobs.sealed_version = sealed
    changes = replace(scene.group.applied.changes, members=MEMBERS)
    scene.group.applied = replace(scene.group.applied, unsealed_rows=0, changes=changes)
    scene.heartbeat.statuses = [replace(STATUS, node=node, eligible=node != "n2" or not behind) for node in MEMBERS]
    monkeypatch.setattr(FakeStore, "plan_compaction", lambda _self: [SimpleNamespace(inputs=("s",))] * merges)
    for _ in range(3):
        scene.turn()
    assert expected == [type(body) for body in scene.appended()]


def test_loaded_files_are_sealed_after_the_age_whoever_is_behind() -> None:
    """As rows are."""
    scene = Scene(leader=MINE, epoch=1, applied=MINE)
    scene.group.store = FakeStore(loaded_version=9)
    scene.group.applied = replace(scene.group.applied, unsealed_rows=0, frontier=8)
    scene.heartbeat.statuses = [replace(STATUS, node="n2", eligible=False)]
    assert [] == scene.turn()
    scene.tasks._policy = SealPolicy(seal_age_ms=1)
    time.sleep(0.002)
    assert [Seal] == [type(body) for body in scene.turn()]


def test_loads_are_appended_by_the_leader_alone() -> None:
    """Each names the leadership of that moment; a member that does not lead appends none."""
    (file,) = foreign_files([({"host": "a"}, 1, {"busy": 1})], (1, 1, 2))
    scene = Scene(leader=MINE, epoch=1, applied=MINE)
    scene.tasks.append_for(TOPIC, lambda leadership: [replace(load_of(file, 2), leadership=leadership)])
    assert [replace(load_of(file, 2), leadership=MINE)] == scene.appended()
    scene = Scene(leader=OTHER, epoch=2, applied=OTHER)
    with pytest.raises(NotLeader):
        scene.tasks.append_for(TOPIC, lambda leadership: [replace(load_of(file, 2), leadership=leadership)])
    assert [] == scene.appended()


@pytest.mark.parametrize("leadership", [OTHER, replace(MINE, incarnation="before"), replace(MINE, node="n2")])
def test_nothing_is_appended_under_another_name(leadership: Leadership) -> None:
    """Node and incarnation of a record are those of the process that appends it."""
    scene = Scene(leader=MINE, epoch=1, applied=MINE)
    with pytest.raises(LeadershipForeign):
        scene.tasks.append(TOPIC, Seal(leadership, Anchor(0, 0, bytes(16))))
    assert [] == scene.appended()


def test_a_leader_whose_clock_is_a_year_ahead_drops_nothing_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of yesterday outlive a retention of 30 days, whichever of the two clocks is wrong."""
    monkeypatch.setattr(time, "time_ns", lambda: NOW_NS + 365 * DAY_NS)
    scene = Scene(leader=MINE, epoch=1, applied=MINE)
    assert [] == scene.turn()
    monkeypatch.setattr(time, "time_ns", lambda: NOW_NS)
    for broker_ns in (NOW_NS + 365 * DAY_NS, 0):
        scene = Scene(leader=MINE, epoch=1, applied=MINE)
        scene.tasks._heartbeat.detector.newest_ms = broker_ns // 1_000_000
        assert [] == scene.turn()
    scene = Scene(leader=MINE, epoch=1, applied=MINE)
    scene.group.store = FakeStore(NOW_NS - 31 * DAY_NS)
    assert [Drop(MINE, "plant", "pumps", NOW_NS - 30 * DAY_NS)] == scene.turn()


def test_rows_expire_by_the_earlier_clock() -> None:
    """In nanoseconds; before the first heartbeat nothing expires."""
    assert [5_000_000, 7_000_000, 0] == [retention_time_ns(7_000_000, ms) for ms in (5, 9, 0)]


def test_the_log_is_trimmed_only_below_what_all_live_members_have_sealed() -> None:
    """A slow member, a missing majority and the replay window each hold the trim back."""
    live = [replace(STATUS, node=f"n{number}", sealed_offset=30 + number) for number in (1, 2, 3)]
    members = ("n1", "n2", "n3")
    assert trim_before(live, members, 40, 1_000) == 32
    assert trim_before(live, members, 20, 1_000) == 21
    assert trim_before(live, members, 40, 25) == 25
    assert trim_before(live[:1], members, 40, 1_000) == 0
    assert trim_before([replace(live[0], sealed_offset=-1), *live[1:]], members, 40, 1_000) == 0


def test_a_member_of_another_log_holds_the_trim_back() -> None:
    """Its sealed offset is one of a topic of the same name, or of records that the log has lost."""
    live = [replace(STATUS, node=node, sealed_offset=30) for node in MEMBERS]
    assert trim_before(live, MEMBERS, 40, 1_000) == 31
    assert trim_before([*live[:2], replace(live[2], topic_id="an older topic")], MEMBERS, 40, 1_000) == 0
    assert trim_before([*live[:2], replace(live[2], log_lost=True)], MEMBERS, 40, 1_000) == 0


@pytest.mark.parametrize(
    ("sealed", "begin"),
    [((30, 30, 30), 31), ((30, 12, 30), 13), ((30, 30, -1), 0), ((30, 30, None), 31), ((30, None, None), 0)],
    ids=["all have sealed", "one is slow", "one has no files", "one is away", "no majority"],
)
def test_the_trimmer_asks_the_other_members(sealed: tuple[int | None, ...], begin: int) -> None:
    """What the leader has sealed itself is not enough; None = the member is away."""
    log = MemoryLog()
    log.create_topic(TOPIC, {})
    for _ in range(100):
        log.store(TOPIC, b"", None, ())
    statuses = [
        replace(STATUS, node=node, sealed_offset=offset)
        for node, offset in zip(MEMBERS, sealed, strict=True)
        if offset is not None
    ]
    group: Any = SimpleNamespace(
        name="n1",
        applied=AppliedState(offset=99, changes=ChangeView(MEMBERS)),
        store_jobs=SimpleNamespace(sealed_offset=30),
    )
    trimmer = LogTrimmer(log, FakeHeartbeat(statuses), keep_records=10)
    trimmer.trim(TOPIC, group)
    assert begin == log.describe(TOPIC).begin
    # A member that was faster meanwhile does not move the beginning back.
    trimmer.trim(TOPIC, group)
    assert begin == log.describe(TOPIC).begin


def test_a_trimmer_without_a_window_trims_nothing() -> None:
    """0 records to keep means all of them, and a window larger than the log leaves it whole."""
    for keep_records in (0, 1_000):
        log = MemoryLog()
        log.create_topic(TOPIC, {})
        for _ in range(100):
            log.store(TOPIC, b"", None, ())
        group: Any = SimpleNamespace(
            name="n1",
            applied=AppliedState(offset=99, changes=ChangeView(MEMBERS)),
            store_jobs=SimpleNamespace(sealed_offset=90),
        )
        heartbeat: Any = FakeHeartbeat([replace(STATUS, node=node, sealed_offset=90) for node in MEMBERS])
        LogTrimmer(log, heartbeat, keep_records).trim(TOPIC, group)
        assert 0 == log.describe(TOPIC).begin


def test_a_claim_is_not_repeated_before_it_can_have_been_read_back() -> None:
    """Else a log that is slow would hold one for every turn."""
    scene = Scene(leader=None, epoch=1, applied=OTHER)
    scene.turn()
    assert 1 == len(scene.turn())


def test_no_upkeep_is_planned_while_a_job_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The catalogue still lists the files that the job replaces."""
    monkeypatch.setattr(time, "time_ns", lambda: NOW_NS)
    scene = Scene(leader=MINE, epoch=1, applied=OTHER)
    scene.group.store = FakeStore(NOW_NS - 40 * DAY_NS)
    monkeypatch.setattr(FakeStore, "pending_jobs", lambda _self: 1)
    assert [] == scene.turn()
    monkeypatch.setattr(FakeStore, "pending_jobs", lambda _self: 0)
    assert [Drop] == [type(body) for body in scene.turn()]


@pytest.mark.parametrize("moving", ["first phase", "awaited files", "nothing"])
def test_few_merges_wait_while_files_move(monkeypatch: pytest.MonkeyPatch, moving: str) -> None:
    """What a merge replaces would be copied for nothing. Many are done all the same: a change may last for hours."""
    scene = Scene(leader=MINE, epoch=1, applied=MINE)
    plans: list[Any] = [SimpleNamespace(inputs=("s",))]
    monkeypatch.setattr(FakeStore, "plan_compaction", lambda _self: plans)
    if moving == "first phase":
        changes = replace(scene.group.applied.changes, phase=BarrierPhase.PRE)
        scene.group.applied = replace(scene.group.applied, changes=changes)
    elif moving == "awaited files":
        monkeypatch.setattr(FakeStore, "awaited", lambda _self: ["file"])
    merges = [body for body in scene.turn() if isinstance(body, Compact)]
    assert (1 if moving == "nothing" else 0) == len(merges)
    scene.tasks._upkeep_after_s.clear()
    plans *= DEFERRED_MERGES_MAX + 1
    merges = [body for body in scene.turn() if isinstance(body, Compact)]
    assert merges
