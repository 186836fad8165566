"""`headrace replay` of a log that continues behind an accepted gap: all rows of the group, or an error and no store."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace._member_views import LogView
from headrace.admin_client import AdminClient
from headrace.connectors.files import DirectoryHeld, DirectoryLock, create_directories
from headrace.connectors.log.memory import MemoryLog
from headrace.consumers.membership.bootstrap import read_slot_table
from headrace.consumers.node import offline_replay
from headrace.consumers.node.offline_replay import LogIncomplete, ReplayResult, replay
from tests.unit.nodes import Nodes, running_nodes
from tests.waiting import eventually

NAMES = ("n1", "n2", "n3")


@pytest.fixture
def nodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """Three nodes with some sealed rows, whose logs are not trimmed."""
    with running_nodes(tmp_path, monkeypatch, NAMES, keep_records=10_000, replication=3) as found:
        found.write()
        found.seal()
        found.write()
        for name in NAMES:
            found.holds_everything(name)
        yield found


def create_again(log: MemoryLog, topic: str, *, restored: bool) -> None:
    """A topic is gone and made again, empty or with the records that it had."""
    reader = log.reader({topic: 0})
    records = reader.poll(10_000, 1.0)
    reader.close()
    log.delete_topic(topic)
    log.create_topic(topic, {})
    for record in records if restored else ():
        log.store(topic, record.value, record.key, record.headers)


def await_loss(nodes: Nodes, topic: str) -> None:
    """Wait until every member has noticed that its log is another one."""
    for node in nodes.running.values():
        eventually(lambda node=node: "headrace accept-gap" in node.reason(topic), "a lost log")
        node.heartbeat.send_now()


def accept(nodes: Nodes, group: str, resume: int | None) -> None:
    """`headrace accept-gap`, and more rows once all members continue."""
    admin = AdminClient(LogView(nodes.log, nodes.topics, read_slot_table(nodes.log, nodes.topics)))
    try:
        admin.accept_gap(group, resume, 0, 30.0)
    finally:
        admin.close()
    nodes.ready()
    nodes.write()
    nodes.holds_everything("n1")


def replayed(nodes: Nodes, name: str) -> ReplayResult:
    """`headrace replay --replace` of a stopped node."""
    return replay(nodes.settings(name), may_replace=True, on_progress=lambda _done, _total: None, log=nodes.log)


def test_a_log_that_is_whole_in_spite_of_a_gap_is_replayed(nodes: Nodes) -> None:
    """An operator has restored all its records in a new topic and accepted the gap: the new store has every row."""
    topic = nodes.topics.forward("n2")
    create_again(nodes.log, topic, restored=True)
    await_loss(nodes, topic)
    accept(nodes, "n2", nodes.log.describe(topic).end)
    nodes.stop("n3")
    found = replayed(nodes, "n3")
    assert nodes.written == found.rows
    nodes.start("n3")
    nodes.holds_everything("n3")
    assert 1 == len({node.groups[topic].applied.chain for node in nodes.running.values()})
    assert 1 == len({node.groups[topic].replica.state.base for node in nodes.running.values()})


def test_a_log_without_the_rows_before_a_gap_is_refused_at_once(nodes: Nodes) -> None:
    """Other members show that they hold more records than the log had: nothing is read, and nothing replaced."""
    topic = nodes.topics.forward("n2")
    create_again(nodes.log, topic, restored=False)
    await_loss(nodes, topic)
    accept(nodes, "n2", None)
    nodes.stop("n3")
    with pytest.raises(LogIncomplete, match=r"group n2: the log has an accepted gap: node n[12] holds") as raised:
        replayed(nodes, "n3")
    assert "start the node instead: it recovers from the files of another member" in raised.value.action
    nodes.start("n3")
    nodes.holds_everything("n3")


def test_a_gap_that_no_member_shows_ends_a_replay_where_it_is(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """No other member is there to show it: the replay ends at its record, and does not read on."""
    topic = nodes.topics.forward("n2")
    create_again(nodes.log, topic, restored=False)
    await_loss(nodes, topic)
    accept(nodes, "n2", None)
    nodes.stop(*NAMES)
    monkeypatch.setattr(offline_replay, "_check_whole", lambda *_: None)
    with pytest.raises(LogIncomplete, match="group n2: the log has an accepted gap: offset 0 follows version"):
        replayed(nodes, "n3")
    monkeypatch.undo()
    nodes.start(*NAMES)
    nodes.holds_everything("n3")


def test_a_log_that_is_lost_is_refused(nodes: Nodes) -> None:
    """Nobody has decided about it yet: a store from what is left of it would lack rows."""
    topic = nodes.topics.forward("n2")
    create_again(nodes.log, topic, restored=False)
    await_loss(nodes, topic)
    nodes.stop("n3")
    with pytest.raises(LogIncomplete, match=r"group n2: node n[12] reports that the log is lost"):
        replayed(nodes, "n3")


def test_a_log_that_was_trimmed_is_refused_at_once(nodes: Nodes) -> None:
    """Before anything is read, with the same advice."""
    nodes.stop("n3")
    nodes.log.trim(nodes.topics.forward("n1"), 1)
    with pytest.raises(LogIncomplete, match="group n1: the log was trimmed: it begins at offset 1") as raised:
        replayed(nodes, "n3")
    assert "start the node instead" in raised.value.action


@pytest.mark.parametrize("begun", [True, False])
def test_no_node_starts_on_a_directory_that_a_replay_will_replace(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, *, begun: bool
) -> None:
    """A service manager starts it again and again. Its directory would be moved away while it runs, and deleted."""
    nodes.stop("n3")
    settings, swap, found = nodes.settings("n3"), offline_replay._swap, set[bool]()
    directory = settings.node.data_directory
    if not begun:
        shutil.rmtree(directory)

    def look() -> None:
        try:
            DirectoryLock(create_directories(directory)).release()
        except DirectoryHeld:
            found.add(True)
        else:
            found.add(False)

    def look_and_swap(directory: Path, partial: Path) -> None:
        look()
        swap(directory, partial)

    monkeypatch.setattr(offline_replay, "_swap", look_and_swap)
    replay(settings, may_replace=begun, on_progress=lambda _done, _total: look(), log=nodes.log)
    assert {True} == found
    nodes.start("n3")
    nodes.holds_everything("n3")
