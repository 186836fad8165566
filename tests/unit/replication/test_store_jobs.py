"""Steps of jobs on files: a pool repeats them, a full disk is a pause and not a loop, and few failures are damage."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.consumers.replication.founding import Founding
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import Aspect, GroupHealth, State
from headrace.consumers.replication.group_state import GapRecord, GroupState, LogBase
from headrace.consumers.replication.hash_chain import record_digest
from headrace.consumers.replication.journal import JournalEntry
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.consumers.replication.store_jobs import (
    GATHER_STEPS_MAX,
    NO_CONTENT,
    IsUrgent,
    JobStep,
    JobThread,
    StoreJobQueue,
)
from headrace.consumers.store import SegmentAwaited, Store, StoreFull, StoreJob, StoreSettings, StoreUnwritable
from headrace.consumers.store import segment_reader as reader
from headrace.schemas.messages import NO_CHAIN, Anchor, Gap, Message, ProducerPosition, encode_message
from tests.unit.replication.synced_groups import OneTable
from tests.unit.store.builders import CPU, DATABASE, Row, seal, write
from tests.unit.store.foreign import foreign_files, load_of
from tests.waiting import eventually

ROWS: list[Row] = [({"host": "a"}, at, {"note": "x"}) for at in range(4)]


def test_a_step_is_repeated_until_it_ends_before_the_next_begins() -> None:
    """The order of submission holds, also for a step that asks for another attempt."""
    pool, attempts = JobThread("test"), list[str]()

    def twice() -> float | None:
        attempts.append("first")
        return 0.0 if len(attempts) < 2 else None

    def once() -> None:
        attempts.append("second")

    pool.submit(twice)
    pool.submit(once).result()
    pool.shutdown()
    assert ["first", "first", "second"] == attempts


def test_an_urgent_step_keeps_its_place() -> None:
    """It runs on another thread, behind those before it, and those behind it wait for its end."""
    pool, attempts = JobThread("test", 3), list[tuple[str, bool]]()

    def note(name: str, repeats: int = 0) -> JobStep:
        def step() -> float | None:
            attempts.append((name, "urgent" in threading.current_thread().name))
            return 0.01 if len([each for each, _ in attempts if each == name]) <= repeats else None

        return step

    pool.submit(note("first", repeats=2))
    pool.submit(note("second", repeats=2), urgent=lambda: True)
    pool.submit(note("third")).result()
    pool.shutdown()
    assert [("first", False)] * 3 + [("second", True)] * 3 + [("third", False)] == attempts


def test_a_pause_ends_when_the_pool_is_hurried() -> None:
    """A stopping group does not wait for the end of the pause of a job that a full disk holds."""
    pool, tried, stopping = JobThread("test"), threading.Event(), threading.Event()

    def full_disk() -> float | None:
        tried.set()
        return None if stopping.is_set() else 3_600.0

    handle = pool.submit(full_disk)
    assert tried.wait(60.0)
    stopping.set()
    pool.hurry()
    handle.result()
    pool.shutdown()
    assert handle.done()


@pytest.mark.parametrize("changed", [False, True])
def test_a_merge_that_fails_on_unchanged_bytes_stops_the_group_and_condemns_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: bool
) -> None:
    """Every replica would fail alike: one that called it damage would look for a copy that nobody could read."""
    store = Store.open(tmp_path, "n1")
    write(store, 1, ROWS)
    seal(store, 2)
    (entry,) = store.segments()
    path = store.segments_directory / entry.name
    if changed:
        path.write_bytes(path.read_bytes()[:-1] + b"?")

    def overflow(*_arguments: object) -> pa.RecordBatch:
        raise pa.ArrowInvalid("offset overflow while concatenating arrays")

    monkeypatch.setattr(reader, "_read_open", overflow)
    health = GroupHealth(threading.Condition())
    queue = StoreJobQueue("n1", store, GroupState(), ReplicationLimits(), health, lambda _group, _version: None)
    queue.submit(store.compact(3, [entry.name]))
    queue.drain()
    assert health.holds(State.STOPPED)
    assert entry.name in health.cause(Aspect.RECORDS)
    assert changed is health.holds(State.DAMAGED)
    queue.stop()
    store.close()


class HeldPool:
    """A JobPool that makes one attempt at each of its steps when `run` is called."""

    def __init__(self) -> None:
        self.steps: list[JobStep] = []
        self.urgent: list[bool] = []
        self.are_urgent: list[IsUrgent] = []

    def submit(self, step: JobStep, *, urgent: IsUrgent = lambda: False) -> HeldPool:
        """See JobPool."""
        self.steps.append(step)
        self.urgent.append(urgent())
        self.are_urgent.append(urgent)
        return self

    def done(self) -> bool:
        """See JobHandle."""
        return not self.steps

    def result(self, timeout: float | None = None) -> None:
        """See JobHandle."""
        del timeout

    def hurry(self) -> None:
        """See JobPool."""

    def shutdown(self) -> None:
        """See JobPool."""

    def run(self) -> None:
        """One attempt at each."""
        self.steps = [step for step in self.steps if step() is not None]


class Scene:
    """A queue over a real store, whose jobs run on demand, and the seals that it reports."""

    def __init__(self, directory: Path) -> None:
        self.store = Store.open(directory, "n1")
        self.pool, self.sealed = HeldPool(), list[int]()
        self.health = GroupHealth(threading.Condition())
        self.queue = StoreJobQueue(
            "n1",
            self.store,
            GroupState(),
            ReplicationLimits(),
            self.health,
            lambda _group, version: self.sealed.append(version),
            self.pool,
        )
        write(self.store, 1, ROWS)

    def seal(self) -> None:
        """Submit a seal at version 2."""
        self.queue.seal(self.store.freeze(2, 1, b"state"), 7, 70)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    """A queue with some rows to seal."""
    made = Scene(tmp_path)
    yield made
    made.store.close()


def test_a_seal_is_reported_when_its_files_are_there(scene: Scene) -> None:
    """The journal drops the records then; until then no version of files, and no digest, is shown."""
    before = scene.queue.content()
    scene.seal()
    assert ([], -1, NO_CONTENT, 0, -1) == (
        scene.sealed,
        scene.queue.version,
        scene.queue.content(),
        scene.queue.sealed_version,
        scene.queue.sealed_offset,
    )
    scene.pool.run()
    assert ([2], 2, 2, 7) == (scene.sealed, scene.queue.version, scene.queue.sealed_version, scene.queue.sealed_offset)
    assert (2, before[1]) != scene.queue.content()
    assert 2 == scene.queue.content()[0]


def test_a_job_that_the_log_has_waited_for_is_no_background_work(scene: Scene) -> None:
    """On a busy machine that gets next to nothing, and a replica that catches up would never be done."""
    for version in range(2, 6):
        scene.queue.wait_for_room()
        scene.queue.seal(scene.store.freeze(version, 1, b"state"), version, 70)
    scene.pool.run()
    scene.queue.wait_for_room()
    scene.queue.seal(scene.store.freeze(6, 1, b"state"), 6, 70)
    # Two may be unfinished, so the third had to wait, and the fourth; behind the end of all of them nobody waits.
    assert [False, False, True, True, False] == scene.pool.urgent


def test_a_load_waits_a_moment_for_others_that_come(scene: Scene) -> None:
    """While their number grows, and not for ever; one alone does not wait."""

    def submit(version: int) -> None:
        (file,) = foreign_files([({"host": "a"}, version, {"busy": 1})], (1, version * 10, version * 10 + 9))
        scene.queue.submit(scene.store.load(version, load_of(file, 2), CPU, DATABASE))

    scene.seal()
    scene.pool.run()
    submit(3)
    scene.pool.run()
    assert (3, []) == (scene.queue.version, scene.pool.steps)
    submit(4)
    submit(5)
    first, waits = scene.pool.steps[0], 0
    for version in range(6, 40):
        if first() is None:
            break
        waits += 1
        submit(version)
    assert GATHER_STEPS_MAX == waits
    for step in scene.pool.steps[1:]:
        assert step() is None
    assert version - 1 == scene.queue.version == len(scene.store.awaited()) + 2
    submit(40)
    submit(41)
    first, second = scene.pool.steps[-2:]
    assert first() is not None
    assert (None, None) == (first(), second()), "no more have come"


def test_loads_that_are_done_with_the_first_are_counted_and_no_more(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hundreds of them have nothing to do: passed on to the urgent thread, and reported each, they took a second."""
    scene.seal()
    for version, start in enumerate((10, 20, 30), 3):
        (file,) = foreign_files([({"host": "a"}, start, {"busy": 1})], (1, start, start + 9))
        scene.queue.submit(scene.store.load(version, load_of(file, 2), CPU, DATABASE))
    reported = list[int]()
    report = StoreJobQueue._report

    def noted(queue: StoreJobQueue, job: StoreJob) -> None:
        reported.append(job.version)
        report(queue, job)

    monkeypatch.setattr(StoreJobQueue, "_report", noted)
    assert [False, True, True, True] == [is_urgent() for is_urgent in scene.pool.are_urgent]
    seal, first, *others = scene.pool.steps
    assert seal() is None
    assert first() is not None, "it waits a moment for more"
    assert first() is None
    assert [False] * 4 == [is_urgent() for is_urgent in scene.pool.are_urgent]
    assert (-1, 3) == (scene.queue.version, len(scene.store.awaited()))
    for step in others:
        assert step() is None
    assert (5, [2, 3]) == (scene.queue.version, reported)


