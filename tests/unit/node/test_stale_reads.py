"""Answers of a node without its log: only when asked for, with their age, and never older than that."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from headrace.connectors.clock import Clock, Moment, SystemClock
from headrace.connectors.http import AS_OF_HEADER
from headrace.consumers.node.data_age import ENDS_KEPT, DataAge
from headrace.consumers.node.status_report import node_status
from headrace.consumers.query.stale_reads import not_ready
from headrace.consumers.replication.failure_detector import OFFLINE_MS
from headrace.consumers.replication.group_health import Event
from headrace.schemas.records import Role
from tests.unit.node.test_read_fence import ask, in_query, kind
from tests.unit.nodes import ROWS, Nodes, running_nodes
from tests.waiting import eventually

TOPIC = "c.forward.g"
COUNTED = [{"rows": ROWS}]


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """One node with some rows, whose log does not answer any more."""
    with running_nodes(tmp_path, monkeypatch, ("a",), keep_records=1_000_000) as nodes:
        nodes.write()
        nodes.holds_everything("a")
        node = nodes.running["a"]
        written = Moment(SystemClock().boot_ns())
        eventually(lambda: (at := node.readiness.as_of()) is not None and at.boot_ns > written.boot_ns, "an end read")
        nodes.log.unavailable = True
        # It may be unready before that, on a busy machine, and only its next turn takes its role away.
        (topic,) = node.groups
        eventually(
            lambda: not (node.ready()[0] or node.positions.log_answers) and node.role(topic) is Role.UNSYNCED,
            "a node that notices that its log is away",
        )
        yield nodes


def as_of(answer: httpx.Response) -> datetime:
    """The moment up to which an answer contains everything."""
    return datetime.fromisoformat(answer.headers[AS_OF_HEADER])


def test_a_node_without_its_log_claims_to_know_nothing_newer(nodes: Nodes) -> None:
    """Neither a lag of 0, which would hide the outage, nor that a status of the others, or its own, was received just now.

    Its own role is the same in both tables.
    """
    node = nodes.running["a"]
    silent_before = node_status(node)["members"][0]["silent_ms"]
    status = node_status(node)
    [group], [member] = status["groups"], status["members"]
    assert (-1, -1.0) == (group["lag_records"], group["lag_seconds"])
    assert member["silent_ms"] >= OFFLINE_MS
    assert ("unsynced", "unsynced") == (group["role"], member["role"])
    eventually(lambda: node_status(node)["members"][0]["silent_ms"] > silent_before, "a silence that grows")
    assert 'headrace_lag_records{cluster="c",group="a"} -1.0' in httpx.get(f"{node.http_address}/metrics").text


def test_only_a_query_that_allows_an_age_is_answered_without_a_log(nodes: Nodes) -> None:
    """The answer names its moment; without leave, or beyond it, the error has the age and the way out."""
    node = nodes.running["a"]
    refused = ask(node)
    assert (503, "NotReady", True) == kind(refused)
    assert "everything up to 2" in refused.json()["error"]["message"]
    assert "--stale 60s" in refused.json()["error"]["action"]
    answer = ask(node, stale="5m")
    assert COUNTED == answer.json()
    assert datetime.now(UTC) > as_of(answer)
    assert as_of(answer) == as_of(ask(node, stale=300, format="csv"))
    assert (503, "NotReady", True) == kind(ask(node, stale=0.001))
    assert 'headrace_queries_stale_total{cluster="c"} 2.0' in httpx.get(f"{node.http_address}/metrics").text
    node.engine.settings = node.engine.settings.model_copy(update={"stale_max_s": 300.0})
    assert as_of(answer) == as_of(ask(node))
    assert (503, "NotReady", True) == kind(ask(node, stale=0))
    nodes.log.unavailable = False
    nodes.ready()
    assert AS_OF_HEADER not in ask(node, stale="5m").headers


def test_data_that_the_node_does_not_trust_never_answers(nodes: Nodes) -> None:
    """Neither a disputed nor a lost group answers, whatever age is allowed, and no way out is offered."""
    node = nodes.running["a"]
    ((_, group),) = node.groups.items()
    # It would find that nobody disputes anything.
    node.divergence_monitor.stop()
    group.health.report(Event.DISPUTE, "members differ")
    refused = ask(node, stale="366d")
    assert (503, "NotReady", True) == kind(refused)
    assert "members differ" in refused.json()["error"]["message"]
    assert "--stale" not in refused.json()["error"]["action"]
    group.health.report(Event.AGREE)
    assert COUNTED == ask(node, stale="366d").json()
    group.mark_log_lost("the topic was created again")
    assert (503, "NotReady", True) == kind(ask(node, stale="366d"))


def test_the_age_counts_behind_the_last_row(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A query during which its data became too old, or doubtful, ends with AnswerStale."""
    node = nodes.running["a"]
    ((_, group),) = node.groups.items()
    boot_ns = SystemClock.boot_ns

    def passes() -> None:
        monkeypatch.setattr(SystemClock, "boot_ns", lambda clock: boot_ns(clock) + 3_600 * 10**9)

    in_query(node, monkeypatch, passes, before_scan=False)
    refused = ask(node, stale="30m")
    assert (503, "AnswerStale", True) == kind(refused)
    assert "30 min is allowed" in refused.json()["error"]["message"]
    in_query(node, monkeypatch, lambda: group.health.damage("a byte has changed"), before_scan=False)
    assert (503, "AnswerStale", True) == kind(ask(node, stale="2h"))


