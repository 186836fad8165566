"""The nodes and names that a client keeps while the members of its cluster change."""

from __future__ import annotations

from base64 import b64encode
from types import SimpleNamespace
from typing import Any

import pytest

from headrace._asking import NoNode, Question, ask
from headrace._member_views import NodeView
from headrace._nodes import LEARN_INTERVAL_S, NodeDirectory
from headrace.connectors.deadline import Deadline
from headrace.connectors.http import NodeRefused
from headrace.consumers.replication.failure_detector import FailureDetector
from headrace.node_client import NodeClient
from headrace.schemas.records import encode_status
from tests.unit.statuses import STATUS, newer


def test_a_node_that_gives_no_answer_is_not_asked_first_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have left the cluster. The one that answers is asked first, until it fails too."""
    monkeypatch.setattr(NodeClient, "cluster", lambda _client: shown())
    closed: Any = SimpleNamespace(is_open=False)
    nodes = NodeDirectory(closed, ["http://a", "http://b"])
    nodes.note_answer("http://b")
    assert ["http://b", "http://a"] == nodes.urls(Deadline(0))
    nodes.note_failure("http://a")
    assert ["http://b", "http://a"] == nodes.urls(Deadline(0))
    nodes.note_failure("http://b")
    assert ["http://a", "http://b"] == nodes.urls(Deadline(0))
    nodes.note_answer("http://joined")
    assert ["http://joined", "http://a", "http://b"] == nodes.urls(Deadline(0))
    nodes.note_failure("http://joined")
    assert ["http://a", "http://b"] == nodes.urls(Deadline(0))


def test_a_named_node_that_gives_no_answer_is_asked_last(monkeypatch: pytest.MonkeyPatch) -> None:
    """The time of a query may be over with one stopped node: asked first each time, it would end every query."""
    monkeypatch.setattr(NodeClient, "cluster", lambda _client: shown())
    closed: Any = SimpleNamespace(is_open=False)
    nodes = NodeDirectory(closed, ["http://a", "http://b"])
    nodes.note_failure("http://a")
    assert ["http://b", "http://a"] == nodes.urls(Deadline(0))
    nodes.note_answer("http://b")
    nodes.note_answer("http://a")
    nodes.note_failure("http://b")
    assert ["http://a", "http://b"] == nodes.urls(Deadline(0))
    nodes.note_answer("http://b")
    nodes.note_failure("http://b")
    assert ["http://a", "http://b"] == nodes.urls(Deadline(0))


def shown(*nodes: tuple[str, bool]) -> dict[str, Any]:
    """What a node shows of its cluster: addresses, and who is online."""
    return {"nodes": [{"id": http, "http": http, "online": online} for http, online in nodes]}


def test_a_client_of_named_nodes_learns_those_that_join(monkeypatch: pytest.MonkeyPatch) -> None:
    """It asks a node that answered, now and then: one day none of those that were named may be left."""
    asked: list[str] = []
    answers = [shown(("http://a:1", True), ("http://b:1", True)), shown(("http://b:1", True), ("http://c:1", False))]

    def cluster(client: NodeClient) -> dict[str, Any]:
        asked.append(client.url)
        return answers.pop(0)

    monkeypatch.setattr(NodeClient, "cluster", cluster)
    closed: Any = SimpleNamespace(is_open=False)
    now_s = [100.0]
    nodes = NodeDirectory(closed, ["http://a:1"], lambda: now_s[0])
    nodes.note_answer("http://a:1")
    nodes.note_answer("http://a:1")
    assert ["http://a:1"] == asked
    assert ["http://a:1", "http://b:1"] == nodes.urls(Deadline(0))
    # The named one has left: the other answers from now on, and shows who is there.
    nodes.note_failure("http://a:1")
    now_s[0] += LEARN_INTERVAL_S
    nodes.note_answer("http://b:1")
    assert ["http://b:1", "http://a:1"] == nodes.urls(Deadline(0))
    assert ["http://a:1", "http://b:1"] == asked


@pytest.mark.parametrize("answer", [NodeRefused("Not Found", status=404), {"nodes": [{}]}, {}, []])
def test_a_node_that_does_not_show_its_cluster_changes_nothing(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    """It may be of an earlier build; what is known stays known."""

    def cluster(_client: NodeClient) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    monkeypatch.setattr(NodeClient, "cluster", cluster)
    closed: Any = SimpleNamespace(is_open=False)
    nodes = NodeDirectory(closed, ["http://a:1"])
    nodes.note_answer("http://a:1")
    assert ["http://a:1"] == nodes.urls(Deadline(0))


def test_a_client_that_finds_only_nodes_of_a_newer_build_names_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """They serve, and none is to be started."""
    monkeypatch.setattr("headrace._asking.FIND_TIMEOUT_S", 0.0)
    detector = FailureDetector()
    detector.observe_unread("g", "n1")
    watch = SimpleNamespace(statuses=detector, start=lambda: None, wait_for=lambda _holds, _timeout_s: False)
    connection: Any = SimpleNamespace(is_open=True, cluster=SimpleNamespace(watch=watch))
    with pytest.raises(NoNode, match="n1 sends statuses that this build cannot read: upgrade this client"):
        ask(NodeDirectory(connection), Question("SELECT 1", {}, {}, None, None, 60_000), None, "c")


def test_a_command_through_a_node_of_a_newer_build_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """It shows statuses of members, which this build cannot read. It is no wrong address."""
    shown_to_commands = {"groups": [], "online": [b64encode(newer(encode_status(STATUS)))], "node": "n1"}
    monkeypatch.setattr(NodeClient, "members", lambda _client: shown_to_commands)
    with pytest.raises(NodeRefused, match="newer build.*upgrade this client"):
        NodeView("http://a")