def test_a_digest_of_files_that_change_meanwhile_is_of_no_version(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Members compare it at equal versions: a wrong one would condemn good data."""
    digests = scene.store.digests

    def before_a_seal() -> dict[str, str]:
        found = digests()
        scene.seal()
        return found

    monkeypatch.setattr(scene.store, "digests", before_a_seal)
    assert NO_CONTENT == scene.queue.content()


@pytest.mark.parametrize("error", [StoreFull("disk full"), StoreUnwritable("no disk"), ValueError("a fault")])
def test_a_job_that_did_not_succeed_is_never_shown_as_done(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """A full disk is waited for, anything else stops the group; the journal keeps the rows in both cases."""
    with monkeypatch.context() as patch:

        def fail(*_arguments: object) -> None:
            raise error

        patch.setattr(scene.store._components.files, "stage", fail)
        scene.seal()
        scene.pool.run()
        assert ([], -1) == (scene.sealed, scene.queue.version)
    full = isinstance(error, StoreFull)
    assert (full, not full) == (scene.health.holds(State.DEFERRED), scene.health.holds(State.STOPPED))
    scene.pool.run()
    assert (([2], 2) if full else ([], -1)) == (scene.sealed, scene.queue.version)


@pytest.mark.parametrize("steps", [0, 1, 2, 3, 4])
def test_a_merge_of_a_node_that_stops_ends_between_its_steps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """A large one takes minutes, longer than a supervisor waits. Nothing of it is there, and the next start does it."""
    store = Store.open(tmp_path, "n1", StoreSettings(row_group_rows=3))
    health, taken, stopping = GroupHealth(threading.Condition()), list[int](), threading.Event()
    queue = StoreJobQueue("n1", store, GroupState(), ReplicationLimits(), health, lambda _group, _version: None)
    for version in (2, 4):
        write(store, version - 1, ROWS)
        seal(store, version)
    inputs = sorted(entry.name for entry in store.segments())
    is_wanted = StoreJob._end_if_unwanted

    def step(job: StoreJob) -> None:
        if len(taken) == steps:
            queue.cancel()
            stopping.set()
        taken.append(len(taken))
        is_wanted(job)

    monkeypatch.setattr(StoreJob, "_end_if_unwanted", step)
    queue.submit(store.compact(5, inputs))
    assert stopping.wait(60.0)
    queue.stop()
    assert (steps + 1, inputs) == (len(taken), sorted(entry.name for entry in store.segments()))
    assert (-1, False) == (queue.version, health.is_wrong)
    store.close()
    again = Store.open(tmp_path, "n1")
    again.compact(5, inputs).run()
    assert 1 == len(again.segments())
    again.close()


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Group]:
    """An empty group without its thread."""
    store, tables = Store.open(tmp_path, "n1"), OneTable()
    made = Group("n1", Founding(("n1",)), store, tables, ReplicationLimits(), lambda _group, _version: None, HeldPool())
    yield made
    made.stop()
    store.close()


class AwaitingJob(StoreJob):
    """A job that needs a file of another node, until `come`."""

    def __init__(self, group: Group, version: int) -> None:
        super().__init__(group.store._components, version)
        self.tried, self.come = threading.Event(), threading.Event()

    def _execute(self) -> None:
        self.tried.set()
        if not self.come.is_set():
            raise SegmentAwaited("it waits for a file")


@pytest.fixture
def starting(tmp_path: Path) -> Iterator[Group]:
    """A group before its thread, with jobs on a thread of their own that try again at once."""
    store = Store.open(tmp_path, "n1")
    limits = ReplicationLimits(job_retry_s=0.01)
    made = Group("n1", Founding(("n1",)), store, OneTable(), limits, lambda _group, _version: None)
    yield made
    made.stop()
    store.close()


def test_a_start_waits_for_no_file_of_another_node(starting: Group) -> None:
    """Nobody fetches it before the node has started: the records behind are left to the thread of the group."""
    jobs, awaiting = starting.store_jobs, AwaitingJob(starting, 1)
    entries = [JournalEntry("n1", version, version - 1, 0, (), b"x") for version in (1, 2, 3)]

    def note(entry: JournalEntry) -> None:
        # As if the first record were a merge, and a seal behind it.
        if entry.version == 1:
            jobs.submit(awaiting)
            jobs.submit(AwaitingJob(starting, 1))
            jobs.submit_aside(AwaitingJob(starting, 1))

    assert entries[-1] is starting.recover(entries, note)
    assert awaiting.tried.is_set()
    assert (1, True) == (starting.version, jobs.waits_for_files)
    assert starting.turn()
    assert 2 == starting.version


def test_there_is_room_again_when_the_file_has_come(starting: Group) -> None:
    """The applying thread waits for it, and then for nothing."""
    jobs, awaiting = starting.store_jobs, AwaitingJob(starting, 1)
    jobs.submit(awaiting)
    behind = AwaitingJob(starting, 2)
    behind.come.set()
    jobs.submit(behind)
    assert awaiting.tried.wait(60.0)
    eventually(lambda: jobs.lacks_file, "the job awaits its file")
    awaiting.come.set()
    jobs.wait_for_room()
    jobs.drain()
    assert not jobs.lacks_file


def test_a_record_that_fails_stops_its_group(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the error is, no record is skipped here and applied elsewhere."""

    def fail(*_arguments: object) -> list[object]:
        raise ZeroDivisionError

    monkeypatch.setattr(type(group.replica), "apply", fail)
    group.enqueue([JournalEntry("n1", version, version - 1, 0, (), b"x") for version in (1, 2)])
    assert group.turn()
    monkeypatch.undo()
    assert not group.turn()
    assert (0, True, False) == (group.version, group.health.holds(State.STOPPED), group.follows)


def test_a_group_behind_a_gap_offers_no_files_that_end_before_it(group: Group) -> None:
    """Nor does it compare the record before the gap, which is in no log."""
    for version in range(1, 4):
        group.enqueue([JournalEntry("n1", version, version - 1, 0, (), b"x")])
        group.turn()
    state = group.replica.state
    group.store_jobs.sealed_version, group.store_jobs.sealed_offset = 2, 1
    assert (2, 1) == group.sealed_for_others
    group.join_gap(LogBase("another", 40, 3, state.chain))
    assert (39, NO_CHAIN, 39) == (state.offset, state.record_digest, group.applied.offset)
    assert (0, -1) == group.sealed_for_others
    group.store_jobs.sealed_version, group.store_jobs.sealed_offset = 3, 39
    assert (3, 39) == group.sealed_for_others


def test_a_group_offers_no_files_before_the_gap_itself_is_in_them(group: Group) -> None:
    """The log may be cut before the record of the gap: a copy would follow it and never notice."""
    group.enqueue([JournalEntry("n1", 1, 0, 0, (), b"x")])
    group.turn()
    base = LogBase("another", 40, 1, group.replica.state.chain, GapRecord(45, b"gap"))
    group.join_gap(base)
    jobs = group.store_jobs
    for jobs.sealed_version, jobs.sealed_offset in ((1, 50), (3, 44)):
        assert (0, -1) == group.sealed_for_others
    jobs.sealed_version, jobs.sealed_offset = 7, 45
    assert (7, 45) == group.sealed_for_others


def test_a_restart_behind_a_gap_knows_where_the_gap_is(group: Group) -> None:
    """The store has the base, and not the place of its record."""
    state = group.replica.state
    state.version, state.base = 9, LogBase("another", 40, 1)
    group.join_gap(LogBase("another", 40, 1, record=GapRecord(45, b"gap")))
    assert (9, GapRecord(45, b"gap")) == (state.version, state.base.record)
    group.join_gap(LogBase("a third", 2, 1, record=GapRecord(3, b"gap")))
    assert "another" == state.base.topic_id, "a group that has more keeps its base"


@pytest.mark.parametrize(
    ("resume", "version", "chain", "continues"),
    [(3, 3, True, True), (3, 3, False, False), (2, 3, True, False), (4, 3, True, True), (3, 2, True, False)],
)
def test_a_group_continues_behind_a_gap_if_its_log_had_all_before(
    group: Group, resume: int, version: int, chain: bool, continues: bool
) -> None:
    """What it read below the place of the gap is the data of the gap's anchor; else it lacks records."""
    for newest in range(1, 4):
        group.enqueue([JournalEntry("n1", newest, newest - 1, 0, (), b"x")])
        group.turn()
    anchor = Anchor(9, version, group.chain_at(version) or NO_CHAIN if chain else b"c" * 16)
    value = encode_message(Message(ProducerPosition("n2/gap", 1, 0), Gap("t", resume, anchor)))
    group.enqueue([JournalEntry("n1", 4, 4, 0, (), value)])
    group.turn()
    assert (continues, not continues) == (group.version == 4, group.health.holds(State.DAMAGED))
    if continues:
        assert (resume, GapRecord(4, record_digest(value))) == (
            group.replica.state.base.offset,
            group.replica.state.base.record,
        )
    else:
        assert LogBase() == group.replica.state.base
