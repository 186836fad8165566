"""Nodes in this process with wrong data: it is detected, unsynced and recovered without an operator."""

from __future__ import annotations

import errno
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace._member_views import LogView
from headrace.admin_client import AcceptedGap, AdminClient, GapUnacceptable
from headrace.connectors import deadline
from headrace.connectors.log.port import Log
from headrace.consumers.membership.bootstrap import read_slot_table
from headrace.consumers.node.data_directory import Identity
from headrace.consumers.node.node import Node
from headrace.consumers.recovery import coordinator, gap_search, group_copies
from headrace.consumers.recovery.coordinator import RecoveryCoordinator
from headrace.consumers.recovery.file_copy import Snapshot, Source, fetch
from headrace.consumers.recovery.log_gap import GapRefused, GapSeeker
from headrace.consumers.recovery.plan import Costs
from headrace.consumers.recovery.progress import CopyObserver
from headrace.consumers.replication.group_health import State
from tests.unit.nodes import Nodes, corrupt, running_nodes
from tests.waiting import eventually


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """Three nodes that keep their complete logs."""
    with running_nodes(tmp_path, monkeypatch, ("n1", "n2", "n3"), keep_records=0) as nodes:
        yield nodes


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """One node alone, with the complete log."""
    with running_nodes(tmp_path, monkeypatch, ("n1",), keep_records=0) as nodes:
        yield nodes


def seal_all(nodes: Nodes) -> None:
    """Wait until every node has sealed all rows."""
    nodes.seal()
    for node in nodes.running.values():
        eventually(lambda node=node: sealed(node), "everything sealed everywhere")


def sealed(node: Node) -> bool:
    """Whether a node has sealed all applied records."""
    return all(
        group.version and group.store_jobs.sealed_version >= group.applied.frontier and not group.applied.unsealed_rows
        for group in node.groups.values()
    )


def tamper_with_chain(node: Node, topic: str) -> None:
    """Change the chain, as if this process had applied another record."""
    state = node.groups[topic].replica.state
    state.chain = bytes(16)


def test_a_rotted_file_is_found_at_start_and_replaced(three: Nodes) -> None:
    """The scrubber finds a file of equal size with other bytes.

    Another member's files replace it without an operator.
    """
    three.write()
    seal_all(three)
    three.stop("n2")
    rotted = next((three.directory / "n2" / "segments").rglob("*.parquet"))
    corrupt(rotted)
    three.start("n2")
    node = three.running["n2"]
    eventually(lambda: node.scrubber.files_rotted > 0, "a rotted file")
    eventually(lambda: not node.identity.wrong and node.ready()[0], "recovered")
    three.holds_everything("n2")


def test_a_rotted_file_of_a_single_node_is_rebuilt_from_the_log(one: Nodes) -> None:
    """No other member has the files, but the log has every record."""
    one.write()
    seal_all(one)
    one.stop("n1")
    corrupt(next((one.directory / "n1" / "segments").rglob("*.parquet")))
    one.start("n1")
    node = one.running["n1"]
    eventually(lambda: node.scrubber.files_rotted > 0, "a rotted file")
    eventually(lambda: not node.identity.wrong and node.ready()[0], "recovered")
    one.seal()
    one.holds_everything("n1")


def test_a_damaged_index_is_set_aside_and_the_store_recovers(three: Nodes) -> None:
    """A store that cannot be opened is moved to `damaged`; the node starts without it and recovers."""
    three.write()
    seal_all(three)
    three.stop("n3")
    for path in (three.directory / "n3" / "index" / "n1").glob("*.sst"):
        path.write_bytes(b"\0" * path.stat().st_size)
    for path in (three.directory / "n3" / "index" / "n1").glob("MANIFEST*"):
        path.write_bytes(b"\0" * path.stat().st_size)
    three.start("n3")
    three.holds_everything("n3")
    assert list((three.directory / "n3" / "damaged" / "n1-1" / "segments").rglob("*.parquet"))


def test_a_member_with_another_chain_is_found_and_recovers(three: Nodes) -> None:
    """Its chain differs at the next common sample.

    It alone is unsynced, is never a source, and recovers to the others' chain.
    """
    three.write()
    seal_all(three)
    topic, bad = three.topics.forward("n1"), three.running["n3"]
    before = bad.identity.store
    tamper_with_chain(bad, topic)
    three.write()
    three.fill(topic, 300)
    eventually(lambda: bad.identity.store != before, "the wrong data gave way")
    three.holds_everything("n3")
    eventually(lambda: len({node.groups[topic].applied.chain for node in three.running.values()}) == 1, "one chain")


