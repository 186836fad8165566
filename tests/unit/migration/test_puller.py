"""Slots come to every member of the group that gained them, with all of their rows, whatever happens on the way."""

from __future__ import annotations

import os
import random
import shutil
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.connectors.files import Buffer
from headrace.connectors.processor import ProcessorTime
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.ring import POSITION_MAX, RingNode
from headrace.consumers.membership.running_change import RunningChange
from headrace.consumers.migration.cut_source import CutRefused, FileGone, FileMerged, OwnCut
from headrace.consumers.migration.peer_cut import PeerCut
from headrace.consumers.migration.pull_rate import PullRate, YieldingRate, yield_s
from headrace.consumers.migration.release import SlotRelease, releasable
from headrace.consumers.recovery.file_copy import SourceFailed
from headrace.consumers.recovery.progress import TransferStopped
from headrace.consumers.replication.store_jobs import StoreJobQueue
from headrace.consumers.serve.cut_service import CutService
from headrace.consumers.store import SegmentEntry, Store, StoreFull, StoreJob
from headrace.consumers.store.segment_files import SegmentFiles
from headrace.schemas.group_changes import Barrier, BarrierPhase, GroupKey
from headrace.schemas.membership_records import ChangeKind
from headrace.schemas.messages import Load, Seal, load_identity
from headrace.schemas.series import slot_of
from tests.manual_clock import ManualClock
from tests.unit.migration.moves import (
    ANCHOR,
    BASE,
    CHANGE,
    GAINED,
    TABLE,
    TABLES,
    TARGET,
    Moves,
    MovingNode,
    random_rows,
    topic_of,
)
from tests.unit.nodes import corrupt
from tests.unit.store.builders import HOUR_NS, Row, contents, expected
from tests.unit.store.test_deletes import last

pytestmark = pytest.mark.slow(1.5)


class Killed(BaseException):
    """The process ends here. Not an `Exception`: nothing in the code under test may handle it."""


def newest(rows: list[Row]) -> list[Row]:
    """The last row of each series."""
    found: dict[str, Row] = {}
    for row in sorted(rows, key=lambda each: each[1]):
        found[row[0]["host"]] = row
    return list(found.values())


def has_all(moves: Moves, store: Store) -> None:
    """A store has exactly the rows of the slots that moved, and their last rows."""
    for table, schema in TABLES.items():
        rows = moves.moved_rows(table)
        assert expected(rows) == contents(store, schema)


def finished(moves: Moves) -> None:
    """The change has ended, and every member has everything."""
    assert None is moves.state.change
    for member in TABLE.group("n4"):
        store = moves.nodes[member].target.store
        assert [] == store.awaited()
        has_all(moves, store)
        assert expected(newest(moves.moved_rows("cpu"))) == last(store)
        assert [] == list(store.staging_directory.glob("*"))


def test_every_member_gets_every_row_of_the_slots(moves: Moves) -> None:
    """With deletes and last rows. The change ends only when all takeovers are accepted."""
    moves.turns(count=10)
    assert [] == moves.reports
    assert all(frozenset() == moves.nodes[member].puller.pulling("n4") for member in TABLE.group("n4"))
    moves.hand_over()
    moves.turns(count=10)
    finished(moves)


