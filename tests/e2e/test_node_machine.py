"""A node against a dict model: random writes, upserts, deletes, seals, stops, crashes and rebuilds over a log in memory."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from connectors.log.memory import MemoryLog
from connectors.log.topics import Topics
from consumers.membership.cluster import read_slot_table
from consumers.membership.deleter import delete_rows
from consumers.membership.quorum import StatusWatch
from consumers.membership.tables import TableLog
from consumers.membership.writer import Cluster, Writer
from consumers.node import Node, NodeSettings
from consumers.replication.duties import SealPolicy
from consumers.replication.group import Group
from schemas.records import Role
from tests.waiting import eventually

CLUSTER = "machine"
HOUR_NS = 3_600_000_000_000
HOSTS = ("a", "b", "c,d", "")
TIMES = st.integers(0, 60).map(lambda number: number * HOUR_NS)
VALUES = {
    "count": (pa.int64(), st.integers(-1_000, 1_000)),
    "level": (pa.float64(), st.sampled_from((0.5, -1.25, 1e300))),
    "note": (pa.string(), st.sampled_from(("", "x", "größer"))),
}
ROW = st.tuples(
    st.sampled_from(HOSTS),
    TIMES,
    st.fixed_dictionaries({name: st.none() | drawn for name, (_, drawn) in VALUES.items()}),
)
Model = dict[tuple[str, str, int], dict[str, Any]]


def start(log: MemoryLog, directory: Path) -> Node:
    """A node that is ready, and seals by itself every few rows."""
    node = Node(
        NodeSettings(CLUSTER, "n1", ("n1",), 1, "memory", directory, seal=SealPolicy(rows=25)),
        log,
    )
    node.start(lambda _line: None)
    eventually(lambda: node.ready()[0], f"a ready node: {node.ready()}")
    return node


def the_group(node: Node) -> Group:
    """The only group of the node."""
    return next(iter(node.groups.values()))


def await_end(log: MemoryLog, node: Node) -> None:
    """Wait until the node has applied the whole log and its work on files is done."""
    group, runner = the_group(node), node.runner
    topic = Topics(CLUSTER).forward("n1")
    # The last offsets may be a gap, which no record stands for.
    eventually(
        lambda: (
            runner.position(topic) >= log.describe(topic).end and group.applied.offset == runner.durable_offset(topic)
        ),
        f"the end of the log; {group.fault}",
        20.0,
    )
    eventually(lambda: group.files.version >= 0, "files at rest")


def rows_of(node: Node, table: str) -> Model:
    """What the node answers; fails on a row that is there twice."""
    found: Model = {}
    with contextlib.closing(node.engine.query(f"SELECT *, epoch_ns(time) AS at FROM db.{table}")) as result:
        for batch in result.batches():
            for row in batch.to_pylist():
                key = (table, row["host"] or "", row["at"])
                assert key not in found, f"{key} twice"
                found[key] = {name: row[name] for name in VALUES if row.get(name) is not None}
    return found


class NodeMachine(RuleBasedStateMachine):
    """One node over one log; the model is what a user expects of upserts and deletes."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="headrace-node-"))
        self.homes = 0
        self.log = MemoryLog(clock_ms=lambda: int(time.time() * 1_000))
        self.node = start(self.log, self.home())
        topics = Topics(CLUSTER)
        self.shared = Cluster(
            self.log,
            topics,
            read_slot_table(self.log, topics),
            TableLog(self.log, topics),
            StatusWatch(self.log, topics),
            self.log.appender(),
        )
        self.model: Model = {}
        self.tables: set[str] = set()

    def home(self) -> Path:
        """The directory of the node's present life."""
        return self.root / f"life-{self.homes}"

    def teardown(self) -> None:
        """A node that never crashed, fed the same log, has the same rows, chain and segments."""
        try:
            await_end(self.log, self.node)
            survivor = the_group(self.node)
            segments = {entry.name: entry.content_digest for entry in survivor.store.segments()}
            ended, chain = survivor.version, survivor.applied.chain
            self.node.stop()
            self.homes += 1
            self.node = start(self.log, self.home())
            await_end(self.log, self.node)
            rebuilt = the_group(self.node)
            assert chain == rebuilt.chain_at(ended)
            assert segments == {entry.name: entry.content_digest for entry in rebuilt.store.segments()}
            self.compare()
        finally:
            self.node.stop()
            shutil.rmtree(self.root)

    @rule(
        table=st.sampled_from(("one", "two")),
        rows=st.lists(ROW, min_size=1, max_size=15),
        names=st.sets(st.sampled_from(tuple(VALUES)), min_size=1),
    )
    def write(self, table: str, rows: list[tuple[str, int, dict[str, Any]]], names: set[str]) -> None:
        """Rows of some series, late and repeated ones among them, with some of the fields."""
        columns = {"host": [host for host, _, _ in rows], "time": pa.array([at for _, at, _ in rows], pa.int64())}
        for name in sorted(names):
            columns[name] = pa.array([fields[name] for _, _, fields in rows], VALUES[name][0])
        with Writer(self.shared, "db", table) as writer:
            writer.write(pa.table(columns), ["host"])
        for host, at, fields in rows:
            self.model[table, host, at] = {name: fields[name] for name in names if fields[name] is not None}
        self.tables.add(table)

    @precondition(lambda self: self.tables)
    @rule(
        hosts=st.sets(st.sampled_from(HOSTS)),
        start=st.none() | TIMES,
        length=st.none() | st.integers(1, 40),
        data=st.data(),
    )
    def delete(self, hosts: set[str], start: int | None, length: int | None, data: st.DataObject) -> None:
        """Some series, some stretch of time, or everything of a table."""
        table = data.draw(st.sampled_from(sorted(self.tables)))
        end = None if length is None else (start or 0) + length * HOUR_NS
        delete_rows(self.shared, "db", table, {"host": sorted(hosts)} if hosts else None, start, end)
        for key in list(self.model):
            hit = key[0] == table and (not hosts or key[1] in hosts)
            if hit and (start is None or key[2] >= start) and (end is None or key[2] < end):
                del self.model[key]

    @rule()
    def seal(self) -> None:
        """An operator's seal, which waits for a leader."""
        eventually(lambda: self.node.role(Topics(CLUSTER).forward("n1")) is Role.LEADER, "a node that leads")
        self.node.seal("n1")

    @rule()
    def strange_bytes(self) -> None:
        """Something that is no message, and a gap as a transaction marker leaves it."""
        topic = Topics(CLUSTER).forward("n1")
        self.shared.appender.append(topic, b"strange")
        self.log.gap(topic)

    @rule()
    def restart(self) -> None:
        """A clean stop, in the middle of whatever was written last."""
        self.node.stop()
        self.node = start(self.log, self.home())

    @rule()
    def crash(self) -> None:
        """The disk as it is while the node runs is all that the next life finds."""
        await_end(self.log, self.node)
        before = self.home()
        self.homes += 1
        shutil.copytree(before, self.home())
        self.node.stop()
        shutil.rmtree(before)
        self.node = start(self.log, self.home())

    @rule()
    def compare(self) -> None:
        """Every table has exactly the rows of the model."""
        await_end(self.log, self.node)
        for table in self.tables:
            expected = {key: fields for key, fields in self.model.items() if key[0] == table}
            assert expected == rows_of(self.node, table)

    @invariant()
    def runs(self) -> None:
        """Nothing of this ever stops the group."""
        assert "" == the_group(self.node).fault


TestNodeMachine = pytest.mark.slow(NodeMachine.TestCase)
TestNodeMachine.settings = settings(max_examples=10, stateful_step_count=16)