def test_wrong_data_is_still_refused_after_a_restart(three: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data that was found wrong before a crash is not served after it, and another member's takes its place."""
    three.write()
    seal_all(three)
    topic = three.topics.forward("n2")
    node = three.running["n2"]
    before = node.identity.store
    with monkeypatch.context() as without_recovery:
        without_recovery.setattr(RecoveryCoordinator, "start", lambda _self: None)
        node.supervisor.coordinator.stop()
        node.supervisor.mark_wrong(topic, "for a test", frozenset({"n1"}))
        assert not node.ready()[0]
        assert -1 == durable_offset(node, "n2")
        three.stop("n2")
        three.start("n2")
        restarted = three.running["n2"]
        assert {topic: "for a test"} == Identity.load(three.directory / "n2", "c", "n2").wrong
        # In sync with its log otherwise, as the other groups of the node are.
        eventually(lambda: not any(restarted.reason(other) for other in restarted.groups if other != topic), "in sync")
        assert restarted.reason(topic).startswith("for a test")
        assert -1 == durable_offset(restarted, "n2")
        assert before == restarted.identity.store
    restarted.supervisor.coordinator.start()
    eventually(lambda: not restarted.identity.wrong, "recovered")
    assert before != restarted.identity.store
    three.holds_everything("n2")
    assert {} == Identity.load(three.directory / "n2", "c", "n2").wrong


def durable_offset(node: Node, group: str) -> int:
    """What a node reports as durable of a group."""
    return next(status for status in node.statuses.statuses() if status.group == group).durable_offset


def test_wrong_data_is_neither_served_nor_counted_while_the_disk_is_full(
    three: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rotted file is found and the mark cannot be saved: the group is refused at once, and recovers with space."""
    three.write()
    seal_all(three)
    node, directory = three.running["n3"], three.directory / "n3"
    topic = next(each for each, group in node.groups.items() if group.store.segments())
    group, full = node.groups[topic], threading.Event()
    full.set()
    save, refused = Identity.save, itertools.count()
    repeated = threading.Event()

    def save_unless_full(identity: Identity, to: Path) -> None:
        if full.is_set() and identity.node == "n3":
            if next(refused) == 4:
                repeated.set()
            raise OSError(errno.ENOSPC, "No space left on device")
        save(identity, to)

    monkeypatch.setattr(Identity, "save", save_unless_full)
    corrupt(group.store.segments_directory / group.store.segments()[0].name)
    node.scrubber.scrub_now()
    eventually(lambda: "No space left on device" in node.reason(topic), "the cause")
    assert not node.ready()[0]
    assert -1 == durable_offset(node, group.name)
    assert repeated.wait(60.0)
    assert node.groups[topic] is group
    assert group.health.conditions.recovery is None
    assert {} == Identity.load(directory, "c", "n3").wrong
    full.clear()
    eventually(lambda: node.groups[topic] is not group, "another member's data")
    three.holds_everything("n3")
    eventually(lambda: {} == Identity.load(directory, "c", "n3").wrong, "no mark any more")


def test_a_replacement_that_a_full_disk_kept_from_the_record_is_recorded_later(
    one: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The data was replaced and serves; only the mark stays in `node.json` until there is space."""
    one.write()
    seal_all(one)
    node, directory = one.running["n1"], one.directory / "n1"
    topic, full = one.topics.forward("n1"), threading.Event()
    full.set()
    save = Identity.save

    def save_unless_full(identity: Identity, to: Path) -> None:
        if full.is_set() and not identity.wrong:
            raise OSError(errno.ENOSPC, "No space left on device")
        save(identity, to)

    monkeypatch.setattr(Identity, "save", save_unless_full)
    node.supervisor.mark_wrong(topic, "for a test")
    eventually(lambda: not node.identity.wrong and node.ready()[0], "recovered")
    assert {topic: "for a test"} == Identity.load(directory, "c", "n1").wrong
    full.clear()
    eventually(lambda: {} == Identity.load(directory, "c", "n1").wrong, "no mark any more")
    assert node.identity.store == Identity.load(directory, "c", "n1").store


def test_the_readers_of_a_gap_search_end_with_the_node(one: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node that stops while it searches a lost log for a gap leaves no reader of it open."""
    opened: list[GapSeeker] = []
    closed: list[GapSeeker] = []
    begin, close = GapSeeker.__init__, GapSeeker.close

    def begin_and_count(self: GapSeeker, log: Log, topic: str) -> None:
        begin(self, log, topic)
        opened.append(self)

    def close_and_count(self: GapSeeker) -> None:
        close(self)
        closed.append(self)

    monkeypatch.setattr(GapSeeker, "__init__", begin_and_count)
    monkeypatch.setattr(GapSeeker, "close", close_and_count)
    one.running["n1"].groups[one.topics.forward("n1")].mark_log_lost("for a test")
    eventually(lambda: bool(opened), "a search")
    one.stop("n1")
    assert opened == closed


@pytest.mark.slow(6)
def test_files_are_copied_where_reading_the_log_would_take_longer(
    three: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A wiped node whose log has everything copies files, compares the copy with the log, and continues there."""
    monkeypatch.setattr(coordinator, "Costs", lambda: Costs(1.0, 1e9, 0.001))
    monkeypatch.setattr(coordinator, "TURN_S", 0.02)
    copied: list[str] = []

    def fetch_and_record(source: Source, directory: Path, observer: CopyObserver, own: Path) -> Snapshot:
        snapshot = fetch(source, directory, observer, own)
        copied.append(snapshot.group)
        return snapshot

    monkeypatch.setattr(group_copies, "fetch", fetch_and_record)
    three.fill(three.topics.forward("n1"), 20_000)
    three.write()
    seal_all(three)
    three.wipe("n3")
    three.start("n3")
    three.holds_everything("n3")
    assert "n1" in copied


def lose_logs(nodes: Nodes, how: str, group: str) -> None:
    """The log of a group is recreated, truncated, truncated and appended to, or trimmed beyond every member."""
    topic = nodes.topics.forward(group)
    if how == "recreated":
        nodes.log.delete_topic(topic)
        nodes.log.create_topic(topic, {})
    elif how == "truncated":
        nodes.log.truncate(topic, nodes.log.describe(topic).end - 3)
    elif how == "refilled":
        nodes.log.truncate(topic, nodes.log.describe(topic).end - 3)
        nodes.fill(topic, 8)
    else:
        nodes.fill(topic, 5)
        nodes.log.trim(topic, nodes.log.describe(topic).end - 1)


@pytest.mark.slow(10)
@pytest.mark.parametrize("how", ["recreated", "truncated", "refilled", "trimmed"])
def test_a_lost_log_is_never_followed_silently_and_continues_when_accepted(
    three: Nodes, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The members are unsynced with the choices and keep their data; after accept-gap those at the gap continue.

    A member that was behind, or that has an empty directory, copies files. A restart continues from there.
    """
    monkeypatch.setattr(deadline, "GONE_AFTER_S", 1.0)
    three.write()
    seal_all(three)
    three.stop("n3")
    three.write()
    seal_all(three)
    three.fill(three.topics.forward("n2"), 10)
    for node in three.running.values():
        topic = three.topics.forward("n2")
        eventually(
            lambda node=node, topic=topic: node.groups[topic].applied.offset + 1 == three.log.describe(topic).end,
            "the end",
        )
    three.stop("n1", "n2")
    lose_logs(three, how, "n2")
    three.start("n1", "n2", "n3")
    for node in three.running.values():
        eventually(lambda node=node: "headrace accept-gap" in node.reason(topic), f"choices; {node.reason(topic)}")
    assert not three.running["n1"].ready()[0]
    accepted = accept(three, "n2")
    assert accepted.member in ("n1", "n2")
    for name in three.names:
        three.holds_everything(name)
    three.write()
    three.stop("n1")
    three.start("n1")
    three.wipe("n3")
    three.start("n3")
    for name in three.names:
        three.holds_everything(name)
    assert len({node.groups[topic].applied.chain for node in three.running.values()}) == 1


@pytest.mark.slow(10)
def test_a_log_that_is_there_again_is_followed_by_itself(three: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a topic, or the disk of a broker, is restored: it has its old id, and all that was read of it.

    All members report that they have lost it, and each of them has found it again. Not one that has lost its end.
    """
    monkeypatch.setattr(deadline, "GONE_AFTER_S", 1.0)
    monkeypatch.setattr(gap_search, "REGAIN_INTERVAL_S", 0.2)
    three.write()
    seal_all(three)
    topic = three.topics.forward("n2")
    kept = three.log.topic(topic)
    lost_end = len(kept.records) - 1
    three.log.delete_topic(topic)
    for node in three.running.values():
        eventually(lambda node=node: "headrace accept-gap" in node.reason(topic), f"loss; {node.reason(topic)}")
    # Without its last record it is not the log that they have read.
    whole, end = list(kept.records), kept.end
    kept.records, kept.end = kept.records[:lost_end], kept.records[lost_end].offset
    three.log._topics[topic] = kept
    time.sleep(1.5)
    for node in three.running.values():
        assert node.groups[topic].health.holds(State.LOST)
    kept.records, kept.end = whole, end
    for node in three.running.values():
        eventually(lambda node=node: not node.reason(topic), f"the log again; {node.reason(topic)}")
    three.write()
    for name in three.names:
        three.holds_everything(name)


def test_a_gap_is_refused_where_nothing_is_lost(three: Nodes) -> None:
    """Neither a group in sync nor one with a member offline accepts a gap."""
    three.write()
    with pytest.raises(GapUnacceptable, match="in sync at"):
        accept(three, "n1")
    with pytest.raises(GapRefused, match="has not lost its log"):
        three.running["n1"].accept_gap("n1", None)
    three.stop("n2")
    with pytest.raises(GapUnacceptable, match="in sync at|may hold more"):
        accept(three, "n1")


def accept(nodes: Nodes, group: str) -> AcceptedGap:
    """The operation of `headrace accept-gap`."""
    operations = AdminClient(LogView(nodes.log, nodes.topics, read_slot_table(nodes.log, nodes.topics)))
    try:
        return operations.accept_gap(group, None, 0, 60.0)
    finally:
        operations.close()
