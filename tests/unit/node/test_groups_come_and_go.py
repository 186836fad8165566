"""Groups come and go in running nodes, without a restart: `test_placement.py` has the changes that lead to it."""

from __future__ import annotations

import itertools
import os
import shutil
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pyarrow as pa
import pytest

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.topic_settings import TopicSettings
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.cluster_topics import TopicUnsuitable
from headrace.consumers.membership.group_changes import groups_at
from headrace.consumers.membership.placement import joining_reason
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.migration.puller import SlotPuller
from headrace.consumers.node import group_deletion, local_groups
from headrace.consumers.node.group_lifecycle import GroupHeld
from headrace.consumers.node.node import Node
from headrace.consumers.query.query_errors import SlotNotHeld
from headrace.consumers.recovery.environment import GroupBusy
from headrace.consumers.replication.change_view import ChangeView
from headrace.consumers.replication.founding import Founding
from headrace.consumers.replication.group import Group
from headrace.producers.writer import TableWriter, WriterSettings
from headrace.schemas.framing import format_headers
from headrace.schemas.group_changes import Barrier, BarrierPhase, GroupKey
from headrace.schemas.group_names import group_name
from headrace.schemas.messages import Anchor, Message, ProducerPosition, encode_message
from headrace.schemas.records import Role
from tests.unit.node.test_fewer_replicas import connected, scan_of
from tests.unit.nodes import Nodes, running_nodes
from tests.waiting import eventually

pytestmark = pytest.mark.slow(2.5)

NAMES = ("n1", "n2", "n3", "n4")
HOUR_NS = 3_600_000_000_000
ROWS = 240
ROUNDS = 3


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Four nodes of which two hold each row; logs are trimmed, so that an empty member needs files.

    The ring is n2 n1 n4 n3, with n0 between n1 and n4: group n1 is that of n1 and n4, and later of n1 and n0.
    """
    with (
        pytest.MonkeyPatch.context() as patch,
        running_nodes(tmp_path_factory.mktemp("four"), patch, NAMES, replication=2) as nodes,
    ):
        write(nodes, "wells")
        nodes.seal_and_trim()
        nodes.start("n0")
        # The table of the log stays the first one: what a node holds is set by each test.
        for node in nodes.running.values():
            node.placement.stop()
        for name in ("settled_version", "proven_version"):
            patch.setattr(ChangeView, name, property(lambda _view: SETTLED[0]))
        # No change runs in the membership log: nothing is pulled.
        patch.setattr(SlotPuller, "pulling", lambda *_: frozenset())
        yield nodes


def write(nodes: Nodes, table: str) -> None:
    """Rows in every group, confirmed by two members."""
    rows = {
        "pump": [f"p{number % 20}" for number in range(ROWS)],
        "time": [number // 20 * HOUR_NS for number in range(ROWS)],
        "flow": [1.0 for _ in range(ROWS)],
    }
    with connected(nodes) as shared, TableWriter(shared, "plant", table, WriterSettings(quorum=2)) as writer:
        writer.write(pa.table(rows), ["pump"])


def rows_at(node: Node, table: str) -> int:
    """The number of rows in a node's answer."""
    sql = f"SELECT count(*) AS c FROM plant.{table}"
    answer = httpx.post(f"{node.http_address}/api/v1/query", json={"sql": sql, "format": "arrow"}, timeout=60)
    assert 200 == answer.status_code, answer.text
    return int(pa.ipc.open_stream(answer.content).read_all().to_pylist()[0]["c"])


def held(node: Node) -> set[str]:
    """The groups of a node."""
    return {group.key for group in node.groups.values()}


def on_disk(node: Node, key: str) -> list[str]:
    """The directories that a node has of a group."""
    name = key.replace("@", "%40")
    return [str(path.relative_to(node.directory)) for path in sorted(node.directory.glob(f"*/{name}"))]


def resources(node: Node) -> tuple[list[str], int]:
    """The threads of groups in this process, and how many files of this node's stores are open."""
    threads = sorted(each.name for each in threading.enumerate() if each.name.startswith(("apply-", "store-")))
    roots, count = tuple(str(node.directory / part) for part in ("segments", "index", "journal")), 0
    for number in os.listdir("/proc/self/fd"):
        try:
            count += os.readlink(f"/proc/self/fd/{number}").startswith(roots)
        except OSError:
            continue
    return threads, count


