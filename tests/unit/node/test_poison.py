"""Whole nodes and the records that once ended a thread, or a process, at every member and at each start."""

from __future__ import annotations

from pathlib import Path

import pytest

from headrace.connectors.log.memory import MemoryLog
from headrace.consumers.membership.refusal import refuse_record
from headrace.schemas.framing import format_headers
from tests.poison import encoded, poison_payloads, row_batch, write_message
from tests.unit.nodes import Nodes, rows, running_nodes
from tests.waiting import eventually

HEADERS = {
    "long name": (("x" * 70_000, b""),),
    "many": (("trace", b"1"),) * 70_000,
    "large value": (("baggage", bytes(1 << 20)),),
}


def test_a_node_reads_past_poison_and_starts_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No header and no payload ends the consuming thread, stops a group or keeps the node from starting."""
    with running_nodes(tmp_path, monkeypatch, ("n1",)) as nodes:
        nodes.write()
        append_poison(nodes.log, nodes.topics.forward("n1"))
        nodes.write()
        for _ in range(2):
            node = nodes.running["n1"]
            nodes.ready()
            eventually(lambda node=node: rows(node) == nodes.written, f"all rows; {node.ready()}")
            assert node.log_consumer.alive
            (group,) = node.status()["groups"]
            ignored = group["ignored"]
            assert (len(HEADERS), len(poison_payloads())) == (ignored["undecodable"], ignored["invalid"])
            nodes.stop("n1")
            nodes.start("n1")


def append_poison(log: MemoryLog, topic: str) -> None:
    """Append each poison once."""
    for headers in HEADERS.values():
        log.store(topic, b"hello", None, (*format_headers(), *headers))
    for number, data in enumerate(poison_payloads().values()):
        log.store(topic, write_message(data, sequence=number), None, format_headers())


@pytest.mark.parametrize("restarts", [0, 1])
def test_a_record_of_an_unknown_version_shows_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: int
) -> None:
    """The node reports group, offset and command, also after a restart, and continues behind the refusal."""
    with running_nodes(tmp_path, monkeypatch, ("n1",)) as nodes:
        nodes.write()
        topic = nodes.topics.forward("n1")
        value = write_message(encoded(row_batch()), schema_version=99)
        offset = nodes.log.store(topic, value, None, format_headers())
        nodes.write()
        await_command(nodes, offset)
        for _ in range(restarts):
            nodes.stop("n1")
            nodes.start("n1")
            await_command(nodes, offset)
        refuse_record(nodes.log, nodes.topics, "n1", offset)
        nodes.write()
        nodes.ready()
        eventually(lambda: rows(nodes.running["n1"]) == nodes.written, "all rows behind the record")


def await_command(nodes: Nodes, offset: int) -> None:
    """Wait until the node names the command that ends its waiting."""
    command = f"headrace refuse-record --group n1 --offset {offset}"
    node = nodes.running["n1"]
    eventually(lambda: any(command in reason for reason in node.ready()[1]), f"the command in {node.ready()}")
    assert rows(node) < nodes.written
