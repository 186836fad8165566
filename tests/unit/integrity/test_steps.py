"""Scrubber and divergence monitor in single steps, on a clock that a test sets."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.connectors.deadline import GONE_AFTER_S
from headrace.connectors.log.append import append_one
from headrace.connectors.log.port import LogUnavailable, TopicMissing
from headrace.consumers.integrity.divergence_monitor import DivergenceMonitor
from headrace.consumers.integrity.scrubber import Scrubber
from headrace.consumers.recovery.log_gap import read_chain
from headrace.consumers.recovery.supervisor import RecoverySupervisor
from headrace.consumers.replication.group_health import State
from headrace.consumers.replication.group_state import GapRecord, LogBase
from headrace.consumers.replication.journal import JournalEntry
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.schemas.errors import HeadraceError
from tests.manual_clock import ManualClock
from tests.unit.recovery.test_steps import TOPIC, FakeNode, Recovery, append_records
from tests.unit.statuses import STATUS


@dataclass
class Files:
    """A group of files by name, some of them rotted."""

    names: list[str]
    rotted: set[str]
    name: str = "g"
    follows: bool = True

    @property
    def store(self) -> Files:
        """Itself."""
        return self

    def segments(self) -> list[SimpleNamespace]:
        """The entries of its catalogue."""
        return [SimpleNamespace(name=name) for name in self.names]

    def is_corrupt(self, name: str, _pace: Callable[[int], None]) -> bool:
        """Whether a file has rotted."""
        return name in self.rotted


class Marks(RecoverySupervisor):
    """A supervisor that notes what is marked, and lets the group recover."""

    def __init__(self, groups: dict[str, Files]) -> None:
        self.groups = groups
        self.marked: list[str] = []

    def mark_wrong(self, topic: str, why: str, trusted: frozenset[str] | None = None) -> None:
        """See RecoverySupervisor."""
        del trusted
        self.groups[topic].follows = False
        self.marked.append(why)


class Unasked(RecoverySupervisor):
    """A supervisor that nobody asks: without its parts every call fails."""

    def __init__(self) -> None:
        pass


def test_a_step_of_the_scrubber_checks_one_file() -> None:
    """A round file by file over all groups; the next one when it is due, or a query asks for it."""
    groups = {"t1": Files(["a", "b"], set()), "t2": Files(["c", "d", "e"], {"d"})}
    marks, clock = Marks(groups), ManualClock()
    held: Any = groups
    scrubber = Scrubber(held, ReplicationLimits(scrub_interval_s=60.0), marks, clock)
    assert [(True, number) for number in (1, 2, 3, 4)] == [(scrubber.turn(), scrubber.files_checked) for _ in range(4)]
    assert ["segment d is not what was sealed: its bytes changed on this disk, or it is gone"] == marks.marked
    assert not scrubber.turn()
    assert not scrubber.turn()
    assert 4 == scrubber.files_checked, "e is replaced together with d"
    clock.now_s += 60.0
    assert scrubber.turn()
    assert (5, 1) == (scrubber.files_checked, scrubber.files_rotted)
    while scrubber.turn():
        pass
    scrubber.scrub_now()
    assert scrubber.turn()


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node of one group with three records in its log."""
    made = Recovery(tmp_path)
    append_records(made.log, 3)
    yield made.node
    made.node.close()


def test_a_truncated_log_is_reported_only_after_a_while_and_taken_back(node: FakeNode) -> None:
    """A member that has read more than the log holds: for some seconds that may be an answer that is old."""
    clock = ManualClock()
    ends = SimpleNamespace(end=lambda topic: node.log.describe(topic).end)
    monitor = DivergenceMonitor(node.log, node, ends, Unasked(), clock)
    node.live_statuses = [replace(STATUS, node="n2", durable_offset=3)]
    monitor.turn()
    states = [node.group.health.state]
    for _ in range(2):
        clock.now_s += GONE_AFTER_S / 2
        monitor.turn()
    states.append(node.group.health.state)
    assert f"topic {TOPIC} ends at offset 3 and does not hold what node n2 has read" in node.group.health.reason
    append_records(node.log, 1)
    monitor.turn()
    assert [None, State.TRUNCATED, None] == [*states, node.group.health.state]


@pytest.mark.parametrize(("version", "stops"), [(2, False), (3, True)])
def test_a_member_that_cannot_follow_behind_an_accepted_gap_stops_nobody(
    node: FakeNode, version: int, stops: bool
) -> None:
    """Its disk is full, so it reports its log as lost for long: what the log lost is here. One that has read more than
    the anchor has lost the log once more.
    """
    clock = ManualClock()
    ends = SimpleNamespace(end=lambda topic: node.log.describe(topic).end)
    monitor = DivergenceMonitor(node.log, node, ends, Unasked(), clock)
    node.group.replica.state.base = LogBase(node.topic_id(TOPIC), 1, 2)
    node.live_statuses = [replace(STATUS, node="n2", version=version, log_lost=True)]
    for _ in range(3):
        monitor.turn()
        clock.now_s += GONE_AFTER_S / 2
    assert stops is node.group.health.holds(State.TRUNCATED)