def test_what_queries_wait_for_is_no_background_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The seal of a cut, what it holds, and loads: on a busy machine a lower priority would cost them seconds."""
    jobs, queue = list[tuple[str, bool]](), StoreJobQueue._queue

    def noted(self: StoreJobQueue, job: StoreJob, counted: bool) -> None:
        jobs.append((type(job).__name__, job.urgent))
        queue(self, job, counted)

    monkeypatch.setattr(StoreJobQueue, "_queue", noted)
    made, first = Moves(tmp_path), GroupKey("n1", 1)
    try:
        made.write("cpu", random_rows(1))
        made.append(topic_of(first), Seal(made.leaders[topic_of(first)], ANCHOR))
        assert {("SealJob", False)} == set(jobs)
        jobs.clear()
        made.cut()
        made.open_target()
        made.serve()
        made.turns(count=10)
        assert {("SealJob", True), ("HoldJob", True), ("LoadJob", True)} == set(jobs)
    finally:
        made.close()


def test_a_member_of_both_groups_links_and_deletes_nothing(moves: Moves) -> None:
    """Its files of the donor are the same inodes, and the donor has them still. Nobody is asked over HTTP for them."""
    moves.turns(count=3)
    node, links = moves.nodes["n3"], 0
    for donor in ("n1", "n3"):
        store = node.groups[f"c.forward.{donor}.1"].store
        given = {entry.content_digest: entry for entry in store.cut_files()}
        for entry in node.target.store.segments():
            if (former := given.get(entry.content_digest)) is not None:
                paths = (store.segments_directory / former.name, node.target.store.segments_directory / entry.name)
                assert paths[0].stat().st_ino == paths[1].stat().st_ino
                links += 1
    assert links > 1
    assert 0 < node.puller.rate.received_bytes < moves.nodes["n4"].puller.rate.received_bytes


def test_a_link_is_waited_for_for_a_while(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of what will be here in a moment costs space and time; one that never comes is fetched from others."""
    refusals = [0]

    def behind(*_arguments: object) -> None:
        refusals[0] += 1
        raise CutRefused("n3: the cut is not sealed", kind="SegmentGone")

    monkeypatch.setattr(OwnCut, "stage", behind)
    moves.turns("n4", "n3", count=8)
    target = moves.nodes["n3"].target.store
    missing = len(target.awaited())
    assert refusals[0] > missing > 0
    assert "not sealed" in moves.nodes["n3"].puller.reason("n4")
    moves.turns("n4", "n3", count=30)
    assert [] == target.awaited()


def test_members_ask_different_members_of_the_donor_first(moves: Moves) -> None:
    """Member number i begins with number i of the donor, and a node that has the donor's group with itself."""
    moves.turns(count=3)
    assert {"n4": {"n4", "n2", "n1", "n3"}, "n3": {"n3", "n1"}} == {
        member: {node for asking, node in moves.asked if asking == member} for member in ("n4", "n3")
    }


@pytest.mark.parametrize("leader", ["n4", "n3"])
def test_a_pull_continues_after_a_kill_at_any_step(moves: Moves, monkeypatch: pytest.MonkeyPatch, leader: str) -> None:
    """Both members are killed again and again, and the other one leads after each kill. No load counts twice."""
    chosen, left = random.Random(leader), [0]

    def step() -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    def with_steps(call: Callable[..., None], *paths: Any, **rest: Any) -> None:
        step()
        call(*paths, **rest)
        step()

    for call in (os.rename, os.link, os.unlink):
        monkeypatch.setattr(os, call.__name__, partial(with_steps, call))
    moves.on_step = step
    moves.hand_over()
    moves.lead(TARGET, leader)
    kills = 0
    for attempt in range(60):
        left[0] = chosen.randrange(1, 14)
        member = chosen.choice(TABLE.group("n4"))
        try:
            moves.turns(member, count=3)
        except Killed:
            kills += 1
            left[0] = 0
            moves.nodes[member].restart(TARGET, moves.founding)
            if attempt % 3 == 0:
                moves.lead(TARGET, chosen.choice(TABLE.group("n4")))
    left[0] = 0
    moves.turns(count=12)
    assert kills > 5
    finished(moves)
    loaded = [body for body in moves.bodies(TARGET) if isinstance(body, Load)]
    catalogue = moves.nodes["n4"].target.store.segments()
    assert len(catalogue) == len({load_identity(load) for load in loaded})


@pytest.mark.parametrize("seed", range(3))
def test_data_arrives_whatever_comes_first(tmp_path: Path, seed: int) -> None:
    """Random rows and deletes. Donors that have not cut or do not answer are asked again; takeovers come at any time."""
    chosen, moves = random.Random(seed), Moves(tmp_path)
    for table, schema in TABLES.items():
        moves.write(table, random_rows(seed, chosen.randrange(50, 300), hours=chosen.randrange(9, 30)))
        for _ in range(chosen.randrange(4)):
            start, end = sorted(chosen.sample(range(20 * HOUR_NS), 2))
            moves.delete(schema.table, f"h{chosen.randrange(6)}", start, end)
    steps: list[Callable[[], object]] = [partial(moves.cut_one, header) for header in BASE.headers]
    steps += [node.serve for node in moves.nodes.values()]
    steps += [moves.open_target, moves.hand_over]
    chosen.shuffle(steps)
    try:
        for step in steps:
            step()
            moves.turns(count=chosen.randrange(3))
            assert [] == moves.reports or moves.state.change is not None
        moves.hand_over()
        moves.turns(count=8)
        finished(moves)
    finally:
        moves.close()


