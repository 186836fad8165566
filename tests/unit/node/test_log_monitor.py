"""A running node checks the topics of its cluster."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.consumers.node import log_monitor
from tests.unit.nodes import running_nodes
from tests.waiting import eventually


def test_a_running_node_corrects_a_topic_or_shows_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Retention that is set under a running node is removed again; without the right to, the status names it."""
    monkeypatch.setattr(log_monitor, "TOPIC_TURNS", 1)
    with running_nodes(tmp_path, monkeypatch, ("n1",)) as nodes:
        node, topic = nodes.running["n1"], nodes.topics.forward("n1")

        def retention_ms() -> str:
            return (nodes.log.configuration(topic).settings or {})["retention.ms"]

        nodes.log.configure(topic, {"retention.ms": "1000"})
        eventually(lambda: retention_ms() == "-1", "a corrected topic")
        nodes.log.settings_changeable = False
        nodes.log.topic(topic).settings["retention.ms"] = "1000"
        eventually(lambda: any(topic in line for line in node.status()["warnings"]), "a warning")
        assert node.ready()[0]
        nodes.log.settings_changeable = True
        eventually(lambda: node.status()["warnings"] == [], "no warning")