VERSIONS = itertools.count(2)
SETTLED = [1]
"""The newest table that a node follows here. No barrier is in any log: all groups count as if they had reached it."""
JOINED = SlotTable.create(NAMES, 2, 60).add_node("n0")
LEFT = JOINED.remove_node("n0")


def following(table: SlotTable, *nodes: Node) -> SlotTable:
    """Let nodes hold the groups that a table gives them."""
    SETTLED[0] = table.version
    for node in nodes:
        follow(node, table)
    return table


def follow(node: Node, table: SlotTable, timeout_s: float = 60.0) -> None:
    """Open and close groups until it is done. Raises GroupBusy when that takes longer."""
    node.placement.on_table(table)
    deadline = Deadline(timeout_s)
    while True:
        try:
            node.placement.lifecycle.follow(groups_at(table, node.name))
            break
        except GroupBusy:
            if deadline.passed():
                raise
        time.sleep(0.02)
    stand(node, joining=joining_reason(MembershipState(table=table), node.name))


def stand(node: Node, **changed: Any) -> None:
    """Change where a node stands, as its placement does."""
    node.readiness.standing = replace(node.readiness.standing, **changed)


def agree(nodes: Nodes, *members: str) -> None:
    """Let the log of group n1 decide on its members."""
    topic, version = nodes.topics.forward("n1"), next(VERSIONS)

    def known() -> set[tuple[str, ...]]:
        return {node.groups[topic].members for node in nodes.running.values() if topic in node.groups}

    def agreed() -> bool:
        for node in nodes.running.values():
            if topic in node.groups and node.role(topic) is Role.LEADER and members != node.groups[topic].members:
                nodes.log.store(topic, barrier_of(node, topic, version, members), None, format_headers(3))
        return {members} == known()

    eventually(agreed, f"{members} instead of {known()}")


def barrier_of(node: Node, topic: str, version: int, members: tuple[str, ...]) -> bytes:
    """The record by which the leader of a group changes its members."""
    applied = node.groups[topic].applied
    assert applied.leader is not None
    anchor = Anchor(applied.offset, applied.version, applied.chain)
    barrier = Barrier(applied.leader, anchor, version, BarrierPhase.FORMAL, version, 60, members)
    return encode_message(Message(ProducerPosition(f"barriers-{version}", 1, 0), barrier))


def ready(*nodes: Node) -> None:
    """Wait until nodes are ready."""
    for node in nodes:
        eventually(lambda node=node: node.ready()[0], f"{node.name}: {node.ready()}")


@pytest.fixture(autouse=True)
def joined(nodes: Nodes) -> None:
    """Every test, in any order, begins after the change: n1 and n0 hold group n1 and are its members."""
    giver, joiner = nodes.running["n4"], nodes.running["n0"]
    following(JOINED, joiner)
    if "n1" in held(giver):
        agree(nodes, "n1", "n0", "n4")
        ready(joiner)
    following(JOINED, *nodes.running.values())
    agree(nodes, "n1", "n0")
    ready(*nodes.running.values())


def test_a_group_is_opened_and_closed_under_queries_and_writers(nodes: Nodes) -> None:
    """A joiner takes the files of another member, follows and answers. The member that gives the group up refuses it
    by name, ends what reads it first, and has neither threads nor files nor figures of it any more.
    """
    giver, joiner, topic = nodes.running["n4"], nodes.running["n0"], nodes.topics.forward("n1")
    following(LEFT, giver)
    agree(nodes, "n1", "n0", "n4")
    ready(giver)
    agree(nodes, "n1", "n4")
    following(LEFT, joiner)
    assert set() == held(joiner)
    for birth in (GroupKey("n1", 1), GroupKey("n0", 2)):
        joiner.placement.lifecycle.delete(birth)
    joined = following(JOINED, joiner)
    assert {"n1", "n0@2"} == held(joiner)
    agree(nodes, "n1", "n0", "n4")
    assert not joiner.ready()[0] or ROWS == rows_at(joiner, "wells"), "ready before it has the data"
    ready(joiner)
    assert ROWS == rows_at(joiner, "wells")
    assert joiner.groups[topic].store.segments() == nodes.running["n1"].groups[topic].store.segments()

    # A query that reads its files ends first, one that waits for its log is refused.
    scan = giver.scanner.open(scan_of(giver, "wells", group="n1"))
    assert scan.next() is not None
    waiting = giver.scanner.open(scan_of(giver, "wells", group="n1", after=10**6, wait_ms=60_000, timeout_ms=60_000))
    with ThreadPoolExecutor(1) as pool:
        refused = pool.submit(waiting.next)
        with pytest.raises(GroupBusy, match="group n1 is closed once queries that read its files have ended"):
            follow(giver, joined, timeout_s=1.0)
        with pytest.raises(SlotNotHeld, match="group n1 has left this node"):
            refused.result(30)
    waiting.close()
    assert "n1" in held(giver)
    while scan.next() is not None:
        pass
    scan.close()
    follow(giver, joined)
    assert {"n4", "n0@2"} == held(giver)
    agree(nodes, "n1", "n0")
    with pytest.raises(SlotNotHeld, match="does not hold group n1"):
        giver.scanner.open(scan_of(joiner, "wells", group="n1"))
    lines = httpx.get(f"{giver.http_address}/metrics").text.splitlines()
    # Slots are those of the cluster's groups, of which any node shows all.
    assert ["headrace_slots"] == [line.partition("{")[0] for line in lines if 'group="n1"' in line]
    eventually(lambda: nodes.running["n1"].role(topic) is Role.LEADER, "n1, which leads the group alone by now")
    for node in nodes.running.values():
        follow(node, joined)
        ready(node)
        assert ROWS == rows_at(node, "wells")


