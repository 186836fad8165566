"""A topic that is said to be missing is believed to be gone only after a while: brokers that start know no topic for a moment."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from connectors.log.memory import MemoryLog
from connectors.log.topics import Topics
from consumers.node import Node, NodeSettings
from consumers.replication import absence, duties
from consumers.replication.absence import GONE_AFTER_S, Absence
from schemas.framing import format_headers
from tests.waiting import eventually


def test_a_topic_is_gone_after_a_while_without_a_break() -> None:
    """Each topic has its own time, and being seen once starts it anew."""
    now = [0.0]
    topics = Absence(lambda: now[0])
    assert not topics.missing("a")
    now[0] = GONE_AFTER_S - 0.1
    assert not topics.missing("a")
    assert not topics.missing("b")
    topics.present("a")
    now[0] = GONE_AFTER_S + 1.0
    assert not topics.missing("a")
    assert not topics.missing("b")
    now[0] = 2 * GONE_AFTER_S + 1.0
    assert topics.missing("a")
    assert topics.missing("b")


@pytest.mark.parametrize("hidden", [["c.forward.n1.1"], ["c.forward.n1.1", "c.forward.n2.1"]], ids=["one", "all"])
def test_a_topic_that_is_missing_for_a_moment_stops_no_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hidden: list[str]
) -> None:
    """The groups of topics that are still there go on meanwhile; the others go on where they were; one that stays away stops its group."""
    monkeypatch.setattr(duties, "TURN_S", 0.02)
    log = MemoryLog(clock_ms=lambda: time.time_ns() // 1_000_000)
    topics = Topics("c")
    forward = [topics.forward(name) for name in ("n1", "n2")]
    assert set(hidden) <= set(forward)
    settings = NodeSettings("c", "n1", ("n1", "n2"), 2, "memory", tmp_path / "n1", slots=60)
    node = Node(settings, log)
    node.start(lambda _line: None)
    try:

        def took_another(topic: str) -> None:
            before = node.groups[topic].version
            log.store(topic, b"a stranger's bytes", None, format_headers())
            eventually(lambda: node.groups[topic].version > before, f"a record of {topic}")

        for topic in forward:
            took_another(topic)
        log.hidden = set(hidden)
        # Long enough for the consuming thread and for the one that looks at the ends to notice.
        time.sleep(2.5)
        for topic in set(forward) - set(hidden):
            took_another(topic)
        assert ["", ""] == [node.groups[topic].fault + node.groups[topic].lost for topic in forward]
        log.hidden = set()
        for topic in forward:
            took_another(topic)
        monkeypatch.setattr(absence, "GONE_AFTER_S", 0.5)
        log.hidden = set(hidden)
        for topic in hidden:
            eventually(lambda topic=topic: bool(node.groups[topic].lost), f"a group without {topic}")
    finally:
        node.stop()
