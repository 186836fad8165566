"""Nodes in this process whose log was trimmed: they copy files first, then follow the log."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from headrace.consumers.node.offline_replay import NodeRunning, replay
from headrace.consumers.recovery import group_copies, progress
from headrace.consumers.recovery.coordinator import RecoveryCoordinator
from headrace.consumers.recovery.file_copy import Snapshot, Source, fetch
from headrace.consumers.recovery.progress import CopyObserver, Recovery, TransferStopped
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.journal import JournalEntry
from headrace.schemas.errors import HeadraceError
from headrace.schemas.records import Status
from tests.unit.nodes import Nodes, corrupt, running_nodes, sealed_by_any
from tests.waiting import eventually


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """Three nodes that trim eagerly."""
    with running_nodes(tmp_path, monkeypatch, ("n1", "n2", "n3")) as nodes:
        yield nodes


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """One node alone."""
    with running_nodes(tmp_path, monkeypatch, ("n1",)) as nodes:
        yield nodes


@pytest.mark.slow(10)
def test_a_wiped_node_recovers_from_logs_that_were_trimmed_beyond_every_file(three: Nodes) -> None:
    """An operator trimmed what no member has sealed: leaders seal it, and nobody has to ask them to."""
    three.write()
    for name in three.running:
        three.holds_everything(name)
    three.wipe("n3")
    for name in three.names:
        topic = three.topics.forward(name)
        three.log.trim(topic, three.log.describe(topic).end - 1)
    three.start("n3")
    three.holds_everything("n3")


def test_a_wiped_node_excludes_a_source_whose_disk_has_rotted(three: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of equal size with other bytes are found by the catalogue's digests; another member sends good ones."""
    three.write()
    three.seal_and_trim()
    three.stop("n3")
    shutil.rmtree(three.directory / "n3")
    for path in (three.directory / "n1" / "segments").rglob("*.parquet"):
        corrupt(path)
    requested: list[str] = []
    rotted = three.running["n1"]
    make_snapshot = rotted.make_snapshot

    def make_and_record(group: str) -> Snapshot:
        requested.append(group)
        return make_snapshot(group)

    monkeypatch.setattr(rotted, "make_snapshot", make_and_record)
    three.start("n3")
    three.holds_everything("n3")
    assert "n1" in requested
    assert (
        three.running["n2"].requests.evidence("n1", 1, 10**9)["digests"]
        == three.running["n3"].requests.evidence("n1", 1, 10**9)["digests"]
    )


@pytest.mark.slow(6)
def test_a_node_that_was_offline_for_too_long_replaces_its_files(three: Nodes) -> None:
    """Old segments and journal are replaced; later rows come from the log, and a restart opens one complete store."""
    three.write()
    three.seal_and_trim()
    three.write()
    three.stop("n3")
    three.seal_and_trim()
    three.write()
    three.seal_and_trim()
    three.write()
    three.start("n3")
    three.holds_everything("n3")
    three.write()
    three.stop("n3")
    three.start("n3")
    three.holds_everything("n3")
    assert not list((three.directory / "n3" / "replaced").glob("*"))


def test_a_log_trimmed_right_behind_the_newest_record_is_followed(one: Nodes) -> None:
    """No record is missing, so no file is copied; only the record to compare with is absent."""
    one.write()
    one.seal_and_trim()
    one.stop("n1")
    topic = one.topics.forward("n1")
    one.log.trim(topic, one.log.describe(topic).end)
    one.start("n1")
    one.write()
    one.holds_everything("n1")


