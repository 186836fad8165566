"""Which node of a cluster a command asks when none is named."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from headrace.cli.main import build_app
from headrace.connectors.http import NodeRefused

OPTIONS = ["--cluster", "plant", "--bootstrap", "127.0.0.1:1"]
NODES = ("http://n1", "http://n2")


@pytest.fixture
def ready(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The nodes of a cluster that are ready; both of them answer for their state."""
    found: set[str] = set()

    def call_node(url: str, **_: object) -> None:
        if url.removesuffix("/health/ready") not in found:
            reasons = {"reasons": [f"group g: waiting for n1, asked {url.removesuffix('/health/ready')}"]}
            raise NodeRefused("it is not ready", body=json.dumps(reasons))

    def reader(*_: object) -> Any:
        statuses = [SimpleNamespace(http=each) for each in NODES]
        return SimpleNamespace(follow=lambda _: statuses, detector=SimpleNamespace(unread_fault=lambda _: ""))

    def client(url: str) -> Any:
        state = {"cluster": "plant", "node": url, "ready": url in found, "reasons": ["group g: its log is lost"]}
        return SimpleNamespace(status=lambda: state)

    monkeypatch.setattr("headrace.cli.session.FIND_NODE_TIMEOUT_S", 0.05)
    monkeypatch.setattr("headrace.connectors.log.kafka.KafkaLog", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr("headrace.consumers.replication.heartbeat.StatusReader", reader)
    monkeypatch.setattr("headrace.connectors.http.call_node", call_node)
    monkeypatch.setattr("headrace.node_client.NodeClient", client)
    return found


def test_status_shows_the_reasons_of_a_node_where_none_is_ready(ready: set[str]) -> None:
    """A lost log stops a group at all its members: that is when its reason is looked for. A ready node comes first.

    What keeps each of the others is in the lines behind it: it may be what all wait for.
    """
    result = CliRunner().invoke(build_app(["status"]), ["status", *OPTIONS])
    assert 1 == result.exit_code
    assert (
        "plant / http://n1: not ready\n  group g: its log is lost\n"
        "  http://n2: not ready: group g: waiting for n1, asked http://n2\n"
    ) in result.stdout
    ready.add("http://n2")
    result = CliRunner().invoke(build_app(["status"]), ["status", *OPTIONS])
    assert 0 == result.exit_code
    assert "plant / http://n2: ready" in result.stdout
    assert "http://n1" not in result.stdout


def test_a_query_without_a_ready_node_names_the_command_that_shows_why(ready: set[str]) -> None:
    """Rows come from a ready node alone."""
    result = CliRunner().invoke(build_app(["query"]), ["query", "SELECT 1", *OPTIONS])
    assert 1 == result.exit_code
    assert "error: no node of cluster plant is ready (2 were found)" in result.stderr
    assert "what to do: see headrace status, or name one with --node" in result.stderr
    assert not ready