def donor_file(moves: Moves, node: str, donor: str) -> tuple[Path, SegmentEntry]:
    """The largest file that a node's copy of a donor gives."""
    store = moves.nodes[node].groups[topic_of(GroupKey(donor, 1))].store
    entry = max(store.cut_files(), key=lambda each: each.size_bytes)
    return store.segments_directory / entry.name, entry


def slot_of_entry(entry: SegmentEntry) -> int:
    """The slot of a file."""
    return slot_of(entry.database, entry.bucket, entry.slice_number, TABLE.slots)


def test_bytes_that_are_not_those_of_the_catalogue_are_never_attached(moves: Moves) -> None:
    """The other member of the donor gives the file, and the one that sent it is not asked for it again soon."""
    path, entry = donor_file(moves, "n1", "n2")
    corrupt(path)
    moves.hand_over()
    # Member 0 of the new group asks member 0 of the donor: only without it n1 is asked first.
    moves.nodes["n2"].leave()
    moves.turns("n4", count=3)
    node = moves.nodes["n4"]
    assert entry.content_digest in {each.content_digest for each in node.target.store.awaited()}
    assert "n1 has sent wrong bytes" in node.puller.reason("n4")
    assert node.puller.files.errors
    moves.nodes["n2"].serve()
    moves.turns(count=6)
    finished(moves)


def test_a_linked_file_that_rotted_is_fetched_from_another_node(moves: Moves) -> None:
    """The digest of the catalogue decides at the link, too."""
    path, _ = donor_file(moves, "n3", "n3")
    corrupt(path)
    moves.hand_over()
    moves.turns(count=6)
    finished(moves)


@pytest.mark.usefixtures("one_by_one")
@pytest.mark.parametrize("cut_at", [1, 900])
def test_a_donor_that_disappears_in_the_middle_is_replaced(
    moves: Moves, monkeypatch: pytest.MonkeyPatch, cut_at: int
) -> None:
    """The next one continues at the byte: nothing that was received is sent again."""
    moves.hand_over()
    sent: dict[str, list[tuple[int, int]]] = {}
    whole = PeerCut._bytes

    def failing(source: PeerCut, entry: SegmentEntry, offset: int, *begun: Any) -> Iterator[Buffer]:
        parts = sent.setdefault(entry.name, [])
        data = b"".join(map(bytes, whole(source, entry, offset, *begun)))
        if source.name == "n2":
            parts.append((offset, cut_at))
            yield data[:cut_at]
            raise SourceFailed("it is gone", retriable=True)
        parts.append((offset, len(data)))
        yield data

    monkeypatch.setattr(PeerCut, "_bytes", failing)
    moves.turns("n4", count=4)
    moves.turns(count=4)
    finished(moves)
    resumed = [(parts[0], parts[1]) for parts in sent.values() if len(parts) > 1]
    assert resumed
    assert all(first == (0, cut_at) and cut_at == begin for first, (begin, _) in resumed)


