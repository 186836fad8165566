"""Nodes whose broker's clock is set: nobody is offline by it, before and after a restart."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from headrace.consumers.node.node import Node
from headrace.consumers.replication.heartbeat import StatusReader
from tests.unit.nodes import running_nodes
from tests.waiting import eventually

NAMES = ("n1", "n2", "n3")
STEP_MS = 600_000


@pytest.mark.parametrize("step_ms", [-STEP_MS, STEP_MS])
def test_a_step_of_the_brokers_clock_leaves_all_members_online(
    step_ms: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten minutes back or forth: every node sees every member online, and so does one that starts then."""
    with running_nodes(tmp_path, monkeypatch, NAMES) as nodes:
        set_ms = time.time_ns() // 1_000_000
        nodes.log._clock_ms = lambda: time.time_ns() // 1_000_000 + step_ms

        def has_all_since(node: Node) -> bool:
            received = list(node.heartbeat.detector.received.values())
            return all(abs(each.timestamp_ms - set_ms) > STEP_MS // 2 for each in received)

        for node in nodes.running.values():
            eventually(partial(has_all_since, node), "statuses of all members behind the step")
            assert [NAMES] * 3 == [
                tuple(status.node for status in node.heartbeat.live(group, NAMES)) for group in NAMES
            ], node.name
        reader = StatusReader(nodes.log, nodes.topics.status)
        reader.follow(1.0)
        assert 3 == len(reader.detector.live("n1", NAMES))
        reader.close()