def test_again_and_again_leaves_nothing_behind(nodes: Nodes) -> None:
    """Opened, closed and deleted in turns, with data and empty: threads and open files are as before, and the node
    still answers. Data is deleted in a step of its own, and never that of a group which the table names.
    """
    node, old, new = nodes.running["n4"], GroupKey("n1", 1), GroupKey("n0", 2)
    agree(nodes, "n1", "n0", "n4")
    before = resources(node)
    for turn in range(ROUNDS):
        following(LEFT, node)
        assert {"n4", "n1"} == held(node)
        with pytest.raises(GroupHeld, match="group n1 belongs to node n4"):
            node.placement.lifecycle.delete(old)
        if turn == 1:
            node.placement.lifecycle.delete(new)
            assert [] == on_disk(node, group_name(new))
        # The next change may come while the group still recovers.
        if turn == 2:
            ready(node)
            assert ROWS == rows_at(node, "wells")
        following(JOINED, node)
        assert {"n4", "n0@2"} == held(node)
        assert {"index/n1", "segments/n1"} <= set(on_disk(node, group_name(old)))
        node.placement.lifecycle.delete(old)
        node.placement.lifecycle.delete(old)
        assert [] == on_disk(node, group_name(old))
        assert nodes.topics.forward("n1") not in node.identity.topics
    # An index may just have had a file more, which it has merged since.
    eventually(lambda: resources(node) <= before, f"{before}, and now {resources(node)}")
    ready(node)


