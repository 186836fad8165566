"""A node against a model: random writes, upserts, deletes, seals, stops, crashes and rebuilds over a log in
memory.
"""

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

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import read_slot_table
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.membership.settings import ClusterSettings
from headrace.consumers.node.node import Node
from headrace.consumers.node.settings import NodeSettings, ServerSettings, StoreSection
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import State
from headrace.consumers.replication.heartbeat import StatusWatch
from headrace.producers.cluster import Cluster, FixedRouting
from headrace.producers.deletes import delete_rows
from headrace.producers.writer import TableWriter, WriterSettings
from headrace.schemas.records import Role
from headrace.schemas.tables import TimeResolution
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
    st.fixed_dictionaries({name: st.none() | strategy for name, (_, strategy) in VALUES.items()}),
)
Model = dict[tuple[str, str, int], dict[str, Any]]


def start(log: MemoryLog, directory: Path) -> Node:
    """A ready node that seals every 25 rows."""
    node = Node(
        ServerSettings(
            cluster=ClusterSettings(name=CLUSTER),
            node=NodeSettings(id="n1", data_dir=str(directory)),
            store=StoreSection(seal_rows=25),
        ),
        log,
    )
    node.start(lambda _line: None)
    eventually(lambda: node.ready()[0], f"a ready node: {node.ready()}")
    return node


def the_group(node: Node) -> Group:
    """The only group of the node."""
    return next(iter(node.groups.values()))


def await_end(log: MemoryLog, node: Node) -> None:
    """Wait until the node has applied the whole log and its store jobs are done."""
    group, runner = the_group(node), node.log_consumer
    topic = Topics(CLUSTER).forward("n1")
    # The last offsets may be a gap, which has no record.
    eventually(
        lambda: (
            runner.position(topic) >= log.describe(topic).end and group.applied.offset == runner.durable_offset(topic)
        ),
        f"the end of the log; {group.health.reason}",
        20.0,
    )
    eventually(lambda: group.store_jobs.version >= 0, "the end of all store jobs")


def rows_of(node: Node, table: str) -> Model:
    """The rows of a table at the node; fails on a duplicate."""
    found: Model = {}
    with contextlib.closing(node.engine.query(f"SELECT *, epoch_ns(time) AS at FROM db.{table}")) as result:
        for batch in result.batches():
            for row in batch.to_pylist():
                key = (table, row["host"] or "", row["at"])
                assert key not in found, f"duplicate {key}"
                found[key] = {name: row[name] for name in VALUES if row.get(name) is not None}
    return found


def copy_running(directory: Path, copy: Path) -> None:
    """Copy the directory of a running node as it is at one moment: again, if files were deleted meanwhile."""
    # Deleted are, a moment after the end of the store jobs, files that have become parts of larger ones.
    eventually(lambda: copied_whole(directory, copy), "a copy of files none of which was deleted meanwhile")


def copied_whole(directory: Path, copy: Path) -> bool:
    """Whether no file was deleted while the directory was copied."""
    shutil.rmtree(copy, ignore_errors=True)
    try:
        shutil.copytree(directory, copy)
    except shutil.Error as error:
        if not all("No such file" in reason for _, _, reason in error.args[0]):
            raise
        return False
    return True


class NodeMachine(RuleBasedStateMachine):
    """One node over one log; the model has the semantics of upserts and deletes."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="headrace-node-"))
        self.directories = 0
        self.log = MemoryLog(clock_ms=lambda: int(time.time() * 1_000))
        self.node = start(self.log, self.directory())
        topics = Topics(CLUSTER)
        self.shared = Cluster(
            self.log,
            topics,
            FixedRouting(read_slot_table(self.log, topics)),
            SchemaLog(self.log, topics),
            StatusWatch(self.log, topics),
            self.log.appender(),
        )
        self.model: Model = {}
        self.tables: set[str] = set()

    def directory(self) -> Path:
        """The current data directory of the node."""
        return self.root / f"data-{self.directories}"

    def settled(self) -> tuple[int, bytes, dict[str, str]]:
        """Version, chain and segments of the node at the end of the log; the node is stopped."""
        topic = Topics(CLUSTER).forward("n1")
        while True:
            await_end(self.log, self.node)
            original, end = the_group(self.node), self.log.describe(topic).end
            segments = {entry.name: entry.content_digest for entry in original.store.segments()}
            found = original.version, original.applied.chain, segments
            self.node.stop()
            # Its leader may have appended a merge meanwhile, which the next node would carry out.
            if self.log.describe(topic).end == end:
                return found
            self.node = start(self.log, self.directory())

    def teardown(self) -> None:
        """A new node that reads the same log has the same rows, chain and segments."""
        try:
            ended, chain, segments = self.settled()
            self.directories += 1
            self.node = start(self.log, self.directory())
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
        """Write rows of some series, with late and repeated times and with some of the fields."""
        columns = {"host": [host for host, _, _ in rows], "time": pa.array([at for _, at, _ in rows], pa.int64())}
        for name in sorted(names):
            columns[name] = pa.array([fields[name] for _, _, fields in rows], VALUES[name][0])
        with TableWriter(self.shared, "db", table, WriterSettings(resolution=TimeResolution.NS)) as writer:
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
        """Delete some series, a time range, or everything of a table."""
        table = data.draw(st.sampled_from(sorted(self.tables)))
        end = None if length is None else (start or 0) + length * HOUR_NS
        delete_rows(self.shared, "db", table, {"host": sorted(hosts)} if hosts else None, start, end)
        for key in list(self.model):
            deleted = key[0] == table and (not hosts or key[1] in hosts)
            if deleted and (start is None or key[2] >= start) and (end is None or key[2] < end):
                del self.model[key]

    @rule()
    def seal(self) -> None:
        """Seal as an operator does, once there is a leader."""
        eventually(lambda: self.node.role(Topics(CLUSTER).forward("n1")) is Role.LEADER, "a node that leads")
        self.node.seal("n1")

    @rule()
    def undecodable_bytes(self) -> None:
        """Append bytes that are no message, and a gap as a transaction marker leaves it."""
        topic = Topics(CLUSTER).forward("n1")
        self.shared.appender.append(topic, b"foreign")
        self.log.gap(topic)

    @rule()
    def restart(self) -> None:
        """Stop cleanly and start again, whatever was written last."""
        self.node.stop()
        self.node = start(self.log, self.directory())

    @rule()
    def crash(self) -> None:
        """Crash: the next start sees a copy of the directory that was taken while the node ran."""
        await_end(self.log, self.node)
        before = self.directory()
        self.directories += 1
        copy_running(before, self.directory())
        self.node.stop()
        shutil.rmtree(before)
        self.node = start(self.log, self.directory())

    @rule()
    def compare(self) -> None:
        """Every table has exactly the rows of the model."""
        await_end(self.log, self.node)
        for table in self.tables:
            expected = {key: fields for key, fields in self.model.items() if key[0] == table}
            assert expected == rows_of(self.node, table)

    @invariant()
    def runs(self) -> None:
        """No operation stops the group."""
        assert not the_group(self.node).health.holds(State.STOPPED)


TestNodeMachine = pytest.mark.slow(27)(NodeMachine.TestCase)
TestNodeMachine.settings = settings(max_examples=10, stateful_step_count=16)
