"""A log that lost its end under the same topic id: no write is acknowledged by what members had of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.consumers.membership.bootstrap import read_slot_table
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.replication.heartbeat import StatusWatch
from headrace.producers.acks import QuorumTimeout
from headrace.producers.cluster import Cluster, FixedRouting
from headrace.producers.writer import TableWriter, WriterSettings
from headrace.schemas.tables import TimeResolution
from tests.unit.nodes import Nodes, running_nodes
from tests.waiting import eventually

MEMBERS = 3


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """Three nodes that are ready and trim nothing."""
    with running_nodes(tmp_path, monkeypatch, ("n1", "n2", "n3"), keep_records=0) as nodes:
        yield nodes


def row(number: int) -> pa.Table:
    """One row; all of them are of one group."""
    return pa.table({"pump": ["p1"], "time": pa.array([10**18 + number], pa.int64()), "flow": [float(number)]})


def test_a_truncated_log_gives_no_quorum(three: Nodes) -> None:
    """Twelve writes that all members hold; eight are cut off; then none is confirmed, by an old writer or a new one.

    The members do not know of the cut yet and report offsets beyond it as durable, of the same topic.
    """

    def writer(timeout_ms: int) -> TableWriter:
        settings = WriterSettings(quorum=MEMBERS, quorum_timeout_ms=timeout_ms, resolution=TimeResolution.NS)
        return TableWriter(cluster, "plant", "pumps", settings)

    tables, watch = SchemaLog(three.log, three.topics), StatusWatch(three.log, three.topics)
    routing = FixedRouting(read_slot_table(three.log, three.topics))
    cluster = Cluster(three.log, three.topics, routing, tables, watch, three.log.appender())
    try:
        patient, hasty = writer(30_000), writer(500)
        for number in range(12):
            patient.write(row(number), ["pump"])
        [topic] = patient.newest()
        three.log.truncate(topic, three.log.describe(topic).end - 8)
        for number in range(3):
            with pytest.raises(QuorumTimeout):
                hasty.write(row(1_000 + number), ["pump"])
        with pytest.raises(QuorumTimeout):
            writer(500).write(row(2_000), ["pump"])
    finally:
        watch.close()
        tables.close()


def test_a_replaced_disk_serves_nothing_of_a_truncated_log(three: Nodes) -> None:
    """It reads what is left, and would answer without the rows that others hold: for the 10 s until it counts as cut."""
    topic = three.topics.forward("n1")
    three.fill(topic, 12)
    end = three.log.describe(topic).end
    for node in three.running.values():
        eventually(lambda node=node: node.groups[topic].applied.offset >= end - 1, "all records at all members")
    three.wipe("n3")
    three.log.truncate(topic, end - 3)
    three.start("n3")
    node = three.running["n3"]
    eventually(lambda: node.groups[topic].applied.offset >= end - 4 and not node.readiness.fenced, "what is left")
    assert node.readiness.reason(topic)
