"""Nodes whose log was trimmed, all in this process on a log in memory: files first, then the log."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from consumers.replay import replay
from consumers.replication import progress, recoverer
from consumers.replication.group import Group
from consumers.replication.journal import JournalEntry
from consumers.replication.progress import Recovery
from consumers.replication.recoverer import Recoverer
from consumers.replication.transfer import Snapshot, Source, TransferStopped, Watcher, fetch
from schemas.errors import HeadraceError
from schemas.records import Status
from tests.unit.nodes import Nodes, running_nodes, sealed_by_any, spoil
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


def test_a_wiped_node_passes_over_a_source_whose_disk_has_rotted(three: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of equal size with other bytes are found by the catalogue's digests; another member sends good ones."""
    three.write()
    three.seal_and_trim()
    three.stop("n3")
    shutil.rmtree(three.directory / "n3")
    for path in (three.directory / "n1" / "segments").rglob("*.parquet"):
        spoil(path)
    asked: list[str] = []
    rotted = three.running["n1"]
    make_snapshot = rotted.make_snapshot

    def noted(group: str) -> Snapshot:
        asked.append(group)
        return make_snapshot(group)

    monkeypatch.setattr(rotted, "make_snapshot", noted)
    three.start("n3")
    three.holds_everything("n3")
    assert "n1" in asked
    assert (
        three.running["n2"].evidence("n1", 1, 10**9)["digests"]
        == three.running["n3"].evidence("n1", 1, 10**9)["digests"]
    )


def test_a_node_that_was_away_for_too_long_gets_new_files_in_place_of_its_old_ones(three: Nodes) -> None:
    """Old segments and journal give way; what is written later comes from the log, and a restart finds one whole store."""
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


def test_a_log_trimmed_right_behind_the_newest_record_is_read_on(one: Nodes) -> None:
    """Nothing is missing, so nothing is copied; the record that would be compared is just not there."""
    one.write()
    one.seal_and_trim()
    one.stop("n1")
    topic = one.topics.forward("n1")
    one.log.trim(topic, one.log.describe(topic).end)
    one.start("n1")
    one.write()
    one.holds_everything("n1")


def test_a_log_trimmed_beyond_every_member_stops_the_group_with_choices(one: Nodes) -> None:
    """The node says what is missing and what can be done, serves nothing and keeps its data; replay refuses for the same reason."""
    one.write()
    one.seal_and_trim()
    one.write()
    eventually(lambda: one.running["n1"].end(one.topics.forward("n1")) > 0, "an end")
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