class Steps:
    """A clock, a log consumer and a group that a test moves. See Clock, LogConsumer, Group."""

    def __init__(self) -> None:
        self.now_s = 100
        self.read = self.durable = self.applied = 0
        clock: Any = SimpleNamespace(boot_ns=lambda: self.now_s * 10**9, wall_ns=lambda: self.now_s * 10**9)
        self.clock: Clock = clock
        consumer: Any = SimpleNamespace(
            position=lambda _topic: self.read, durable_offset=lambda _topic: self.durable - 1
        )
        self.groups: dict[str, Any] = {TOPIC: self.group()}
        self.age = DataAge(self.groups, consumer, self.clock)

    def group(self) -> Any:
        """A group over what is applied now."""
        steps = self

        class Applied:
            @property
            def offset(self) -> int:
                return steps.applied - 1

        return SimpleNamespace(applied=Applied())

    def look(self, end: int, takes_s: int = 1) -> None:
        """Ask the log for its end, which takes a while."""
        asked = self.age.ask(TOPIC)
        self.now_s += takes_s
        self.age.note(TOPIC, asked, end)

    def known_s(self) -> int | None:
        """The second that is known, None before the first."""
        moment = self.age.as_of()
        return None if moment is None else moment.boot_ns // 10**9


def test_the_moment_is_that_of_the_question_and_not_of_the_answer() -> None:
    """Records that arrive while the answer about the end travels are not in the data."""
    steps = Steps()
    assert steps.known_s() is None
    steps.look(0, takes_s=30)
    assert 100 == steps.known_s()


def test_an_end_counts_once_everything_below_it_is_applied() -> None:
    """Neither read nor durable is enough; under a load that never ends, the older ends count one by one."""
    steps = Steps()
    steps.look(5)
    steps.read = steps.durable = 5
    assert steps.known_s() is None
    steps.look(9)
    steps.applied = 5
    assert 100 == steps.known_s()
    steps.read, steps.durable, steps.applied = 20, 20, 9
    assert 101 == steps.known_s()


def test_a_log_that_ends_with_markers_is_reached_by_its_position() -> None:
    """No record has the last offset there: read to the end, and all of it applied, is everything."""
    steps = Steps()
    steps.durable = steps.applied = 3
    steps.look(5)
    steps.read = 4
    assert steps.known_s() is None
    steps.read = 5
    assert 100 == steps.known_s()


def test_an_end_before_what_was_read_proves_nothing() -> None:
    """A log that was truncated, or data that was replaced while the log was asked, gives no moment."""
    steps = Steps()
    steps.read = steps.durable = steps.applied = 10
    steps.look(9)
    assert steps.known_s() is None
    asked = steps.age.ask(TOPIC)
    steps.groups[TOPIC] = steps.group()
    steps.age.note(TOPIC, asked, 10)
    assert steps.known_s() is None
    steps.look(10)
    assert 101 == steps.known_s()
    steps.groups[TOPIC] = steps.group()
    assert steps.known_s() is None


def test_ends_that_are_far_ahead_take_bounded_memory() -> None:
    """A group that is hours behind remembers the oldest ends and the newest."""
    steps = Steps()
    for end in range(1, 3 * ENDS_KEPT):
        steps.look(end)
    steps.read = steps.durable = steps.applied = 3 * ENDS_KEPT - 2
    assert 100 + ENDS_KEPT - 2 == steps.known_s()
    steps.read = steps.durable = steps.applied = 3 * ENDS_KEPT - 1
    assert 100 + 3 * ENDS_KEPT - 2 == steps.known_s()


def test_an_instant_is_never_younger_than_its_moment() -> None:
    """It is cut to milliseconds, and follows a date that was corrected."""
    now = {"boot": 50 * 10**9, "wall": 1_700_000_000_999_999_999}
    clock: Any = SimpleNamespace(boot_ns=lambda: now["boot"], wall_ns=lambda: now["wall"])
    moment = Moment(now["boot"], clock)
    assert "2023-11-14T22:13:20.999Z" == moment.iso()
    now["boot"], now["wall"] = now["boot"] + 10**9, now["wall"] + 3_601 * 10**9
    assert "2023-11-14T23:13:20.999Z" == moment.iso()
    assert 1 == moment.age_s


def test_asking_for_the_age_from_many_threads_is_safe() -> None:
    """Queries ask while the log monitor notes ends: no moment is ever taken back."""
    steps, seen, failed = Steps(), list[int](), list[BaseException]()
    stop = threading.Event()

    def read() -> None:
        try:
            while not stop.is_set():
                seen.append(steps.known_s() or 0)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    for end in range(1, 300):
        steps.look(end)
        steps.read = steps.durable = steps.applied = end
    stop.set()
    thread.join(10)
    assert not failed
    assert seen == sorted(seen)


def test_a_full_disk_is_named_once() -> None:
    """The reason of a group and what the node objects to are one cause; another one is named beside it."""
    state: Any = SimpleNamespace(objections=lambda: ["journal: no space", "it leaves"], as_of=lambda: None)
    assert "this node is not ready: group g: journal: no space; it leaves" == (
        not_ready(state, ["group g: journal: no space"]).message
    )
