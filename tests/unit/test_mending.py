"""Nodes that hold something wrong, all in this process on a log in memory: found, unsynced, recovered by itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from consumers.membership.cluster import read_slot_table
from consumers.membership.operations import AcceptedGap, GapUnacceptable, Operations
from consumers.node import Node
from consumers.replication import absence, recoverer
from consumers.replication.gap import GapRefused
from consumers.replication.recovery import Costs
from consumers.replication.transfer import Snapshot, Source, Watcher, fetch
from tests.unit.nodes import Nodes, running_nodes, spoil
from tests.waiting import eventually


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """Three nodes that keep their whole logs."""
    with running_nodes(tmp_path, monkeypatch, ("n1", "n2", "n3"), keep_records=0) as nodes:
        yield nodes


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """One node alone, with the whole log."""
    with running_nodes(tmp_path, monkeypatch, ("n1",), keep_records=0) as nodes:
        yield nodes


def seal_all(nodes: Nodes) -> None:
    """Every node has everything in files."""
    nodes.seal()
    for node in nodes.running.values():
        eventually(lambda node=node: sealed(node), "everything sealed everywhere")


def sealed(node: Node) -> bool:
    """Whether a node has all it applied in files."""
    return all(
        group.version and group.files.sealed_version >= group.applied.frontier and not group.applied.unsealed_rows
        for group in node.groups.values()
    )


def tamper(node: Node, topic: str) -> None:
    """As if this process had counted another record: its chain is another one from here on."""
    state = node.groups[topic].replica.state
    state.chain = bytes(16)


def test_a_rotted_file_is_found_at_start_and_replaced(three: Nodes) -> None:
    """A file of equal size with other bytes is found by reading it again; the others' files take its place, without anybody's help."""
    three.write()
    seal_all(three)
    three.stop("n2")
    rotted = next((three.directory / "n2" / "segments").rglob("*.parquet"))
    spoil(rotted)
    three.start("n2")
    node = three.running["n2"]
    eventually(lambda: node.mending.scrubber.files_rotted > 0, "a rotted file")
    eventually(lambda: not node.identity.wrong and node.ready()[0], "recovered")
    three.holds_everything("n2")


def test_a_rotted_file_of_a_single_node_is_made_anew_from_the_log(one: Nodes) -> None:
    """Nobody else has the files, and the log has everything."""
    one.write()
    seal_all(one)
    one.stop("n1")
    spoil(next((one.directory / "n1" / "segments").rglob("*.parquet")))
    one.start("n1")
    node = one.running["n1"]
    eventually(lambda: node.mending.scrubber.files_rotted > 0, "a rotted file")
    eventually(lambda: not node.identity.wrong and node.ready()[0], "recovered")
    one.seal()
    one.holds_everything("n1")


def test_a_damaged_index_is_set_aside_and_the_store_made_anew(three: Nodes) -> None:
    """A store that cannot be opened is kept under `damaged`; the node starts without it and recovers by itself."""
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


def test_a_member_that_counts_otherwise_is_found_and_recovers(three: Nodes) -> None:
    """Its chain differs at the next mark that all show; it alone is unsynced, never a source, and ends equal to the others."""
    three.write()
    seal_all(three)
    topic, bad = three.topics.forward("n1"), three.running["n3"]
    before = bad.identity.store
    tamper(bad, topic)
    three.write()
    three.fill(topic, 300)
    eventually(lambda: bad.identity.store != before, "the wrong data gave way")
    three.holds_everything("n3")
    eventually(lambda: len({node.groups[topic].applied.chain for node in three.running.values()}) == 1, "one chain")


def test_wrong_data_is_remembered_over_a_restart(three: Nodes) -> None:
    """What was found wrong before a crash is not served after it."""
    three.write()
    seal_all(three)
    topic = three.topics.forward("n2")
    node = three.running["n2"]
    three.stop("n1", "n3")
    node.mending.recoverer.stop()
    node.mending.found_wrong(topic, "for a test", frozenset({"n1"}))
    assert not node.ready()[0]
    assert -1 == next(status for status in node.standing.statuses() if status.group == "n2").durable_offset
    three.stop("n2")
    three.start("n1", "n2", "n3")
    again = three.running["n2"]
    eventually(lambda: not again.identity.wrong, "recovered")
    three.holds_everything("n2")


def test_files_are_taken_where_the_log_is_the_longer_way(three: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wiped node whose log has everything copies files, compares the copy with the log, and reads on."""
    monkeypatch.setattr(recoverer, "Costs", lambda: Costs(1.0, 1e9, 0.001))
    monkeypatch.setattr(recoverer, "TURN_S", 0.02)
    copied: list[str] = []

    def noted(source: Source, directory: Path, watcher: Watcher, own: Path) -> Snapshot:
        snapshot = fetch(source, directory, watcher, own)
        copied.append(snapshot.group)
        return snapshot

    monkeypatch.setattr(recoverer, "fetch", noted)
    three.fill(three.topics.forward("n1"), 20_000)
    three.write()
    seal_all(three)
    three.wipe("n3")
    three.start("n3")
    three.holds_everything("n3")
    assert "n1" in copied


def lose_logs(nodes: Nodes, how: str, group: str) -> None:
    """The log of a group is made again, cut at its end, cut and written on, or trimmed beyond everybody."""
    topic = nodes.topics.forward(group)
    if how == "made again":
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


@pytest.mark.parametrize("how", ["made again", "truncated", "refilled", "trimmed"])
def test_a_lost_log_is_never_followed_silently_and_goes_on_when_told(
    three: Nodes, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Unsynced with the choices, data kept; after accept-gap the members that stand at the gap go on, one that was behind takes files, and so does
    one that comes with an empty directory. A restart remembers."""
    monkeypatch.setattr(absence, "GONE_AFTER_S", 1.0)
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


def test_a_gap_is_refused_where_nothing_is_lost(three: Nodes) -> None:
    """Neither a group in sync nor one of which a member is down accepts one by mistake."""
    three.write()
    with pytest.raises(GapUnacceptable, match="in sync at"):
        accept(three, "n1")
    with pytest.raises(GapRefused, match="has not lost its log"):
        three.running["n1"].accept_gap("n1", None)
    three.stop("n2")
    with pytest.raises(GapUnacceptable, match="in sync at|may hold more"):
        accept(three, "n1")


def accept(nodes: Nodes, group: str) -> AcceptedGap:
    """What `headrace accept-gap` does."""
    operations = Operations(nodes.log, nodes.topics, read_slot_table(nodes.log, nodes.topics))
    try:
        return operations.accept_gap(group, None, 0, 60.0)
    finally:
        operations.close()
