"""A topic that is reported missing counts as gone only after some time: brokers that start know no topic for a moment."""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path

import pytest

from headrace.connectors import deadline
from headrace.connectors.deadline import GONE_AFTER_S, SILENCE_S, GracePeriod
from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.settings import ClusterSettings
from headrace.consumers.node.node import Node
from headrace.consumers.node.settings import NodeSettings, ServerSettings
from headrace.consumers.replication import leader_tasks
from headrace.consumers.replication.group_health import State
from headrace.schemas.framing import format_headers
from tests.waiting import eventually


def test_a_topic_is_gone_after_an_unbroken_grace_period() -> None:
    """Each topic has its own grace period, which restarts whenever the topic is seen."""
    now = [0.0]
    topics = GracePeriod(lambda: now[0])
    assert not topics.missing("a")
    now[0] = GONE_AFTER_S - 0.1
    assert not topics.missing("a")
    assert not topics.missing("b")
    topics.present("a")
    now[0] = GONE_AFTER_S + 1.0
    assert not topics.missing("a")
    assert not topics.missing("b")
    now[0] = 1.5 * GONE_AFTER_S + 1.0
    assert not topics.missing("a")
    assert not topics.missing("b")
    now[0] = 2 * GONE_AFTER_S + 1.0
    assert topics.missing("a")
    assert topics.missing("b")


def test_time_in_which_nothing_was_known_is_no_absence() -> None:
    """Missing at two restarts of the broker: between them this process was stopped, or cut off from the log."""
    now = [0.0]
    topics = GracePeriod(lambda: now[0])
    assert not topics.missing("stopped")
    assert not topics.missing("cut off")
    now[0] = SILENCE_S - 1.0
    topics.unknown("cut off")
    now[0] = GONE_AFTER_S
    assert not topics.missing("stopped")
    assert not topics.missing("cut off")
    for _ in range(2):
        now[0] += GONE_AFTER_S / 2
        gone = [topics.missing("stopped"), topics.missing("cut off")]
    assert [True, True] == gone


@pytest.mark.slow(6)
@pytest.mark.parametrize("hidden", [["c.forward.n1.1"], ["c.forward.n1.1", "c.forward.n2.1"]], ids=["one", "all"])
def test_a_topic_that_is_missing_for_a_moment_stops_no_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: list[str]
) -> None:
    """Other groups continue; the hidden topic's group resumes at its offset; a topic that stays missing stops its group."""
    monkeypatch.setattr(leader_tasks, "TURN_S", 0.02)
    log = MemoryLog(clock_ms=lambda: time.time_ns() // 1_000_000)
    topics = Topics("c")
    forward = [topics.forward(name) for name in ("n1", "n2")]
    assert set(hidden) <= set(forward)
    settings = ServerSettings(
        cluster=ClusterSettings(name="c", slots=60),
        node=NodeSettings(id="n1", nodes=("n1", "n2"), data_dir=str(tmp_path / "n1")),
    )
    node = Node(settings, log)
    node.start(lambda _line: None)
    try:

        def applied_another(topic: str) -> None:
            before = node.groups[topic].version
            log.store(topic, b"a stranger's bytes", None, format_headers())
            eventually(lambda: node.groups[topic].version > before, f"a record of {topic}")

        def is_lost(topic: str) -> bool:
            return node.groups[topic].health.holds(State.LOST)

        for topic in forward:
            applied_another(topic)
        log.hidden = set(hidden)
        # Long enough for the consuming thread and the log monitor to notice.
        time.sleep(2.5)
        for topic in set(forward) - set(hidden):
            applied_another(topic)
        assert ["", ""] == [node.groups[topic].health.reason for topic in forward]
        log.hidden = set()
        for topic in forward:
            applied_another(topic)
        monkeypatch.setattr(deadline, "GONE_AFTER_S", 0.5)
        log.hidden = set(hidden)
        for topic in hidden:
            eventually(partial(is_lost, topic), f"a group without {topic}")
    finally:
        node.stop()