def test_a_copy_that_the_log_no_longer_joins_on_is_not_taken(three: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trimmed past the copy while it was made, as for a receiver that was silent: it plans again and takes a newer one."""
    three.write()
    three.seal_and_trim()
    three.stop("n3")
    shutil.rmtree(three.directory / "n3")
    copies: list[int] = []

    def fetch_late(source: Source, directory: Path, watcher: Watcher, own: Path) -> Snapshot:
        snapshot = fetch(source, directory, watcher, own)
        if snapshot.group == "n1":
            copies.append(snapshot.offset)
            if len(copies) == 1:
                three.write()
                trim_past(three, "n1")
        return snapshot

    monkeypatch.setattr(recoverer, "fetch", fetch_late)
    three.start("n3")
    three.holds_everything("n3")
    assert len(copies) > 1
    assert copies[-1] > copies[0]


def test_a_group_is_copied_once_even_while_the_recoverer_looks_at_another_one(
    three: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy that is in place while others are still planned is not made again over the group that follows by then."""
    three.write()
    three.seal_and_trim()
    three.stop("n3")
    shutil.rmtree(three.directory / "n3")
    copies: list[str] = []
    looks, installed = threading.Event(), threading.Event()
    sources, release = Recoverer._sources, Recoverer.release

    def place(group: str) -> int:
        return [each.name for each in three.running["n3"].groups.values()].index(group)

    def fetch_second_late(source: Source, directory: Path, watcher: Watcher, own: Path) -> Snapshot:
        snapshot = fetch(source, directory, watcher, own)
        copies.append(snapshot.group)
        if place(snapshot.group) == 1:
            looks.wait(20.0)
        return snapshot

    def look(self: Recoverer, topic: str, group: Group) -> list[Status]:
        self._behind = lambda other: place(self._groups[other].name) == 0
        if place(group.name) == 0 and group.recovery is None and not looks.is_set():
            looks.set()
            assert installed.wait(20.0)
            # The consuming thread has not taken its new place in the log yet.
            durable_offset = self._durable_offset
            self._durable_offset = lambda other: -1 if place(self._groups[other].name) == 1 else durable_offset(other)
        return sources(self, topic, group)

    def released(self: Recoverer, topic: str) -> None:
        release(self, topic)
        if looks.is_set() and place(self._groups[topic].name) == 1:
            installed.set()

    monkeypatch.setattr(recoverer, "fetch", fetch_second_late)
    monkeypatch.setattr(Recoverer, "_sources", look)
    monkeypatch.setattr(Recoverer, "release", released)
    three.start("n3")
    three.holds_everything("n3")
    assert installed.is_set()
    assert sorted(copies) == ["n1", "n2", "n3"]


def test_a_group_is_replaced_only_when_nothing_is_in_hand_for_it(three: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that reads the log may hang in the journal with records for a group whose new files are ready: they never reach the new group."""
    three.write()
    three.seal()
    node = three.running["n3"]
    topic = three.topics.forward("n1")
    old, append = node.groups[topic], node.journal.append
    in_hand, go_on = threading.Event(), threading.Event()

    def hang(entries: Mapping[str, Sequence[JournalEntry]]) -> None:
        if "n1" in entries:
            in_hand.set()
            assert go_on.wait(60.0)
        append(entries)

    monkeypatch.setattr(node.journal, "append", hang)
    try:
        three.write()
        assert in_hand.wait(60.0)
        node.mending.found_wrong(topic, "a test says so")
        recovered = three.directory / "n3" / "recovered" / old.directory_name
        eventually(recovered.exists, "a copy that is complete")
        time.sleep(0.5)
        assert node.groups[topic] is old
    finally:
        go_on.set()
    eventually(lambda: node.groups[topic] is not old, "the copy in its place")
    three.holds_everything("n3")
    assert not node.groups[topic].fault


def trim_past(nodes: Nodes, group: str) -> None:
    """Seal a group and trim its log to there, whoever holds it back."""
    members = [nodes.running[name] for name in ("n1", "n2")]
    topic = nodes.topics.forward(group)
    before = [node.groups[topic].files.sealed_offset for node in members]
    eventually(lambda: sealed_by_any(members, group), "a seal")
    eventually(
        lambda: all(node.groups[topic].files.sealed_offset > old for node, old in zip(members, before, strict=True)),
        "files",
    )
    nodes.log.trim(topic, min(node.groups[topic].files.sealed_offset for node in members) + 1)


def test_the_reason_tells_progress_and_names_what_holds_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, bytes, rate and time left while bytes come; after a time without any, the cause."""
    recovery = Recovery("the log begins at offset 10, 3 is needed", False, None, threading.Event(), 0)
    assert "begins at offset 10, 3 is needed" in recovery.reason
    recovery.copies_from("n2")
    recovery.begin(4, 8_000_000)
    recovery.have(1_000_000)
    recovery.received(1_000_000)
    recovery.file_done()
    assert "recovering files from n2: 1 of 4 files, 2.0 of 8.0 MB" in recovery.reason
    assert (2_000_000, 8_000_000) == (recovery.bytes_done, recovery.bytes_total)
    monkeypatch.setattr(progress, "STALL_S", 0.0)
    assert "n2 sends nothing" in recovery.reason
    recovery.failed("n2: no route to host")
    assert recovery.reason.startswith("no progress for")
    assert "no route to host" in recovery.reason


def test_a_copy_ends_when_the_node_stops() -> None:
    """The next byte is one too many; what has come stays for the next start."""
    stopping = threading.Event()
    recovery = Recovery("why", False, None, stopping, 1)
    stopping.set()
    with pytest.raises(TransferStopped):
        recovery.received(1_000_000)
