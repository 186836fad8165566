"""Recovery in single steps: no thread, a clock that a test sets, and a pool that runs a copy on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from headrace.connectors.log.append import append_one
from headrace.connectors.log.memory import MemoryLog
from headrace.consumers.recovery import group_copies
from headrace.consumers.recovery.coordinator import FAILED_EXCLUSION_S, RecoveryCoordinator
from headrace.consumers.recovery.environment import GroupBusy
from headrace.consumers.recovery.file_copy import RECOVERING, Snapshot, Source, SourceFailed, finish_swap, is_committed
from headrace.consumers.recovery.gap_search import GapSearch
from headrace.consumers.recovery.wrong_data import WrongData
from headrace.consumers.replication.founding import Founding
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import Event, State, Use
from headrace.consumers.replication.group_state import GapRecord, LogBase
from headrace.consumers.replication.hash_chain import record_digest
from headrace.consumers.replication.log_prefix import Cursor
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.consumers.store import Store
from headrace.schemas.messages import NO_CHAIN, Anchor, Gap, Message, ProducerPosition, encode_message
from headrace.schemas.records import Status
from tests.manual_clock import ManualClock
from tests.unit.statuses import STATUS

TOPIC = "c.forward.g"


class Pool(Executor):
    """Runs what was submitted when `run` is called."""

    def __init__(self) -> None:
        self.submitted: list[Callable[[], object]] = []

    def submit(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        """See Executor."""
        self.submitted.append(lambda: fn(*args, **kwargs))
        return Future()

    def run(self) -> None:
        """Run all of it now."""
        submitted, self.submitted = self.submitted, []
        for each in submitted:
            each()


class FakeNode:
    """A RecoveryEnvironment of one group whose disk may be full; `live_statuses` are those of its members.

    `chains`: what members answer, by address and version; `asked`: what they were asked.
    """

    node, store = "n1", "data"

    def __init__(self, directory: Path, log: MemoryLog) -> None:
        self.directory = directory
        self.log = log
        self.live_statuses: list[Status] = []
        self.chains: dict[tuple[str, int], bytes] = {}
        self.asked: list[tuple[str, int]] = []
        self.full = self.busy = self.swapped = False
        self.answering, self.released, self.durable = False, True, -1
        self.newest = Cursor(0, -1, NO_CHAIN)
        self.recorded: list[str] = []
        self.installed = 0
        self.reassigned = 0
        self.opened = Store.open(directory, "g")
        limits = ReplicationLimits()
        tables: Any = None
        self.group = Group(
            "g", Founding(("n1", "n2", "n3")), self.opened, tables, limits, lambda _group, _version: None
        )
        self.groups = {TOPIC: self.group}

    def close(self) -> None:
        """Stop the group."""
        self.group.stop()
        self.opened.close()

    def topic_id(self, topic: str) -> str:
        """See RecoveryEnvironment."""
        return self.log.describe(topic).topic_id

    def live(self, group: Group) -> list[Status]:
        """See RecoveryEnvironment."""
        assert group is self.group
        return [replace(status, topic_id=self.topic_id(TOPIC)) for status in self.live_statuses]

    def caught_up(self, _topic: str) -> bool:
        """See RecoveryEnvironment."""
        return True

    def durable_offset(self, _topic: str) -> int:
        """See RecoveryEnvironment."""
        return self.durable

    def cursor(self, _topic: str) -> Cursor:
        """See RecoveryEnvironment."""
        return self.newest

    def is_released(self, _topic: str) -> bool:
        """See RecoveryEnvironment."""
        return self.released

    def is_idle(self, _topic: str) -> bool:
        """See RecoveryEnvironment."""
        return True

    def source(self, _url: str, _group: str) -> Source:
        """See RecoveryEnvironment."""
        if not self.answering:
            raise SourceFailed("n2 does not answer", retriable=True)
        return cast(Source, None)

    def chain_of(self, url: str, _group: str, version: int) -> bytes | None:
        """See RecoveryEnvironment."""
        self.asked.append((url, version))
        return self.chains.get((url, version))

    def _record(self, what: str) -> None:
        if self.full:
            raise OSError("no space left on device")
        self.recorded.append(what)

    def record_wrong(self, _topic: str, _group: Group) -> None:
        """See RecoveryEnvironment."""
        self._record("wrong")

    def record_gap(self, _topic: str, base: LogBase) -> None:
        """See RecoveryEnvironment."""
        self._record(f"gap behind {base.version}")

    def repeat_records(self) -> None:
        """See RecoveryEnvironment."""

    def reassign(self, _topic: str) -> None:
        """See RecoveryEnvironment."""
        self.reassigned += 1

    def join_gap(self, _topic: str, base: LogBase) -> None:
        """See RecoveryEnvironment."""
        self.group.join_gap(base)

    def install(self, _topic: str) -> None:
        """See RecoveryEnvironment."""
        if self.busy:
            raise GroupBusy("records are on their way")
        assert is_committed(self.directory, self.group.directory_name) or self.swapped
        finish_swap(self.directory, self.group.directory_name)
        self.swapped = True
        if self.full:
            raise OSError("no space left on device")
        self.installed += 1


class Recovery:
    """The steps of recovery over a fake node."""

    def __init__(self, directory: Path) -> None:
        self.log = MemoryLog()
        self.log.create_topic(TOPIC, {})
        self.clock, self.pool = ManualClock(), Pool()
        self.node = FakeNode(directory, self.log)
        self.health = self.node.group.health
        self.wrong_data = WrongData(self.node)
        self.coordinator = RecoveryCoordinator(self.log, self.node, ReplicationLimits(), self.pool, self.clock)
        self.gap_search = GapSearch(self.log, self.node, self.coordinator, self.wrong_data, self.clock)


@pytest.fixture
def recovery(tmp_path: Path) -> Iterator[Recovery]:
    """The steps of recovery of one empty group, whose log has its beginning."""
    made = Recovery(tmp_path)
    yield made
    made.gap_search.stop()
    made.node.close()


def test_wrong_data_is_refused_at_once_and_replaced_once_it_is_recorded(recovery: Recovery) -> None:
    """While the disk is full nothing is served or counted and no step begins a recovery; the mark is repeated."""
    recovery.node.full = True
    recovery.wrong_data.mark(TOPIC, "a file has changed")
    assert all(recovery.health.refuses(use) for use in Use)
    for _ in range(3):
        recovery.wrong_data.turn()
        recovery.coordinator.turn()
    assert (State.WRONG, None, []) == (
        recovery.health.state,
        recovery.health.conditions.recovery,
        recovery.pool.submitted,
    )
    assert recovery.health.reason.endswith("it recovers once that is recorded: no space left on device")
    recovery.node.full = False
    recovery.coordinator.turn()
    assert [] == recovery.pool.submitted
    recovery.wrong_data.turn()
    recovery.coordinator.turn()
    assert ["wrong"] == recovery.node.recorded
    assert recovery.health.holds(State.CONDEMNED)
    assert recovery.health.holds(State.RECOVERING)
    recovery.node.busy = True
    recovery.pool.run()
    assert 0 == recovery.node.installed
    recovery.node.busy = False
    for full in (True, False):
        # Behind the swap nothing shows any more that the copy has to be installed.
        recovery.node.full = full
        recovery.coordinator.turn()
        recovery.pool.run()
        recovery.clock.now_s += FAILED_EXCLUSION_S
    assert 1 == recovery.node.installed


@pytest.mark.parametrize("loss", ["none", "made again", "cut", "cut and written on"])
def test_wrong_data_is_not_rebuilt_from_a_log_that_lost_what_was_read(
    recovery: Recovery, monkeypatch: pytest.MonkeyPatch, loss: str
) -> None:
    """The log begins with its first record, and has nothing of what the files beside the rotted one hold."""
    node, log = recovery.node, recovery.log
    append_records(log, 3)
    if loss == "cut":
        node.newest = Cursor(4, 3, record_digest(b"no message 3"), 0)
    else:
        read = b"another message" if loss == "cut and written on" else b"no message 2"
        node.newest = Cursor(3, 2, record_digest(read), 0)
    if loss == "made again":
        monkeypatch.setattr(node, "topic_id", lambda _topic: "the topic before")
    recovery.wrong_data.mark(TOPIC, "a file has changed")
    recovery.coordinator.turn()
    recovery.pool.run()
    waits = recovery.health.holds(State.UNSOURCED)
    assert (waits, node.installed) == ((False, 1) if loss == "none" else (True, 0))


def test_damage_counts_for_no_quorum_and_is_marked_by_the_next_step(recovery: Recovery) -> None:
    """What a store job could not read is no copy from that moment."""
    recovery.health.damage("segment s cannot be read")
    recovery.health.report(Event.STOP, "storing at version 7")
    assert recovery.health.refuses(Use.QUORUM)
    recovery.wrong_data.turn()
    assert (State.CONDEMNED, "segment s cannot be read") == (recovery.health.state, recovery.health.reason)
    assert ["wrong"] == recovery.node.recorded


def test_wrong_data_outranks_a_recovery_for_another_reason(recovery: Recovery) -> None:
    """A group that waits for files because its log was trimmed does not follow the log again on top of wrong data."""
    recovery.health.report(Event.TRIM, "the log begins at offset 3, 0 is needed")
    append_records(recovery.log, 3)
    recovery.log.trim(TOPIC, 3)
    recovery.coordinator.turn()
    assert (State.UNSOURCED, True) == (recovery.health.state, recovery.node.group.blocked)
    recovery.wrong_data.mark(TOPIC, "a file has changed")
    recovery.coordinator.turn()
    assert recovery.health.reason.startswith("a file has changed; no member in sync has the files")


def test_data_without_a_fault_is_replaced_without_an_error(recovery: Recovery) -> None:
    """A new member awaits files that the others have merged: it copies theirs, and nobody is called."""
    with capture_logs() as lines:
        recovery.wrong_data.replace(TOPIC, "it awaits a file that other members have merged", frozenset({"n2"}))
        recovery.coordinator.turn()
    assert (True, frozenset({"n2"})) == (recovery.health.is_wrong, recovery.health.conditions.trusted)
    assert {"warning", "error"}.isdisjoint(line["log_level"] for line in lines)


def test_a_source_that_failed_is_used_again_when_the_clock_has_advanced(recovery: Recovery) -> None:
    """Each step plans once; without another source the group waits until the excluded one may be tried again."""
    recovery.node.live_statuses = [replace(STATUS, node="n2", eligible=True, http="http://n2", sealed_offset=10)]
    append_records(recovery.log, 3)
    recovery.log.trim(TOPIC, 3)
    recovery.health.report(Event.TRIM, "the log begins at offset 3, 0 is needed")
    recovery.coordinator.turn()
    assert 1 == len(recovery.pool.submitted)
    recovery.coordinator.turn()
    assert 1 == len(recovery.pool.submitted), "a group is copied once at a time"
    recovery.pool.run()
    recovery.coordinator.turn()
    assert ([], State.UNSOURCED) == (recovery.pool.submitted, recovery.health.state)
    recovery.clock.now_s += FAILED_EXCLUSION_S
    recovery.coordinator.turn()
    assert (1, State.RECOVERING) == (len(recovery.pool.submitted), recovery.health.state)


@pytest.mark.parametrize("wrong", [False, True])
def test_no_copy_of_files_that_end_before_an_accepted_gap(recovery: Recovery, *, wrong: bool) -> None:
    """Neither where this node continues behind it, nor where its data is wrong. A member that was behind the cut counts
    the log as it is up to the gap: its files have nothing of what the log lost.
    """
    gap, node = GapRecord(5, b"digest", 0), recovery.node
    if wrong:
        recovery.wrong_data.mark(TOPIC, "it is behind", gap=LogBase(node.topic_id(TOPIC), 2, 4, NO_CHAIN, gap))
    else:
        node.newest = replace(node.newest, gap=gap)
        append_records(recovery.log, 3)
        recovery.log.trim(TOPIC, 3)
        recovery.health.report(Event.TRIM, "the log begins at offset 3, 0 is needed")
    for sealed_offset, copies in ((4, 0), (5, 1)):
        status = replace(STATUS, node="n2", eligible=True, http="http://n2", sealed_offset=sealed_offset)
        node.live_statuses = [replace(status, sealed_version=9)]
        append_records(recovery.log, 1)
        recovery.log.trim(TOPIC, 1)
        recovery.coordinator.turn()
        assert copies == len(recovery.pool.submitted)


@pytest.mark.parametrize("cut", ["never", "before", "during the copy"])
def test_records_that_the_log_lost_do_not_give_way_to_cheaper_files(
    recovery: Recovery, monkeypatch: pytest.MonkeyPatch, cut: str
) -> None:
    """A log is cut and written on for long while this node is down. The files of a member that was behind the cut are
    those of the log as it is, and reach much further: with them nobody would know of what only this node has.
    """
    node, kept = recovery.node, Cursor(3, 2, record_digest(b"no message 2"), 0)
    lost = replace(kept, digest=record_digest(b"a record that was cut"))
    copy = Snapshot("1", "g", node.topic_id(TOPIC), 9, 8, 1, NO_CHAIN.hex(), ())
    monkeypatch.setattr(group_copies, "fetch", lambda *_, **__: copy)
    monkeypatch.setattr(group_copies, "check_copy", lambda *_: LogBase(version=1))
    monkeypatch.setattr(node, "caught_up", lambda _topic: False)
    (node.directory / RECOVERING / "g").mkdir(parents=True)
    append_records(recovery.log, 9)
    source = replace(STATUS, node="n2", eligible=True, http="http://n2", sealed_offset=8, sealed_log_bytes=10**9)
    node.live_statuses, node.answering, node.durable = [source], True, 2
    node.newest = lost if cut == "before" else kept
    for _ in range(2):
        recovery.coordinator.turn()
    assert (0 if cut == "before" else 1) == len(recovery.pool.submitted)
    node.newest = lost if cut == "during the copy" else node.newest
    recovery.pool.run()
    assert (cut == "never") is bool(node.installed)
    if cut != "never":
        recovery.clock.now_s += FAILED_EXCLUSION_S
        recovery.coordinator.turn()
        assert node.group.follows, "it reads on, and finds that the log is lost"


def test_own_durable_records_do_not_give_way_to_a_copy_that_ends_before_them(
    recovery: Recovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A writer may have counted what became durable in the poll under way when the copy was planned."""
    node = recovery.node
    copy = Snapshot("1", "g", node.topic_id(TOPIC), 3, 2, 1, NO_CHAIN.hex(), ())
    monkeypatch.setattr(group_copies, "fetch", lambda *_, **__: copy)
    monkeypatch.setattr(group_copies, "check_copy", lambda *_: LogBase())
    (node.directory / RECOVERING / "g").mkdir(parents=True)
    node.answering = True
    node.live_statuses = [replace(STATUS, node="n2", eligible=True, http="http://n2", sealed_offset=2)]
    append_records(recovery.log, 3)
    recovery.log.trim(TOPIC, 3)
    recovery.health.report(Event.TRIM, "the log begins at offset 3, 0 is needed")
    for released, durable, installed in ((False, -1, 0), (True, 3, 0), (True, 2, 1)):
        recovery.coordinator.turn()
        node.released, node.durable = released, durable
        recovery.pool.run()
        assert installed == node.installed
        node.durable = -1
        recovery.clock.now_s += FAILED_EXCLUSION_S


def test_a_gap_that_could_not_be_recorded_is_found_again(recovery: Recovery) -> None:
    """A full disk when the gap is found: the group does not continue, and the next step finds the gap again."""
    recovery.node.group.mark_log_lost("the log was truncated")
    position = ProducerPosition("n2/gap", 1, 0)
    gap = Gap(recovery.node.topic_id(TOPIC), 0, Anchor(-1, 0, NO_CHAIN))
    append_one(recovery.log, TOPIC, encode_message(Message(position, gap)))
    recovery.node.full = True
    recovery.gap_search.turn()
    assert recovery.health.holds(State.LOST)
    recovery.node.full = False
    recovery.gap_search.turn()
    assert (None, ["gap behind 0"]) == (recovery.health.state, recovery.node.recorded)
    assert recovery.node.group.follows


def append_records(log: MemoryLog, count: int) -> None:
    """Append records that no replica can decode."""
    for number in range(count):
        append_one(log, TOPIC, f"no message {number}".encode())