def test_a_full_disk_is_waited_for_and_named(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither files nor the change are lost, and it continues when there is space."""
    moves.hand_over()
    full, real = [True], SegmentFiles.link

    def link(files: SegmentFiles, name: str, source: Path, *, synced: bool = False) -> None:
        if full[0]:
            raise StoreFull(f"{name} cannot be written: No space left on device")
        real(files, name, source, synced=synced)

    monkeypatch.setattr(SegmentFiles, "link", link)
    moves.turns(count=4)
    for member in TABLE.group("n4"):
        puller = moves.nodes[member].puller
        assert "the disk is full" in puller.reason("n4")
        assert puller.figures.bytes_done == 0 < puller.figures.bytes_total
    received = moves.nodes["n4"].puller.rate.received_bytes
    full[0] = False
    moves.turns(count=6)
    finished(moves)
    assert received <= moves.nodes["n4"].puller.rate.received_bytes
    assert "" == moves.nodes["n4"].puller.reason("n4")


def test_slots_are_pulled_until_their_files_are_attached(moves: Moves) -> None:
    """A scan waits for its slots, which come first; those of other groups are not waited for."""
    node = moves.nodes["n4"]
    assert frozenset(GAINED) == node.puller.pulling("n4")
    assert frozenset() == node.puller.pulling("n1")
    assert not node.puller.wait_until_pulled("n4", GAINED, 0.0)
    assert node.puller.wait_until_pulled("n4", {0, 1}, 0.0)
    found: list[bool] = []
    waiting = threading.Thread(target=lambda: found.append(node.puller.wait_until_pulled("n4", GAINED[:2], 60.0)))
    waiting.start()
    moves.turns("n4", count=4)
    waiting.join()
    assert [True] == found
    assert frozenset() == node.puller.pulling("n4")


def test_urgent_slots_come_first(moves: Moves) -> None:
    """Whatever order their files have in the catalogue."""
    node = moves.nodes["n4"]
    node.puller.files.stop()
    moves.turns("n4", count=4)
    wanted = slot_of_entry(node.target.store.awaited()[-1])
    with node.puller._urgently("n4", frozenset({wanted})):
        due = node.puller._due_files()
    assert wanted == slot_of_entry(due[0].entry)
    assert wanted != slot_of_entry(node.puller._due_files()[0].entry)


def test_a_node_that_is_behind_in_the_membership_log_does_not_answer_for_slots_that_it_does_not_know(
    moves: Moves,
) -> None:
    """Its group has the new table already, so any slot may be one that came."""
    moves.state = MembershipState(records=1, table=CHANGE.base)
    assert frozenset(range(TABLE.slots)) == moves.nodes["n4"].puller.pulling("n4")


def test_files_that_are_awaited_after_the_change_come_from_the_group_itself(moves: Moves) -> None:
    """A member lost its data when the donors had released theirs."""
    moves.hand_over()
    moves.turns(count=6)
    finished(moves)
    for node in moves.nodes.values():
        SlotRelease(node.groups, lambda: moves.state).turn()
        for topic in node.groups:
            node.follow(topic)
    n4 = moves.nodes["n4"]
    n4.groups.pop(topic_of(TARGET)).store.close()
    shutil.rmtree(moves.directory / "n4")
    n4.puller = n4.new_puller()
    n4.open(TARGET, moves.founding)
    assert n4.target.store.awaited()
    assert n4.puller.pulling("n4")
    moves.turns("n4", count=3)
    assert frozenset() == n4.puller.pulling("n4")
    finished(moves)


def test_donors_release_what_they_gave_when_the_change_has_ended(moves: Moves) -> None:
    """Only their own files; a reader keeps those that it reads. A slot that is running is kept."""
    n1 = moves.nodes["n1"].groups[topic_of(GroupKey("n1", 1))]
    release = SlotRelease(moves.nodes["n1"].groups, lambda: moves.state)
    _, entry = donor_file(moves, "n1", "n1")
    before = contents(n1.store)
    release.turn()
    moves.nodes["n1"].follow(topic_of(GroupKey("n1", 1)))
    n1.turn()
    assert entry in n1.store.cut_files()
    moves.hand_over()
    moves.turns(count=6)
    assert {14, 15} == releasable(moves.state, "n1", n1.applied.changes)
    moved = {key for row in moves.moved_rows("cpu") for key in expected([row])}
    with n1.store.scan("plant", "cpu") as scan:
        version = n1.store_jobs.version
        release.turn()
        n1.turn()
        assert [] == n1.store.cut_files()
        assert all(path.exists() for path in scan.files)
    assert before == contents(n1.store)
    assert moved.isdisjoint(before)
    assert version == n1.store_jobs.version
    # The log continues behind it, at the next version.
    moves.lead(GroupKey("n1", 1), "n1")
    assert "" == n1.health.reason
    finished(moves)


def test_a_file_that_the_other_members_have_merged_is_replaced_by_all_of_their_files(
    moves: Moves, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not at once, not while a donor may have it, and not when the others await it themselves."""
    n4, kinds = moves.nodes["n4"], ["SegmentAwaited"]

    def refuse(*_arguments: object) -> None:
        raise CutRefused("n3: not this one", kind=kinds[0])

    monkeypatch.setattr(PeerCut, "stage", refuse)
    kinds[0] = "FileGone"
    moves.turns("n4", count=16)
    assert n4.target.store.awaited()
    assert [] == moves.replaced
    moves.state = MembershipState(records=2, table=TABLE)
    kinds[0] = "SegmentAwaited"
    moves.turns("n4", count=16)
    kinds[0] = "FileGone"
    moves.turns("n4", count=5)
    assert [] == moves.replaced
    moves.turns("n4", count=12)
    assert {(topic_of(TARGET), frozenset({"n3"}))} == {(topic, trusted) for topic, _, trusted in moves.replaced}


def test_files_of_data_that_is_to_be_replaced_are_not_fetched(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    """They may be nowhere, and asking for them would take the time of the copy. Until then one of them is named now and
    then, not each of them every second.
    """
    n4, asked = moves.nodes["n4"], list[str]()

    def refuse(_self: PeerCut, entry: SegmentEntry, *_arguments: object) -> None:
        asked.append(entry.name)
        raise CutRefused(f"no file {entry.name}", kind="FileGone")

    monkeypatch.setattr(PeerCut, "stage", refuse)
    with capture_logs() as lines:
        moves.turns("n4", count=12)
    assert len(n4.target.store.awaited()) > 2
    # 13 s by the clock of the node.
    assert [] == [line for line in lines if line["log_level"] == "warning"]
    with capture_logs() as lines:
        moves.turns("n4", count=36)
    warnings = [line["event"] for line in lines if line["log_level"] == "warning"]
    assert 1 <= warnings.count("file not fetched") == len(warnings) <= 3
    n4.target.health.mark("other members have merged it")
    asked.clear()
    moves.turns("n4", count=4)
    assert [] == asked


def test_a_member_that_has_carried_out_a_load_knows_that_its_file_is_merged(moves: Moves) -> None:
    """One that is behind does not know what becomes of the file, and says no more than that it has none."""
    moves.turns("n4", "n3", count=3)
    service, known = CutService("n3", moves.nodes["n3"].groups), moves.nodes["n3"].target.store.loaded_version
    assert known > 0
    for loaded, kind in ((known, FileMerged), (known + 1, FileGone), (0, FileGone)):
        with pytest.raises(FileGone) as caught:
            service.open(TARGET, "0" * 32, "series", 0, loaded)
        assert kind is type(caught.value)


def test_a_file_that_a_member_has_merged_is_not_waited_for(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    """The other files are copied at once, and the member is asked by the version of the load in their own log."""
    asked: list[tuple[int, int]] = []

    def refuse(_source: PeerCut, entry: SegmentEntry, _staging: Path, _observer: object, loaded: int) -> None:
        asked.append((entry.loaded_version, loaded))
        raise CutRefused("n3: not this one", kind="FileMerged")

    monkeypatch.setattr(PeerCut, "stage", refuse)
    n4 = moves.nodes["n4"]
    moves.turns("n4", count=4)
    assert [] == moves.replaced
    assert any(loaded == 0 for _, loaded in asked)
    asked.clear()
    moves.state = MembershipState(records=2, table=TABLE)
    moves.turns("n4", count=2)
    assert n4.target.store.awaited()
    assert {(topic_of(TARGET), frozenset({"n3"}))} == {(topic, trusted) for topic, _, trusted in moves.replaced}
    assert all(version == loaded > 0 for version, loaded in asked)


def test_a_member_that_leaves_the_group_fetches_nothing(moves: Moves) -> None:
    """It reads the loads like all others until it closes the group."""
    n4 = moves.nodes["n4"]
    moves.append(
        topic_of(TARGET),
        Barrier(moves.leaders[topic_of(TARGET)], ANCHOR, 2, BarrierPhase.FORMAL, 3, TABLE.slots, ("n3", "n1"), ()),
    )
    moves.lead(TARGET, "n3")
    moves.turns("n3", count=4)
    moves.state = MembershipState(records=2, table=TABLE.remove_node("n4"))
    moves.turns("n4", count=4)
    assert n4.target.store.awaited()
    assert 0 == n4.puller.rate.received_bytes
    assert [] == moves.nodes["n3"].target.store.awaited()


def test_a_node_that_joins_the_group_fetches_files_of_old_loads_before_its_log_names_it(moves: Moves) -> None:
    """Its store may wait for them, and then the record that makes it a member is behind the wait."""
    moves.hand_over()
    moves.turns(count=6)
    finished(moves)
    places = range(0, POSITION_MAX, POSITION_MAX // 50)
    tables = (TABLE.add_node(RingNode("n5", position)) for position in places)
    changes = (RunningChange(2, "r2", ChangeKind.ADD, "n5", "s", TABLE, table) for table in tables)
    change = next(each for each in changes if "n5" in each.pre_members("n4"))
    moves.state = MembershipState(records=2, table=TABLE, changes=2, change=change)
    n5 = moves.nodes["n5"] = MovingNode(moves, "n5")
    group = n5.open(TARGET, moves.founding)
    assert "n5" not in group.members
    assert group.store.awaited()
    moves.turns("n5", count=6)
    assert () == tuple(group.store.awaited())
    has_all(moves, group.store)


class CountedPause:
    """A clock that waits pass on."""

    def __init__(self, clock: ManualClock) -> None:
        self.clock = clock
        self.stopped = False

    def wait(self, timeout: float) -> bool:
        """See Pause."""
        self.clock.now_s += timeout
        return self.stopped


def test_the_rate_limit_holds_for_all_fetches_together() -> None:
    """In bytes over time, whatever the sizes of chunks are; a pause saves nothing up, and a stop ends the wait."""
    clock = ManualClock()
    pause = CountedPause(clock)
    rate, begun_s = PullRate(1_000, pause, clock), clock.now_s
    for size in (1, 999, 4_000, 5_000):
        rate.received(size)
    assert 10.0 == pytest.approx(clock.now_s - begun_s)
    clock.now_s += 100.0
    rate.received(3_000)
    assert 113.0 == pytest.approx(clock.now_s - begun_s)
    assert 13_000 == rate.received_bytes
    assert 300.0 == pytest.approx(rate.per_second)
    pause.stopped = True
    with pytest.raises(TransferStopped):
        rate.received(1)


def test_the_rate_of_a_change_holds_beside_that_of_the_node(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    """The lower one of both, as long as the change runs."""
    clock = ManualClock()
    rate = PullRate(1_000, CountedPause(clock), clock)
    for limit, seconds in ((4_000, 2.0), (500, 4.0), (0, 2.0)):
        rate.limit(limit)
        begun_s = clock.now_s
        rate.received(2_000)
        assert seconds == pytest.approx(clock.now_s - begun_s)
    node = moves.nodes["n4"]
    limits: list[int] = []
    monkeypatch.setattr(node.puller.rate, "limit", limits.append)
    moves.state = replace(moves.state, change=replace(CHANGE, rate=1_234))
    moves.turns("n4", count=1)
    moves.state = MembershipState(records=2, table=TABLE)
    moves.turns("n4", count=1)
    assert [1_234, 0] == limits


def test_a_copy_that_nobody_waits_for_leaves_busy_processors_to_others() -> None:
    """It pauses four times as long as it waited for one, and works a quarter of its time at least; a stop ends it."""
    clock, times = ManualClock(), [ProcessorTime(0.0, 0.0)]
    pause = CountedPause(clock)
    rate = PullRate(0, pause, clock)
    copying = YieldingRate(rate, 0.25, lambda: times[-1])
    # Ran, waited, and paused since the chunk before: none waits on an idle machine, and a crowded one has a bound.
    for ran_s, waited_s, paused_s in ((1.0, 0.0, 0.0), (2.0, 0.5, 2.0), (1.0, 9.0, 30.0)):
        times.append(ProcessorTime(times[-1].ran_s + ran_s, times[-1].waited_s + waited_s))
        begun_s = clock.now_s
        copying.received(10)
        assert paused_s == pytest.approx(clock.now_s - begun_s)
    assert 30 == rate.received_bytes
    assert 0.0 == yield_s(ProcessorTime(0.0, 0.0), ProcessorTime(1.0, 9.0), 1.0)
    pause.stopped = True
    with pytest.raises(TransferStopped):
        copying.received(1)


def test_without_a_limit_nothing_waits() -> None:
    """0 is no limit."""
    clock = ManualClock()
    began_s = clock.now_s
    rate = PullRate(0, CountedPause(clock), clock)
    rate.received(10**12)
    assert began_s == clock.now_s
