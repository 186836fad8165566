"""A fake node with the HTTP server, an engine over one small table, and a state that a test sets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import join_cluster
from headrace.consumers.node.node_writer import NodeWriter
from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.group_scanner import GroupScanner
from headrace.consumers.query.local_source import LocalSource
from headrace.consumers.query.settings import QuerySettings
from headrace.consumers.serve.app import create_app
from headrace.consumers.serve.node_api import NodeFigures
from headrace.consumers.serve.server import Server
from headrace.consumers.sync.settings import SyncSettings
from headrace.producers.settings import WriteSettings
from headrace.schemas.records import Create
from headrace.schemas.tables import Catalogue
from tests.unit.query.memory_source import READINGS, MemorySource, readings
from tests.unit.serve.part_of_node import PartOfNode

TOPICS = Topics("c")
START_NS = 1_700_006_400_000_000_000


def new_log() -> MemoryLog:
    """The log of a cluster of one node that no node follows."""
    log = MemoryLog()
    join_cluster(log, TOPICS, Create(("n1",), 1, 100))
    return log


class FakeNode(PartOfNode):
    """A NodeApi whose values a test sets."""

    engine: QueryEngine
    writes: NodeWriter
    scanner: GroupScanner

    def __init__(self, directory: Path) -> None:
        self.source = MemorySource(directory)
        self.source.add(READINGS, segments=[readings(START_NS, 10)], live=[readings(START_NS + 10**15, 5)])
        self.engine = QueryEngine(
            self.source, [directory], QuerySettings(memory_limit_mb=200, timeout_ms=20_000, queries_max=2)
        )
        nothing: Any = None
        self.scanner = GroupScanner("n1", LocalSource({}, Catalogue(), nothing), nothing, self.engine)
        self.writes = NodeWriter(new_log(), TOPICS, WriteSettings(http_body_mb_max=1))
        uploads = SimpleNamespace(open_uploads=0, staged_bytes=0, taken=0, refused=0, settings=SyncSettings())
        self.migration = SimpleNamespace(synced=SimpleNamespace(uploads=uploads))
        self.started = True
        self.is_live = True

    @property
    def reasons(self) -> list[str]:
        """Why it is not ready."""
        return self.source.reasons

    @reasons.setter
    def reasons(self, reasons: list[str]) -> None:
        self.source.reasons = reasons

    def startup_done(self) -> bool:
        return self.started

    def live(self) -> bool:
        return self.is_live

    def ready(self) -> tuple[bool, list[str]]:
        return not self.reasons, self.reasons

    def status(self) -> Any:
        return {
            "cluster": "c",
            "node": "n1",
            "ready": not self.reasons,
            "reasons": self.reasons,
            "data_age_s": 0.5,
            "groups": [],
            "members": [],
        }

    def figures(self) -> NodeFigures:
        return NodeFigures(987_654, {}, 6, 1, {"syncs": 5.0}, {"queue_bytes": 1_024.0})


@pytest.fixture
def node(tmp_path: Path) -> Iterator[FakeNode]:
    """A node that is ready."""
    directory = tmp_path / "segments"
    directory.mkdir()
    node = FakeNode(directory)
    try:
        yield node
    finally:
        node.engine.close()
        node.writes.close()


@pytest.fixture
def client(node: FakeNode) -> Iterator[httpx.Client]:
    """A client of the node's HTTP surface, which listens on a free port of this machine."""
    server = Server(create_app(node))
    with httpx.Client(base_url=server.start(), timeout=20) as client:
        yield client
    server.stop()
