"""Answers of a node that is stopped, recovers, or is behind in the middle of a query: errors, never old rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from headrace.connectors.clock import SystemClock
from headrace.consumers.node.node import Node
from tests.unit.nodes import ROWS, Nodes, running_nodes
from tests.waiting import eventually

STOPPED_S = 10
COUNT = {"sql": "SELECT count(*) AS rows FROM plant.pumps"}


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """One node with some rows, whose boot-time clock a test can move."""
    with running_nodes(tmp_path, monkeypatch, ("a",), keep_records=1_000_000) as nodes:
        nodes.write()
        nodes.holds_everything("a")
        yield nodes


def ask(node: Node, **more: Any) -> httpx.Response:
    """The answer to a count of all rows over HTTP."""
    return httpx.post(f"{node.http_address}/api/v1/query", json={**COUNT, **more}, timeout=60)


def kind(answer: httpx.Response) -> tuple[int, str, bool]:
    """Status, kind and whether it may be retried, of an error."""
    error = answer.json()["error"]
    return answer.status_code, error["kind"], error["retriable"]


def in_query(node: Node, monkeypatch: pytest.MonkeyPatch, work: Callable[[], None], *, before_scan: bool) -> None:
    """Run `work` once in the next query, right before or behind its scan."""
    source, waiting = node.engine.source, [work]
    scan = source.scan

    def held(*names: str, **conditions: Any) -> Any:
        if before_scan and waiting:
            waiting.pop()()
        scans = scan(*names, **conditions)
        if waiting:
            waiting.pop()()
        return scans

    monkeypatch.setattr(source, "scan", held)


def stop_and_resume(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """The boot-time clock jumps as over a SIGSTOP; returns once the node serves again."""
    before = SystemClock.boot_ns
    monkeypatch.setattr(SystemClock, "boot_ns", lambda clock: before(clock) + STOPPED_S * 1_000_000_000)
    eventually(lambda: not node.heartbeat.fenced and node.ready()[0], "a node that serves again")


@pytest.mark.parametrize("before_scan", [True, False])
@pytest.mark.parametrize("form", ["json", "csv", "arrow"])
def test_a_node_that_was_stopped_in_a_query_does_not_answer_it(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, form: str, before_scan: bool
) -> None:
    """The query fails, and may be retried, although the node has read its heartbeat back by the end of it."""
    node = nodes.running["a"]
    in_query(node, monkeypatch, lambda: stop_and_resume(node, monkeypatch), before_scan=before_scan)
    assert (503, "AnswerStale", True) == kind(ask(node, format=form))
    # The node's role may change for a moment after it served again: the election notices the stop in its own turn.
    eventually(lambda: ask(node).json() == [{"rows": ROWS}], "an answer of the node that serves again")


def test_a_query_over_replaced_files_does_not_answer(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that recovered in the middle of a query, and serves again, makes the query fail."""
    node = nodes.running["a"]
    ((topic, group),) = node.groups.items()

    def replaced() -> None:
        node.supervisor.mark_wrong(topic, "a test")
        eventually(lambda: node.groups[topic] is not group and node.ready()[0], "a group that was replaced")

    in_query(node, monkeypatch, replaced, before_scan=False)
    answer = ask(node)
    assert (503, "AnswerStale", True) == kind(answer)
    assert "were replaced" in answer.json()["error"]["message"]
    nodes.holds_everything("a")
    assert [{"rows": ROWS}] == ask(node).json()


def test_a_scan_of_a_store_that_was_closed_does_not_answer(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A recovery closes the store of the group that a query reads: no damage, and it may be retried."""
    node = nodes.running["a"]
    ((topic, group),) = node.groups.items()
    nodes.seal()
    eventually(lambda: bool(group.store.segments()) and not group.store.pending_jobs(), "rows in files")
    scan, waiting = group.store.scan, [topic]

    def closed_first(*names: str, **conditions: Any) -> Any:
        if waiting:
            node.supervisor.mark_wrong(waiting.pop(), "a test")
            eventually(lambda: node.groups[topic] is not group and node.ready()[0], "a group that was replaced")
        return scan(*names, **conditions)

    monkeypatch.setattr(group.store, "scan", closed_first)
    by_tag = {"sql": "SELECT count(*) AS rows FROM plant.pumps WHERE pump = 'p1'"}
    assert (503, "AnswerStale", True) == kind(ask(node, **by_tag))
    assert [{"rows": ROWS // 50}] == ask(node, **by_tag).json()
    assert {} == node.identity.wrong


def test_an_answer_has_what_the_node_has_confirmed(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Records that are durable here count for quorums, so a query waits until they are applied."""
    node = nodes.running["a"]
    ((topic, group),) = node.groups.items()
    apply, gate = group._apply, threading.Event()
    monkeypatch.setattr(group, "_apply", lambda entry: gate.wait() and apply(entry))
    nodes.write()
    eventually(lambda: node.log_consumer.durable_offset(topic) + 1 >= nodes.log.describe(topic).end, "durable rows")
    assert (503, "NotCaughtUp", True) == kind(ask(node, timeout_ms=2_000))
    gate.set()
    assert [{"rows": 2 * ROWS}] == ask(node).json()
