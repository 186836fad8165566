"""What the build before has written is read by this one: data directories of nodes, and the topics of their cluster.

tests/data/README.md lists the data and the commands that created it.
"""

from __future__ import annotations

import contextlib
import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from headrace.connectors.log import memory
from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import Record
from headrace.consumers.node.node import Node
from tests.unit.nodes import Nodes
from tests.waiting import eventually

DATA = Path(__file__).parents[2] / "data"
NAMES = ("n1", "n2")
VERSIONS = sorted(expected.parent.name for expected in DATA.glob("*/expected.json"))


@pytest.fixture(params=VERSIONS)
def data(request: pytest.FixtureRequest) -> Path:
    """The folder of a version."""
    return DATA / str(request.param)


@pytest.fixture
def expected(data: Path) -> dict[str, Any]:
    """The answers of the earlier build, just before it was stopped."""
    found: dict[str, Any] = json.loads((data / "expected.json").read_text("utf-8"))
    return found


@pytest.fixture
def nodes(data: Path, expected: dict[str, Any], tmp_path: Path) -> Iterator[Nodes]:
    """Two nodes that are not started, on the topics as they were."""
    made = Nodes(tmp_path, NAMES, keep_records=0)
    restore(made.log, data, expected["topics"])
    try:
        yield made
    finally:
        made.stop(*list(made.running))


def restore(log: MemoryLog, data: Path, topics: dict[str, Any]) -> None:
    """Every record at its offset, with its time, in topics with the ids that the data directories name."""
    for name, state in topics.items():
        log._topics[name] = memory._Topic(state["id"], [], state["begin"], state["end"])
    for row in pq.read_table(data / "logs.parquet").to_pylist():
        headers = tuple((header["name"], header["value"]) for header in row["headers"])
        record = Record(row["topic"], row["offset"], row["timestamp_ms"], row["key"], row["value"], headers)
        log._topics[row["topic"]].records.append(record)


def unpack(data: Path, nodes: Nodes) -> None:
    """The data directories of all nodes, as they were left."""
    with tarfile.open(data / "nodes.tar.xz") as archive:
        archive.extractall(nodes.directory, filter="data")


def assert_as_before(node: Node, expected: dict[str, Any]) -> None:
    """Every group has the same rows, and the same chain at the version of the earlier build."""
    for topic, before in expected["groups"].items():
        group = node.groups[topic]
        eventually(lambda group=group, before=before: group.version >= before["version"], f"the end of {topic}")
        assert before["chain"] == (group.chain_at(before["version"]) or b"").hex(), topic
    for table, sql in expected["sql"].items():
        eventually(lambda table=table, sql=sql: expected["rows"][table] == answer(node, sql), f"the rows of {table}")


def answer(node: Node, sql: str) -> list[list[Any]]:
    """The rows of a query."""
    with contextlib.closing(node.engine.query(sql)) as result:
        return [list(row.values()) for batch in result.batches() for row in batch.to_pylist()]


def test_a_data_directory_of_the_earlier_build_is_continued(data: Path, expected: dict[str, Any], nodes: Nodes) -> None:
    """The log is trimmed: segments, merged ones among them, the index and the journal give all rows and deletes.

    Then the nodes lead and seal the unsealed rows.
    """
    unpack(data, nodes)
    segments = {topic: before["segments"] for topic, before in expected["groups"].items()}
    assert all(segments.values())
    assert all(before["unsealed"] for before in expected["groups"].values())
    for topic in segments:
        nodes.log.trim(topic, expected["topics"][topic]["end"])
    nodes.start(*NAMES)
    for node in nodes.running.values():
        eventually(lambda node=node: node.ready()[0], f"a ready node: {node.ready()}")
        assert {} == node.identity.wrong
        for topic, group in node.groups.items():
            before = [entry for entry in group.store.segments() if entry.name in segments[topic]]
            assert segments[topic] == {entry.name: digest(entry.content_digest) for entry in before}
            # Whoever leads may have sealed the rest by now, and nothing else: what a trimmed log lacks must be in files.
            sealed = max(entry.last_version for entry in before)
            assert all(entry.first_version > sealed for entry in group.store.segments() if entry not in before)
        assert_as_before(node, expected)
    nodes.seal()
    for node in nodes.running.values():
        for table, sql in expected["sql"].items():
            assert expected["rows"][table] == answer(node, sql), table
    eventually(lambda: 1 == len({chains(node) for node in nodes.running.values()}), "equal members")


def test_the_topics_alone_give_the_same(expected: dict[str, Any], nodes: Nodes) -> None:
    """Nodes without data read membership, tables and records, and reach the same versions, chains and rows."""
    nodes.start(*NAMES)
    nodes.ready()
    for node in nodes.running.values():
        assert_as_before(node, expected)


def chains(node: Node) -> tuple[bytes, ...]:
    """The current chain of every group."""
    return tuple(group.applied.chain for _, group in sorted(node.groups.items()))


def digest(value: Any) -> str:
    """A digest in the form of the stored file."""
    return value.hex() if isinstance(value, bytes) else str(value)
