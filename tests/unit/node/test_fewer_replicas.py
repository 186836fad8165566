"""Five nodes with three replicas: each node holds its own groups, and answers from all."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Any

import duckdb
import httpx
import pyarrow as pa
import pytest

from headrace.connectors.deadline import Deadline
from headrace.consumers.membership.bootstrap import read_slot_table
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.node.node import Node
from headrace.consumers.query.query_errors import (
    AnswerStale,
    NotCaughtUp,
    NotReady,
    SlotNotHeld,
    TooManyQueries,
    TooManyScans,
)
from headrace.consumers.query.scan_request import RemoteScanRequest
from headrace.consumers.replication.group_health import Event
from headrace.consumers.replication.heartbeat import StatusWatch
from headrace.consumers.scheduling.capacity import CapacityLimits
from headrace.producers.cluster import Cluster, FixedRouting
from headrace.producers.deletes import delete_rows
from headrace.producers.writer import TableWriter, WriterSettings
from tests.unit.nodes import Nodes, running_nodes, sealed_by_any
from tests.waiting import WAIT_S, eventually

pytestmark = pytest.mark.slow(2.5)

NAMES = ("n1", "n2", "n3", "n4", "n5")
HOUR_NS = 3_600_000_000_000
HOURS = 24 * 6
SITES = ("north", "south", "")
ROUNDS = 2
QUERIES = 6


@contextmanager
def connected(nodes: Nodes) -> Iterator[Cluster]:
    """The shared connection of writers."""
    log, topics = nodes.log, nodes.topics
    tables, watch, appender = SchemaLog(log, topics), StatusWatch(log, topics), log.appender()
    try:
        yield Cluster(log, topics, FixedRouting(read_slot_table(log, topics)), tables, watch, appender)
    finally:
        watch.close()
        tables.close()
        appender.close()


class Reference:
    """All rows as a reader must see them, kept by one DuckDB beside the cluster."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.rows: dict[tuple[str, str, int], tuple[float, int | None]] = {}

    def table(self, count: int) -> pa.Table:
        """Rows of random series and times, many of which replace others; each is noted."""
        keys = [
            (self.random.choice(SITES), f"p{self.random.randrange(9)}", self.random.randrange(HOURS) * HOUR_NS)
            for _ in range(count)
        ]
        values = [(self.random.randrange(1_000) / 8, self.random.choice((None, 7, 2**60))) for _ in keys]
        self.rows.update(zip(keys, values, strict=True))
        # Of rows with one key in a batch the later one wins, as in the log.
        return pa.table(
            {
                "site": [site or None for site, _, _ in keys],
                "pump": [pump for _, pump, _ in keys],
                "time": pa.array([time_ns for _, _, time_ns in keys], pa.int64()),
                "flow": [flow for flow, _ in values],
                "level": pa.array([level for _, level in values], pa.int64()),
            }
        )

    def delete(self, pump: str, start_ns: int, end_ns: int) -> None:
        """Forget rows."""
        self.rows = {
            key: value for key, value in self.rows.items() if key[1] != pump or not start_ns <= key[2] < end_ns
        }

    def answer(self, sql: str) -> Any:
        """What a query must answer."""
        with duckdb.connect() as database:
            database.execute("CREATE SCHEMA plant")
            database.execute(
                "CREATE TABLE plant.tanks (site VARCHAR, pump VARCHAR, time TIMESTAMP_NS, flow DOUBLE, level BIGINT)"
            )
            keys, values = list(self.rows), list(self.rows.values())
            rows = pa.table(
                {
                    "site": [site or None for site, _, _ in keys],
                    "pump": [pump for _, pump, _ in keys],
                    "time": pa.array([time_ns for _, _, time_ns in keys], pa.timestamp("ns")),
                    "flow": [flow for flow, _ in values],
                    "level": pa.array([level for _, level in values], pa.int64()),
                }
            )
            database.register("rows", rows)
            database.execute("INSERT INTO plant.tanks SELECT * FROM rows")
            return database.sql(sql).to_arrow_table()

    def query(self) -> str:
        """A query with random columns and conditions, and one order of its rows."""
        pick = self.random.choice
        columns = pick(("count(*) AS c", "count(*) AS c, sum(flow) AS f, sum(level) AS l", "site, pump, time, level"))
        start, end = sorted(self.random.randrange(HOURS) for _ in range(2))
        conditions = [
            pick(("true", f"time >= make_timestamp_ns({start * HOUR_NS})")),
            pick(("true", f"time < make_timestamp_ns({end * HOUR_NS})")),
            pick(("true", "pump IN ('p1', 'p7')", "site = 'north'", "site IS NULL", "level IS NOT NULL")),
        ]
        order = " ORDER BY site, pump, time" if columns.startswith("site") else ""
        return f"SELECT {columns} FROM plant.tanks WHERE {' AND '.join(conditions)}{order}"


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    """Five nodes of which three hold each row, with a table `wells` that has rows in every group."""
    with (
        pytest.MonkeyPatch.context() as patch,
        running_nodes(tmp_path_factory.mktemp("five"), patch, NAMES, 1_000_000, replication=3) as nodes,
    ):
        numbers = range(20 * HOURS)
        rows = {
            "pump": [f"p{number % 20}" for number in numbers],
            "time": [number // 20 * HOUR_NS for number in numbers],
            "flow": [1.0 for _ in numbers],
        }
        with connected(nodes) as shared, TableWriter(shared, "plant", "wells", WriterSettings(quorum=3)) as writer:
            writer.write(pa.table(rows), ["pump"])
        yield nodes


def ask(nodes: Nodes, name: str, sql: str, **more: Any) -> httpx.Response:
    """The answer of a node, in Arrow."""
    url = nodes.running[name].http_address
    return httpx.post(f"{url}/api/v1/query", json={"sql": sql, "format": "arrow", **more}, timeout=60)


def retry(nodes: Nodes, name: str, sql: str, **more: Any) -> httpx.Response:
    """The same as a client asks: again while an answer may be retried, as where five nodes have no processor for 3 s."""
    deadline = Deadline(WAIT_S)
    while True:
        answer = ask(nodes, name, sql, **more)
        if 503 != answer.status_code or not answer.json()["error"]["retriable"] or deadline.passed():
            return answer
        time.sleep(0.1)


def rows_of(answer: httpx.Response) -> pa.Table:
    """The rows of an answer."""
    assert 200 == answer.status_code, answer.text
    return pa.ipc.open_stream(answer.content).read_all()


@pytest.mark.slow(40)
def test_every_node_answers_as_one_store_would(nodes: Nodes) -> None:
    """Upserts and deletes, sealed in part: random queries give at every node what one DuckDB over all rows gives,
    with what was written a moment ago; and each node holds the groups of the table only.
    """
    reference, after = Reference(14), dict[str, int]()
    with connected(nodes) as shared:
        for number in range(ROUNDS):
            with TableWriter(shared, "plant", "tanks", WriterSettings(quorum=2)) as writer:
                writer.write(reference.table(300), ["site", "pump"])
            after |= writer.newest()
            start = number * HOUR_NS * 24
            reference.delete("p3", start, start + 24 * HOUR_NS)
            after |= delete_rows(shared, "plant", "tanks", {"pump": "p3"}, start, start + 24 * HOUR_NS)
            if number == ROUNDS // 2:
                for name in NAMES:
                    eventually(lambda name=name: sealed_by_any(list(nodes.running.values()), name), f"a seal of {name}")
            for _ in range(QUERIES // ROUNDS):
                sql = reference.query()
                wanted = reference.answer(sql)
                for name in NAMES:
                    found = rows_of(retry(nodes, name, sql, after=after))
                    assert wanted.to_pylist() == found.to_pylist(), (name, sql)
    table = next(iter(nodes.running.values())).slot_table
    for name, node in nodes.running.items():
        assert {group.name for group in node.groups.values()} == set(table.groups_of(name))
        assert 3 == len(node.groups)
        assert 0 == node.source.remote.statistics.bytes_held
        # A query ends a moment behind its last row.
        eventually(
            lambda node=node: (0, 0) == (node.scanner.statistics.running, node.engine.statistics.running),
            "nothing runs",
        )


def test_what_another_node_has_not_applied_is_waited_for(nodes: Nodes) -> None:
    """An offset of a group that is not here is waited for at its members, never left out."""
    node = nodes.running["n1"]
    (elsewhere, *_) = sorted(set(NAMES) - {group.name for group in node.groups.values()})
    with connected(nodes) as shared, TableWriter(shared, "plant", "waits") as writer:
        writer.write(pa.table({"time": [0], "flow": [1.0]}), [])
    topic = nodes.topics.forward(elsewhere)
    beyond = {topic: nodes.log.describe(topic).end + 5}
    refused = ask(nodes, "n1", "SELECT count(*) FROM plant.waits", after=beyond, timeout_ms=1_000)
    assert "NotCaughtUp" == refused.json()["error"]["kind"]


def test_only_offsets_that_were_not_reached_are_named(nodes: Nodes) -> None:
    """Of two groups here one is there already: to name it, too, would send whoever looks to the wrong one."""
    reached, behind, *_ = sorted(group.name for group in nodes.running["n1"].groups.values())
    ends = {name: nodes.log.describe(nodes.topics.forward(name)).end for name in (reached, behind)}
    after = {nodes.topics.forward(reached): ends[reached] - 1, nodes.topics.forward(behind): ends[behind] + 5}
    refused = ask(nodes, "n1", "SELECT count(*) FROM plant.pumps", after=after, timeout_ms=1_000).json()["error"]
    assert "NotCaughtUp" == refused["kind"]
    assert f"offset {ends[behind] + 5} of group {behind} in the time" in refused["message"]
    assert f"group {reached}" not in refused["message"]


def test_a_group_out_of_sync_is_read_from_another_member(nodes: Nodes) -> None:
    """The node is not ready then, and answers all the same; a group that it does not hold is refused by name."""
    node = nodes.running["n2"]
    node.divergence_monitor.stop()
    with connected(nodes) as shared, TableWriter(shared, "plant", "pumps", WriterSettings(quorum=3)) as writer:
        times = [number * HOUR_NS for number in range(HOURS)]
        writer.write(pa.table({"time": times, "flow": [1.0] * HOURS}), [])
    for group in node.groups.values():
        group.health.report(Event.DISPUTE, "members differ")
    try:
        eventually(lambda: not node.ready()[0], "a node that is not ready")
        found = rows_of(ask(nodes, "n2", "SELECT count(*) AS c FROM plant.pumps"))
        assert [{"c": HOURS}] == found.to_pylist()
    finally:
        for group in node.groups.values():
            group.health.report(Event.AGREE)
    elsewhere = next(name for name in NAMES if name not in {group.name for group in node.groups.values()})
    query: dict[str, str | int] = {"group": elsewhere, "version": 1, "sealed_version": 1}
    refused = httpx.get(f"{node.http_address}/api/v1/evidence", params=query)
    assert (409, "SlotNotHeld") == (refused.status_code, refused.json()["error"]["kind"])


def test_a_node_that_is_not_in_the_table_joins_nothing(nodes: Nodes) -> None:
    """It starts, is not ready, and reports that it is joining; it answers neither queries nor scans."""
    nodes.start("n6")
    try:
        node = nodes.running["n6"]
        assert {} == node.groups
        assert node.live()
        status = httpx.get(f"{node.http_address}/api/v1/status").json()
        assert (False, True) == (status["ready"], status["joining"])
        assert status["reasons"][0].startswith("joining: node n6 is not among the nodes")
        assert set(NAMES) == {group["group"] for group in status["remote_groups"]}
        refused = ask(nodes, "n6", "SELECT 1")
        assert "joining" in refused.json()["error"]["message"]
        assert 503 == httpx.get(f"{node.http_address}/health/ready").status_code
        assert 'headrace_ready{cluster="c"} 0.0' in httpx.get(f"{node.http_address}/metrics").text
    finally:
        nodes.stop("n6")


def scan_of(node: Node, table: str, **changed: Any) -> RemoteScanRequest:
    """A scan of a table in the first group of a node."""
    group = next(iter(node.groups.values())).name
    version = node.source.schema("plant", table).version
    request = RemoteScanRequest(
        *(group, "plant", table, version, ("time",), None, None), timeout_ms=20_000, wait_ms=10_000, table_version=0
    )
    return replace(request, **changed)


def test_a_member_that_stops_serving_ends_its_scan(nodes: Nodes) -> None:
    """Rows that were sent are not enough: the group must serve behind the last one."""
    node = nodes.running["n3"]
    node.divergence_monitor.stop()
    group = next(iter(node.groups.values()))
    scan = node.scanner.open(scan_of(node, "wells"))
    try:
        assert scan.next() is not None
        group.health.report(Event.DISPUTE, "members differ")
        with pytest.raises(AnswerStale, match="members differ"):
            list(iter(scan.next, None))
        with pytest.raises(NotReady, match="members differ"):
            node.scanner.open(scan_of(node, "wells"))
    finally:
        group.health.report(Event.AGREE)
        scan.close()
    assert 0 == node.scanner.statistics.running


def test_scans_for_other_nodes_have_their_own_permits(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nodes whose queries take all places still answer each other's scans; one scan too many is refused at once."""
    for node in nodes.running.values():
        monkeypatch.setattr(node.engine.scheduler._capacity, "limits", CapacityLimits(queries_max=1))
    with ExitStack() as opened:
        for node in nodes.running.values():
            # Its first rows are those of every node; then it waits for its reader.
            sql = "SELECT * FROM plant.wells, range(1000000)"
            result = opened.enter_context(node.engine.query(sql))
            assert next(result.batches()).num_rows > 0
            with pytest.raises(TooManyQueries):
                node.engine.query("SELECT 1")
    node = nodes.running["n4"]
    with ExitStack() as opened:
        for _ in range(node.scanner.scans_max):
            opened.callback(node.scanner.open(scan_of(node, "wells")).close)
        with pytest.raises(TooManyScans):
            node.scanner.open(scan_of(node, "wells"))
    assert 0 == node.scanner.statistics.running


def test_a_scan_that_cannot_be_given_is_refused(nodes: Nodes) -> None:
    """A group of others, a version of the schema that nobody has, an offset that is not reached: all by their names."""
    node = nodes.running["n5"]
    elsewhere = next(name for name in NAMES if name not in {group.name for group in node.groups.values()})
    with pytest.raises(SlotNotHeld, match=f"node n5 does not hold group {elsewhere}"):
        node.scanner.open(scan_of(node, "wells", group=elsewhere))
    with pytest.raises(NotCaughtUp, match="version 99 of the schema"):
        node.scanner.open(scan_of(node, "wells", version=99))
    scan = node.scanner.open(scan_of(node, "wells", after=10**6, wait_ms=50))
    with pytest.raises(NotCaughtUp, match="did not reach offset 1000000"):
        scan.next()
    scan.close()
    assert 0 == node.scanner.statistics.running
