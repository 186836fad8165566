"""A topic that cannot be read on stops its group, which reports why: nothing is skipped, and the node stays up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.connectors.log.memory import MemoryAppender, MemoryLog, MemoryReader
from headrace.connectors.log.port import LogUnavailable
from headrace.consumers.replication.heartbeat import StatusReader
from headrace.schemas.records import encode_status
from tests.unit.nodes import Nodes, running_nodes
from tests.unit.statuses import STATUS
from tests.waiting import eventually


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """Two nodes that are ready."""
    with running_nodes(tmp_path, monkeypatch, ("n1", "n2"), keep_records=0) as two:
        yield two


def test_a_group_waits_at_a_record_that_cannot_be_read(nodes: Nodes) -> None:
    """It reports topic and offset and counts nothing past; the other topic is read on, and in the end so is this one."""
    bad, good = nodes.topics.forward("n1"), nodes.topics.forward("n2")
    consumer = nodes.running["n1"].log_consumer
    offset = nodes.log.describe(bad).end + 1
    nodes.log.undeliverable.add((bad, offset))
    nodes.fill(bad, 3)
    nodes.fill(good, 3)
    eventually(
        lambda: f"record {offset} of topic {bad}" in nodes.running["n1"].reason(bad),
        "the reason",
    )
    nodes.fill(good, 3)
    end = nodes.log.describe(good).end
    eventually(lambda: consumer.durable_offset(good) >= end - 1, "the other group reading on")
    assert offset - 1 == consumer.durable_offset(bad)
    assert not nodes.running["n1"].ready()[0]
    assert nodes.running["n1"].live()
    nodes.log.undeliverable.clear()
    nodes.write()
    for name in nodes.names:
        nodes.holds_everything(name)
    versions = {node.groups[bad].chain_at(offset + 1) for node in nodes.running.values()}
    assert 1 == len(versions - {None})


def test_a_refused_topic_is_no_empty_topic(nodes: Nodes) -> None:
    """The group is out of sync with the reason, until the topic may be read again."""
    topic = nodes.topics.forward("n1")
    nodes.log.denied.add(topic)
    nodes.fill(nodes.topics.forward("n2"), 1)
    node = nodes.running["n1"]
    eventually(lambda: "refuses this account" in node.reason(topic), "the reason")
    assert node.live()
    assert "refuses this account" in " ".join(node.ready()[1])
    nodes.log.denied.clear()
    nodes.ready()


def test_a_fenced_node_says_why_it_reads_no_status(nodes: Nodes) -> None:
    """It reports the refusal, and serves again once it may read."""
    nodes.log.denied.add(nodes.topics.status)
    node = nodes.running["n1"]
    eventually(lambda: "refuses this account" in " ".join(node.ready()[1]), "the reason")
    nodes.log.denied.clear()
    nodes.ready()


@pytest.mark.parametrize("error", [KafkaException(KafkaError(KafkaError._STATE)), OSError(5, "input/output error")])
@pytest.mark.parametrize("call", ["poll", "reader"])
def test_no_error_ends_the_consuming_thread(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, call: str, error: Exception
) -> None:
    """The thread opens its topics again: only a restart would bring it back otherwise."""
    owner, method = (MemoryReader, "poll") if call == "poll" else (MemoryLog, "reader")
    genuine, consumer = getattr(owner, method), nodes.running["n1"].log_consumer
    raised: list[Exception] = []

    def failing(*given: object, **named: object) -> object:
        if threading.current_thread() is consumer._thread and not raised:
            raised.append(error)
            raise error
        return genuine(*given, **named)

    monkeypatch.setattr(owner, method, failing)
    # A reader is opened when a group joins again.
    consumer.rejoin(nodes.topics.forward("n1"), None)
    eventually(lambda: bool(raised), "a failing call")
    nodes.write()
    for name in nodes.names:
        nodes.holds_everything(name)
    assert consumer.alive


def test_a_failed_appender_is_replaced(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that failed for good accepts nothing more; the node would be fenced until its next start."""
    failed: list[MemoryAppender] = []
    genuine = MemoryAppender.append

    def append(self: MemoryAppender, topic: str, value: bytes, **named: Any) -> None:
        if topic == nodes.topics.status and (not failed or self is failed[0]):
            failed.append(self)
            raise LogUnavailable("the client failed")
        genuine(self, topic, value, **named)

    monkeypatch.setattr(MemoryAppender, "append", append)
    eventually(lambda: bool(failed), "a failed appender")
    eventually(lambda: not any(node.heartbeat.fenced for node in nodes.running.values()), "no fenced node")
    sent = nodes.log.describe(nodes.topics.status).end
    eventually(lambda: nodes.log.describe(nodes.topics.status).end > sent + 20, "statuses of both nodes")
    nodes.ready()


def test_a_status_that_cannot_be_read_is_missed_and_nothing_else() -> None:
    """Statuses are repeated: waiting for one would fence every node of the cluster."""
    log = MemoryLog(clock_ms=lambda: 1)
    log.create_topic("status", {})
    reader = StatusReader(log, "status")
    for node in ("n1", "n2", "n3"):
        log.store("status", encode_status(replace(STATUS, node=node)), None, ())
    log.undeliverable.add(("status", 1))
    found = [each.node for _ in range(4) for each in reader.follow(0)]
    reader.close()
    assert ["n1", "n3"] == found
