"""How a node pulls slots: whom it asks, what it appends, and that its parts begin and end with it."""

from __future__ import annotations

import socket
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.migration.cut_source import OwnCut
from headrace.consumers.migration.peer_cut import LISTING_TIMEOUT_S, PeerCut
from headrace.consumers.migration.slot_pull import Pair
from headrace.consumers.node.node import Node
from headrace.consumers.node.slot_pulls import NodePullEnvironment
from headrace.consumers.recovery.file_copy import SourceFailed
from headrace.schemas.framing import FORMAT_HEADER
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.membership_records import SlotDone
from headrace.schemas.records import decode_membership
from tests.unit.nodes import Nodes

TOPICS = Topics("c")


class Statuses:
    """The newest statuses: n2 reports itself, n3 only its groups, and n4 is silent."""

    def presences(self) -> list[Any]:
        """See FailureDetector."""
        return [SimpleNamespace(node="n2", http="http://two:1"), SimpleNamespace(node="n3", http="")]

    def online(self) -> list[Any]:
        """See FailureDetector."""
        return [SimpleNamespace(node="n3", http="http://three:1")]


def environment(log: MemoryLog, marked: list[object]) -> NodePullEnvironment:
    """That of node n1, which holds one group."""
    heartbeat: Any = SimpleNamespace(node="n1", incarnation="i", detector=Statuses())
    supervisor: Any = SimpleNamespace(replace_data=lambda *given: marked.append(given))
    nothing: Any = None
    groups: Any = {TOPICS.forward("n1"): SimpleNamespace(name="n1")}
    return NodePullEnvironment(log, TOPICS, groups, nothing, nothing, heartbeat, supervisor)


def test_a_node_asks_live_nodes_and_itself() -> None:
    """By the address of its presence, or of any of its statuses."""
    asked = environment(MemoryLog(), [])
    assert isinstance(asked.source("n1", GroupKey("n1", 1)), OwnCut)
    assert None is asked.source("n1", GroupKey("n1", 5))
    for node in ("n2", "n3"):
        source = asked.source(node, GroupKey("n9", 4))
        assert isinstance(source, PeerCut)
        assert node == source.name
    assert None is asked.source("n4", GroupKey("n9", 4))


def test_a_node_that_stops_waits_for_no_silent_donor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited half a minute for the list of one that hangs, so `headrace down` killed it."""
    nodes = Nodes(tmp_path, ("n1",))
    nodes.start("n1")
    try:
        puller = nodes.running["n1"].migration.puller
        pulling: Any = puller._environment
        with socket.create_server(("127.0.0.1", 0)) as silent:
            monkeypatch.setattr(pulling, "_address", lambda _node: f"http://127.0.0.1:{silent.getsockname()[1]}")
            source = pulling.source("n2", GroupKey("n9", 4))
            pair = Pair(GroupKey("n1", 1), GroupKey("n9", 4), (1,))
            asked = puller._pool.submit(source.listing, pair, 1)
            with silent.accept()[0]:
                began_s = time.monotonic()
                nodes.stop("n1")
                # One look at the silence takes 2 s.
                assert time.monotonic() - began_s < LISTING_TIMEOUT_S / 2
                with pytest.raises(SourceFailed, match="this node stops"):
                    asked.result()
    finally:
        if nodes.running:
            nodes.stop("n1")


def test_a_report_is_a_record_of_the_membership_log() -> None:
    """Each has a writer of its own, and earlier builds stop at it."""
    log, marked = MemoryLog(), list[object]()
    log.create_topic(TOPICS.membership, {})
    reporting = environment(log, marked)
    for slots in ((1, 2), (3,)):
        reporting.report(SlotDone(7, "n1", slots))
    records = log.topic(TOPICS.membership).records
    found = [decode_membership(record.value) for record in records]
    assert [SlotDone(7, "n1", (1, 2)), SlotDone(7, "n1", (3,))] == [done for _, done in found]
    assert 2 == len({writer for writer, _ in found})
    assert {b"3"} == {dict(record.headers)[FORMAT_HEADER] for record in records}
    reporting.replace_data("topic", "why", frozenset({"n2"}))
    assert [("topic", "why", frozenset({"n2"}))] == marked


def test_the_threads_of_a_node_that_move_slots_end_with_it(tmp_path: Path) -> None:
    """They run on a node without a change, and have nothing to do."""
    nodes = Nodes(tmp_path, ("n1",))
    nodes.start("n1")
    try:
        node: Node = nodes.running["n1"]
        nodes.ready()
        assert frozenset() == node.migration.puller.pulling("n1")
        assert node.migration.puller.wait_until_pulled("n1", {1, 2}, 0.0)
        assert 0 == node.figures().migration.slots_total
    finally:
        nodes.stop("n1")
    assert not node.migration.puller._task.alive
    assert not node.migration.release._task.alive
