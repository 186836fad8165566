"""Statuses of a newer build: their sender counts as offline, and is named everywhere as one that is not silent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace._member_views import LogView
from headrace.admin_client import AdminClient, NoLeader
from headrace.connectors.log.append import append_one
from headrace.connectors.log.memory import MemoryLog
from headrace.consumers.membership.bootstrap import read_slot_table
from headrace.consumers.node.readiness import Standing
from headrace.consumers.node.status_report import node_status
from headrace.consumers.replication.failure_detector import OFFLINE_MS
from headrace.consumers.replication.heartbeat import Heartbeat, StatusReader
from headrace.schemas.presence import Presence, encode_presence, presence_key, sender_of, status_key
from headrace.schemas.records import Status, encode_status
from tests.unit.nodes import Nodes, running_nodes
from tests.unit.statuses import STATUS, newer
from tests.waiting import eventually

TOPIC = "c.status"
NAMED = "n9 sends statuses that this build cannot read: upgrade this node"
PRESENCE = Presence("n9", "i", "s", "", 1, 10, True, 1, 1, True)


class Topic:
    """A status topic and its reader, whose common clock tests set."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self.log = MemoryLog(clock_ms=lambda: self.now_ms)
        self.log.create_topic(TOPIC, {})
        self.reader = StatusReader(self.log, TOPIC, clock=self)
        self.detector = self.reader.detector

    def monotonic_s(self) -> float:
        """See Clock."""
        return self.now_ms / 1_000

    def boot_ns(self) -> int:
        """See Clock."""
        return self.now_ms * 1_000_000

    def wall_ns(self) -> int:
        """See Clock."""
        return self.boot_ns()

    def send(self, node: str, *, readable: bool = True) -> None:
        """A status of a node in group g, which the reader takes."""
        value = encode_status(replace(STATUS, node=node))
        append_one(self.log, TOPIC, value if readable else newer(value), key=status_key("g", node))
        self.reader.follow(0)


@pytest.fixture
def topic() -> Iterator[Topic]:
    """An empty one."""
    made = Topic()
    yield made
    made.reader.close()


def test_keys_of_statuses_name_their_sender() -> None:
    """Also those of a presence, which have no group, and of a group of a later birth."""
    assert ("n1@7", "n2") == sender_of(status_key("n1@7", "n2"))
    assert ("", "n2") == sender_of(presence_key("n2"))
    for key in (None, b"", b"n1", b"n1/"):
        assert sender_of(key) is None


def test_a_sender_of_a_newer_build_is_offline_and_named(topic: Topic) -> None:
    """What is decided about it is decided as without its statuses."""
    topic.send("n1")
    topic.send("n9", readable=False)
    assert NAMED == topic.detector.unread_fault()
    assert topic.detector.sends_unread("g", "n9")
    assert not topic.detector.sends_unread("g", "n1")
    assert ["n1"] == [each.node for each in topic.detector.online()]
    assert {"n1"} == topic.reader.senders
    topic.send("n8", readable=False)
    assert "n8, n9 send statuses" in topic.detector.unread_fault()


def test_a_sender_whose_statuses_can_be_read_again_is_named_no_more(topic: Topic) -> None:
    """It went back to the former build. One that is silent is not named either: it is offline like any other."""
    topic.send("n9", readable=False)
    topic.send("n9")
    assert not topic.detector.unread_fault()
    topic.send("n8", readable=False)
    for _ in range(OFFLINE_MS // 500):
        assert topic.detector.sends_unread("g", "n8")
        topic.now_ms += 500
        topic.send("n1")
    assert not topic.detector.unread_fault()


def test_a_presence_of_a_newer_build_is_named(topic: Topic) -> None:
    """A node that waits to join sends nothing else."""
    for value, named in ((newer(encode_presence(PRESENCE)), NAMED), (encode_presence(PRESENCE), "")):
        append_one(topic.log, TOPIC, value, key=presence_key("n9"))
        topic.reader.follow(0)
        assert named == topic.detector.unread_fault()


def test_garbage_is_of_no_newer_build(topic: Topic) -> None:
    """Bytes without a frame, a damaged frame, and a key that names nobody change nothing."""
    for value, key in ((b"\xc3\x01", b"g/n9"), (b"garbage of ten bytes", b"g/n9"), (newer(bytes(20)), b"n9")):
        append_one(topic.log, TOPIC, value, key=key)
    append_one(topic.log, TOPIC, encode_status(STATUS)[:-3], key=b"g/n9")
    topic.reader.follow(0)
    assert not topic.detector.unread_fault()


def test_a_node_warns_of_each_such_sender_once(topic: Topic) -> None:
    """Its statuses come twice a second."""
    heartbeat = Heartbeat(topic.log, TOPIC, "n1", "i", list[Status])
    with capture_logs() as lines:
        heartbeat.receive_turn()
        for node in ("n9", "n9", "n8", "n9"):
            topic.send(node, readable=False)
            heartbeat.receive_turn()
    heartbeat.stop()
    assert ["n9", "n8"] == [line["node"] for line in lines if line["event"] == "statuses of a newer build"]


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """Two nodes that are ready."""
    with running_nodes(tmp_path, monkeypatch, ("n1", "n2"), keep_records=0) as two:
        yield two


def test_the_status_of_a_node_names_the_sender(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It serves all the same, and so names it only beside another reason. A seal that finds no leader names it, too."""
    node = nodes.running["n1"]

    def send() -> None:
        append_one(nodes.log, nodes.topics.status, newer(encode_status(STATUS)), key=status_key("n1", "n9"))

    send()
    eventually(lambda: NAMED in node_status(node)["warnings"], "the warning")
    assert (True, []) == node.ready()
    node.readiness.standing = Standing(leaving="it leaves")
    send()
    eventually(lambda: NAMED in node.ready()[1], "the reason beside another one")
    nodes.stop("n2", "n1")
    send()
    monkeypatch.setattr("headrace.admin_client.LEADER_TIMEOUT_S", 0.0)
    operations = AdminClient(LogView(nodes.log, nodes.topics, read_slot_table(nodes.log, nodes.topics)))
    with pytest.raises(NoLeader, match="n9 sends statuses that this build cannot read: upgrade this client"):
        operations.seal_all(1.0, lambda _line: None)
    operations.close()


@pytest.mark.slow(15)
def test_the_last_node_of_an_older_build_holds_up_no_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It cannot read the statuses of the others, and leads nothing. They see it alive: one of them leads its group."""
    with running_nodes(tmp_path, monkeypatch, ("n1", "n2", "n3"), keep_records=0) as three:
        topic = three.topics.forward("n3")

        def leader() -> str:
            accepted = three.running["n1"].groups[topic].applied.leader
            return accepted.node if accepted else ""

        eventually(lambda: leader() == "n3", "the header leads its group")
        assert three.running["n3"].heartbeat._reader is not None
        reader: Any = three.running["n3"].heartbeat._reader._reader
        poll = reader.poll

        def unreadable(*limits: Any) -> list[Any]:
            return [
                each if each.key.endswith(b"/n3") else replace(each, value=newer(each.value)) for each in poll(*limits)
            ]

        monkeypatch.setattr(reader, "poll", unreadable)
        eventually(lambda: leader() in ("n1", "n2"), "one of the others leads the group")
