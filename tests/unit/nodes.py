"""Nodes of one cluster in one process, on a log in memory."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import read_slot_table
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.membership.settings import ClusterSettings
from headrace.consumers.node.node import Node
from headrace.consumers.node.settings import NodeSettings, ServerSettings, StoreSection
from headrace.consumers.recovery.file_copy import digest_of
from headrace.consumers.replication import leader_tasks
from headrace.consumers.replication.heartbeat import StatusWatch
from headrace.consumers.store import TableUnknown
from headrace.producers.cluster import Cluster, FixedRouting
from headrace.producers.writer import TableWriter
from headrace.schemas.errors import HeadraceError
from tests.waiting import eventually

ROWS = 500


class Nodes:
    """Nodes of one cluster in one process."""

    def __init__(self, directory: Path, names: tuple[str, ...], keep_records: int = 1, replication: int = 0) -> None:
        self.keep_records = keep_records
        self.replication = replication
        self.directory = directory
        self.names = names
        self.log = MemoryLog(clock_ms=lambda: time.time_ns() // 1_000_000)
        self.topics = Topics("c")
        self.running: dict[str, Node] = {}
        self.written = 0

    def settings(self, name: str) -> ServerSettings:
        """The settings of a node."""
        return ServerSettings(
            cluster=ClusterSettings(name="c", bootstrap="memory", slots=60),
            # Another name than the address they listen on: copies between members use what nodes advertise.
            node=NodeSettings(
                id=name,
                nodes=self.names,
                replication=self.replication,
                data_dir=str(self.directory / name),
                advertise="localhost:0",
            ),
            store=StoreSection(log_keep_records=self.keep_records),
        )

    def start(self, *names: str) -> None:
        """Start nodes without waiting for them."""
        for name in names:
            node = self.running[name] = Node(self.settings(name), self.log)
            node.start(lambda _line: None)
            node.serve()

    def stop(self, *names: str) -> None:
        """Stop nodes."""
        for name in names:
            self.running.pop(name).stop()

    def wipe(self, name: str) -> None:
        """Stop a node and delete its data directory."""
        self.stop(name)
        shutil.rmtree(self.directory / name)

    def seal(self) -> None:
        """Seal every group."""
        for name in self.names:
            eventually(lambda name=name: sealed_by_any(list(self.running.values()), name), f"a seal of group {name}")

    def fill(self, topic: str, records: int) -> None:
        """Append undecodable records: they raise the version and change nothing else."""
        appender = self.log.appender()
        for number in range(records):
            appender.append(topic, f"no message {number}".encode())
        appender.close()

    def ready(self) -> None:
        """Wait until all running nodes are ready."""
        for name, node in self.running.items():
            eventually(lambda node=node: node.ready()[0], f"node {name} ready; reported: {node.ready()}")

    def write(self) -> None:
        """Write some more rows to all groups."""
        tables = SchemaLog(self.log, self.topics)
        shared = Cluster(
            self.log,
            self.topics,
            FixedRouting(read_slot_table(self.log, self.topics)),
            tables,
            StatusWatch(self.log, self.topics),
            self.log.appender(),
        )
        numbers = range(self.written, self.written + ROWS)
        rows = pa.table(
            {
                "pump": [f"p{number % 50}" for number in numbers],
                "time": pa.array([number * 10**9 for number in numbers], pa.timestamp("ns")),
                "flow": [float(number) for number in numbers],
            }
        )
        with TableWriter(shared, "plant", "pumps") as writer:
            writer.write(rows, ["pump"])
        self.written += ROWS
        tables.close()

    def seal_and_trim(self) -> None:
        """Seal all written rows, and wait until every log is trimmed to its newest records."""
        for name in self.names:
            topic = self.topics.forward(name)
            before = self.log.describe(topic).end

            eventually(lambda name=name: sealed_by_any(list(self.running.values()), name), f"a seal of group {name}")
            eventually(lambda topic=topic, before=before: self.log.describe(topic).begin >= before, "a trimmed log")

    def holds_everything(self, name: str) -> None:
        """Wait until a node has all rows, and compare its files with the digests of its catalogue."""
        node = self.running[name]
        eventually(lambda: node.ready()[0], f"node {name} ready; reported: {node.ready()}")
        eventually(lambda: self.written == rows(node), f"{self.written} rows at node {name}")
        for group in node.groups.values():
            for entry in group.store.segments():
                assert entry.file_digest == digest_of(group.store.segments_directory / entry.name)


def rows(node: Node) -> int:
    """How many rows a node holds."""
    counted = 0
    for group in node.groups.values():
        with suppress(TableUnknown), group.store.scan("plant", "pumps") as scan:
            counted += scan.table.num_rows + sum(pq.read_metadata(path).num_rows for path in scan.files)
    return counted


@contextmanager
def running_nodes(
    directory: Path,
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...],
    keep_records: int = 1,
    replication: int = 0,
) -> Iterator[Nodes]:
    """Nodes that are ready, with a short interval of leader tasks."""
    monkeypatch.setattr(leader_tasks, "UPKEEP_INTERVAL_S", 0.1)
    nodes = Nodes(directory, names, keep_records, replication)
    try:
        nodes.start(*names)
        nodes.ready()
        yield nodes
    finally:
        nodes.stop(*list(nodes.running))


def corrupt(path: Path) -> None:
    """Change a byte in the middle; the size stays."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def sealed_by_any(members: Sequence[Node], group: str) -> bool:
    """Whether the leader is among the members, and has sealed."""
    for node in members:
        with suppress(HeadraceError):
            node.seal(group)
            return True
    return False