def test_a_node_that_was_removed_answers_until_it_ends(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not ready, so that nobody new comes. Queries of others may need what its groups have handed over."""
    node = nodes.running["n1"]
    ready(node)
    leaving = replace(node.readiness.standing, leaving="leaving: node n1 was removed")
    monkeypatch.setattr(node.readiness, "standing", leaving)
    assert node.ready() == (False, ["leaving: node n1 was removed"])
    # On a busy machine the statuses of a majority may be late.
    sql = {"sql": "SELECT count(*) FROM plant.wells"}
    eventually(lambda: httpx.post(f"{node.http_address}/api/v1/query", json=sql, timeout=60).is_success, "an answer")
    assert node.ready() == (False, ["leaving: node n1 was removed"])


def test_a_node_that_holds_nothing_any_more_is_joining(nodes: Nodes) -> None:
    """It is not ready and refuses queries by name; once it has groups again, it serves."""
    node = nodes.running["n0"]
    following(LEFT, node)
    assert set() == held(node)
    assert node.ready() == (False, [node.readiness.standing.joining])
    sql = {"sql": "SELECT count(*) FROM plant.wells"}
    refused = httpx.post(f"{node.http_address}/api/v1/query", json=sql, timeout=60)
    assert (503, "NotReady") == (refused.status_code, refused.json()["error"]["kind"])
    for birth in (GroupKey("n1", 1), GroupKey("n0", 2)):
        node.placement.lifecycle.delete(birth)
    assert {} == node.identity.topics
    following(JOINED, node)
    ready(node)
    assert ROWS == rows_at(node, "wells")


def test_a_group_that_cannot_be_opened_keeps_no_other_from_it(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """A topic with wrong settings is for an operator: the rest of what a change brings comes meanwhile."""
    node = nodes.running["n0"]
    following(LEFT, node)
    first = next(iter(groups_at(JOINED, "n0")))
    unsuitable = nodes.topics.forward(first.group, first.birth)
    ensure = node.cluster_topics.ensure

    def refuse(needed: Mapping[str, TopicSettings]) -> None:
        if unsuitable in needed:
            raise TopicUnsuitable(f"topic {unsuitable} has settings that the cluster cannot work with")
        ensure(needed)

    monkeypatch.setattr(node.cluster_topics, "ensure", refuse)
    with pytest.raises(TopicUnsuitable):
        following(JOINED, node)
    assert {"n1", "n0@2"} - {group_name(first)} == held(node)


@pytest.mark.parametrize("times", [1, 2])
def test_a_group_that_does_not_start_is_opened_by_a_later_attempt(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """A machine without a thread to spare is one for a moment."""
    node = nodes.running["n0"]
    following(LEFT, node)
    fails = [RuntimeError("can't start new thread")] * times
    start = Group.start

    def refuse(group: Group) -> None:
        if fails:
            raise fails.pop()
        start(group)

    monkeypatch.setattr(Group, "start", refuse)
    for _ in range(times):
        with pytest.raises(RuntimeError):
            follow(node, JOINED)
        assert set() == held(node)
    following(JOINED, node)
    ready(node)


class Killed(Exception):
    """The process ends here."""


@pytest.mark.parametrize("step", ["remove", "closed", "rename_durably", "finish_deletion"])
def test_a_kill_leaves_the_group_or_nothing(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """The next start, here one of a copy of the directory, has the group with all that was sealed, or an empty one.

    The other group is as it was in any case, and the killed step can be repeated in a node that lives on.
    """
    node, topic = nodes.running["n4"], nodes.topics.forward("n1")
    following(LEFT, node)
    agree(nodes, "n1", "n0", "n4")
    ready(node)
    group, other = node.groups[topic], node.groups[nodes.topics.forward("n4")].version
    place = {"remove": node.journal, "rename_durably": group_deletion, "finish_deletion": local_groups}

    def kill(*_: object) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        if step in place:
            patch.setattr(place[step], step, kill)
        with suppress(Killed):
            following(JOINED, node)
            if step in place:
                node.placement.lifecycle.delete(GroupKey("n1", 1))
        shutil.copytree(node.directory, tmp_path / "n4")
    settings = nodes.settings("n4")
    copied = settings.node.model_copy(update={"data_dir": str(tmp_path / "n4")})
    started = Node(settings.model_copy(update={"node": copied}), nodes.log)
    started.start(lambda _line: None, observer=True)
    try:
        # The log's own table has the group at n4.
        assert {"n1", "n4"} == held(started)
        # The leader may have trimmed once more before the group was closed here. Records that wait for a version of a
        # table, which a node reads behind its start, are applied behind it, too.
        expected = group.version if step in ("remove", "closed") else 0
        eventually(lambda: expected == started.groups[topic].version, "all that the journal has of the group")
        assert other <= started.groups[nodes.topics.forward("n4")].version
        assert not list((tmp_path / "n4" / "deleted").glob("*"))
    finally:
        started.stop()
    following(JOINED, node)
    node.placement.lifecycle.delete(GroupKey("n1", 1))
    assert [] == on_disk(node, "n1")


def test_a_group_that_was_opened_early_is_opened_again_for_other_slots(nodes: Nodes) -> None:
    """Its change was cancelled, and another one brings it. Nobody leads it before, so its log has no record."""
    node, topic, birth = nodes.running["n0"], nodes.topics.forward("n9", 7), GroupKey("n9", 7)
    others = {node._local.keys[each]: group.founding for each, group in node.groups.items()}
    stand(node, early=frozenset({topic}))

    def follows(wanted: dict[GroupKey, Founding]) -> bool:
        try:
            node.placement.lifecycle.follow(wanted)
        except GroupBusy:
            return False
        return True

    for gains in ((1, 2), (3,), (3,)):
        founding = Founding(("n0",), 7, gains)
        eventually(lambda founding=founding: follows({**others, birth: founding}), f"the group with {gains}")
        assert founding == node.groups[topic].founding
        assert "next slot table" in node.reason(topic)
    time.sleep(1.0)
    assert (Role.UNSYNCED, 0) == (node.role(topic), nodes.log.describe(topic).end)
    stand(node, early=frozenset())
    eventually(lambda: node.role(topic) is Role.LEADER, "it is led once its table counts")
    eventually(lambda: follows(others), "the group goes")
    node.placement.lifecycle.delete(birth)