def test_a_log_trimmed_beyond_every_member_stops_the_group_with_choices(one: Nodes) -> None:
    """The node reports the missing records and the choices, serves nothing and keeps its data.

    Replay is refused too.
    """
    one.write()
    one.seal_and_trim()
    one.write()
    eventually(lambda: one.running["n1"].positions.end(one.topics.forward("n1")) > 0, "an end")
    one.stop("n1")
    kept = sorted((one.directory / "n1").rglob("*.parquet"))
    topic = one.topics.forward("n1")
    one.log.gap(topic, 5)
    one.log.trim(topic, one.log.describe(topic).end)
    one.start("n1")
    node = one.running["n1"]
    eventually(lambda: "no member in sync has the files" in node.reason(topic), "a reason")
    assert "the data is kept" in node.reason(topic)
    assert not node.ready()[0]
    assert kept == sorted((one.directory / "n1").rglob("*.parquet"))
    one.stop("n1")
    with pytest.raises(HeadraceError, match="recovers from the files of another member"):
        replay(one.settings("n1"), may_replace=True, on_progress=lambda _done, _total: None, log=one.log)
    assert kept == sorted((one.directory / "n1").rglob("*.parquet"))


@pytest.mark.parametrize("clock_error_ms", [-31_536_000_000, 31_536_000_000])
def test_only_a_node_that_runs_is_not_rebuilt(one: Nodes, monkeypatch: pytest.MonkeyPatch, clock_error_ms: int) -> None:
    """Whatever the clock of the broker shows: a node runs if its statuses arrive now."""
    monkeypatch.setattr(one.log, "_clock_ms", lambda: time.time_ns() // 1_000_000 + clock_error_ms)
    one.ready()
    one.write()

    def rebuild() -> int:
        found = replay(one.settings("n1"), may_replace=True, on_progress=lambda _done, _total: None, log=one.log)
        return found.rows

    with pytest.raises(NodeRunning):
        rebuild()
    one.stop("n1")
    assert one.written == rebuild()


def test_a_copy_below_the_trim_point_is_not_installed(three: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log was trimmed past the copy, as for a receiver without heartbeat: it plans again and copies newer files."""
    three.write()
    three.seal_and_trim()
    three.stop("n3")
    shutil.rmtree(three.directory / "n3")
    copies: list[int] = []

    def fetch_late(source: Source, directory: Path, observer: CopyObserver, own: Path) -> Snapshot:
        snapshot = fetch(source, directory, observer, own)
        if snapshot.group == "n1":
            copies.append(snapshot.offset)
            if len(copies) == 1:
                three.write()
                trim_past(three, "n1")
        return snapshot

    monkeypatch.setattr(group_copies, "fetch", fetch_late)
    three.start("n3")
    three.holds_everything("n3")
    assert len(copies) > 1
    assert copies[-1] > copies[0]


def test_a_group_is_copied_once_even_while_the_coordinator_plans_for_another_one(
    three: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An installed copy is not repeated over its group, which follows the log by then, while others are planned."""
    three.write()
    three.seal_and_trim()
    three.stop("n3")
    shutil.rmtree(three.directory / "n3")
    copies: list[str] = []
    planning, installed = threading.Event(), threading.Event()
    sources, release = RecoveryCoordinator._sources, RecoveryCoordinator.release

    def position(group: str) -> int:
        return [each.name for each in three.running["n3"].groups.values()].index(group)

    def fetch_second_late(source: Source, directory: Path, observer: CopyObserver, own: Path) -> Snapshot:
        snapshot = fetch(source, directory, observer, own)
        copies.append(snapshot.group)
        if position(snapshot.group) == 1:
            planning.wait(20.0)
        return snapshot

    def sources_of(self: RecoveryCoordinator, topic: str, group: Group) -> list[Status]:
        environment = self._environment
        monkeypatch.setattr(environment, "caught_up", lambda other: position(self._groups[other].name) != 0)
        if position(group.name) == 0 and group.health.conditions.recovery is None and not planning.is_set():
            planning.set()
            assert installed.wait(20.0)
            # The log consumer has not sought to its new offset yet.
            durable_offset = environment.durable_offset

            def before_the_copy(other: str) -> int:
                return -1 if position(self._groups[other].name) == 1 else durable_offset(other)

            monkeypatch.setattr(environment, "durable_offset", before_the_copy)
        return sources(self, topic, group)

    def released(self: RecoveryCoordinator, topic: str) -> None:
        release(self, topic)
        if planning.is_set() and position(self._groups[topic].name) == 1:
            installed.set()

    monkeypatch.setattr(group_copies, "fetch", fetch_second_late)
    monkeypatch.setattr(RecoveryCoordinator, "_sources", sources_of)
    monkeypatch.setattr(RecoveryCoordinator, "release", released)
    three.start("n3")
    three.holds_everything("n3")
    assert installed.is_set()
    assert sorted(copies) == ["n1", "n2", "n3"]


def test_a_group_is_replaced_only_when_no_record_is_in_flight_to_it(
    three: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log consumer may hang in the journal with records of a group whose copy is ready.

    The new group never gets them.
    """
    three.write()
    three.seal()
    node = three.running["n3"]
    topic = three.topics.forward("n1")
    old, append = node.groups[topic], node.journal.append
    appending, resume = threading.Event(), threading.Event()

    def hang(entries: Mapping[str, Sequence[JournalEntry]]) -> None:
        if "n1" in entries:
            appending.set()
            assert resume.wait(60.0)
        append(entries)

    monkeypatch.setattr(node.journal, "append", hang)
    try:
        three.write()
        assert appending.wait(60.0)
        node.supervisor.mark_wrong(topic, "for a test")
        recovered = three.directory / "n3" / "recovered" / old.directory_name
        eventually(recovered.exists, "a copy that is complete")
        time.sleep(0.5)
        assert node.groups[topic] is old
    finally:
        resume.set()
    eventually(lambda: node.groups[topic] is not old, "the copy in its place")
    three.holds_everything("n3")
    assert node.groups[topic].health.state is None


def trim_past(nodes: Nodes, group: str) -> None:
    """Seal a group and trim its log to the seal, without waiting for slow members."""
    members = [nodes.running[name] for name in ("n1", "n2")]
    topic = nodes.topics.forward(group)
    before = [node.groups[topic].store_jobs.sealed_offset for node in members]
    eventually(lambda: sealed_by_any(members, group), "a seal")
    eventually(
        lambda: all(
            node.groups[topic].store_jobs.sealed_offset > old for node, old in zip(members, before, strict=True)
        ),
        "files",
    )
    nodes.log.trim(topic, min(node.groups[topic].store_jobs.sealed_offset for node in members) + 1)


def test_the_reason_shows_progress_and_names_the_cause_of_a_stall(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, bytes, rate and time left while bytes come; after the stall timeout, the cause."""
    recovery = Recovery("the log begins at offset 10, 3 is needed", False, threading.Event(), 0)
    assert recovery.reason.endswith("begins at offset 10, 3 is needed; its files are copied when it is its turn")
    recovery.note_waiting("no member in sync has the files")
    assert "headrace accept-gap" in recovery.reason
    recovery.start_attempt("n2")
    assert "headrace accept-gap" not in recovery.reason
    recovery.begin(4, 8_000_000)
    recovery.kept(1_000_000)
    recovery.received(1_000_000)
    recovery.file_done()
    assert "recovering files from n2: 1 of 4 files, 2.0 of 8.0 MB" in recovery.reason
    assert (2_000_000, 8_000_000) == (recovery.bytes_done, recovery.bytes_total)
    monkeypatch.setattr(progress, "STALL_S", 0.0)
    assert "n2 sends nothing" in recovery.reason
    recovery.note_failure("n2: no route to host")
    assert recovery.reason.startswith("no progress for")
    assert "no route to host" in recovery.reason


def test_a_copy_ends_when_the_node_stops() -> None:
    """The copy stops at the next byte; the received bytes stay for the next start."""
    stopping = threading.Event()
    recovery = Recovery("why", False, stopping, 1)
    stopping.set()
    with pytest.raises(TransferStopped):
        recovery.received(1_000_000)