def test_a_topic_that_is_deleted_is_no_matter_of_the_comparison(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its group has ended, or its log is lost, which others report. Any other failure is logged once."""
    ends = SimpleNamespace(end=lambda _topic: 0)
    monitor = DivergenceMonitor(node.log, node, ends, Unasked(), ManualClock())
    node.live_statuses = [replace(STATUS, node="n2", durable_offset=3)]
    failures: list[HeadraceError] = [TopicMissing(TOPIC)] * 3 + [LogUnavailable("no broker")] * 3

    def describe(_topic: str) -> None:
        raise failures.pop(0)

    monkeypatch.setattr(node.log, "describe", describe)
    with capture_logs() as lines:
        for _ in range(6):
            monitor.turn()
    assert [] == failures
    assert ["no broker"] == [line["error"] for line in lines]


def test_a_member_that_has_not_reached_an_accepted_gap_is_not_compared(node: FakeNode) -> None:
    """It counts the log as it is, and copies files at the gap. A majority of such members would condemn the only one
    that holds what the log has lost.
    """
    ends = SimpleNamespace(end=lambda topic: node.log.describe(topic).end)
    supervisor = Marks({TOPIC: Files([], set())})
    monitor = DivergenceMonitor(node.log, node, ends, supervisor, ManualClock())
    node.group.enqueue([JournalEntry("g", version, version - 1, 0, (), b"x") for version in (1, 2)])
    while node.group.turn():
        pass
    others = [
        replace(STATUS, node=name, store=name, durable_offset=1, offset=1, chain_version=1, chain=b"c" * 16)
        for name in ("n2", "n3")
    ]
    node.group.replica.state.base = LogBase("t", 0, 1, record=GapRecord(2, b"gap"))
    node.live_statuses = others
    monitor.turn()
    assert (None, []) == (node.group.health.state, supervisor.marked)
    node.live_statuses = [replace(each, offset=2) for each in others]
    monitor.turn()
    assert 1 == len(supervisor.marked), "members that have read it count alike"


def test_samples_of_before_a_gap_are_void_behind_it(node: FakeNode) -> None:
    """A member that read the log as it was cut may show a version that this one reaches by another count."""
    ends = SimpleNamespace(end=lambda topic: node.log.describe(topic).end)
    supervisor = Marks({TOPIC: Files([], set())})
    monitor = DivergenceMonitor(node.log, node, ends, supervisor, ManualClock())
    node.live_statuses = [
        replace(STATUS, node=name, store=name, durable_offset=1, offset=1, chain_version=1, chain=b"c" * 16)
        for name in ("n2", "n3")
    ]
    monitor.turn()
    node.group.replica.state.base = LogBase("t", 0, 0, b"anchor", GapRecord(2, b"gap"))
    node.group.enqueue([JournalEntry("g", 1, 0, 0, (), b"x")])
    assert node.group.turn()
    monitor.turn()
    assert [] == supervisor.marked


@pytest.mark.parametrize("is_cut", [True, False])
def test_a_log_that_was_cut_is_no_truth_about_who_is_wrong(node: FakeNode, is_cut: bool) -> None:
    """The schedule: a member that was behind the cut reads on before the others notice the cut. By the log they would
    all be wrong, and throw away what the log has lost. A log that has the newest record decides, as ever.
    """
    ends = SimpleNamespace(end=lambda topic: node.log.describe(topic).end)
    supervisor = Marks({TOPIC: Files([], set())})
    monitor = DivergenceMonitor(node.log, node, ends, supervisor, ManualClock())
    values = [b"no message 0", b"no message 1" if is_cut else b"read with an error", b"no message 2"]
    node.group.enqueue([JournalEntry("g", index + 1, index, 0, (), value) for index, value in enumerate(values)])
    while node.group.turn():
        pass
    if is_cut:
        node.log.truncate(TOPIC, 1)
        for number in range(2):
            append_one(node.log, TOPIC, f"written since {number}".encode())
    chain = read_chain(node.log, TOPIC, 2, lambda: False).chain
    assert chain != node.group.chain_at(2)
    node.live_statuses = [replace(STATUS, node="n2", durable_offset=2, offset=2, chain_version=2, chain=chain)]
    monitor.turn()
    assert (0 if is_cut else 1) == len(supervisor.marked)
    assert node.group.health.holds(State.DISPUTED)
