"""A group ends on a real broker: what its closed or missing topic refuses is in the logs of the others."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

import headrace
from headrace.connectors.kafka.broker import BrokerInfo
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import join_cluster, read_slot_table
from headrace.schemas.framing import format_headers
from headrace.schemas.membership_records import Change, ChangeKind, Formal, MembershipChange, MetadataClaim, PreDone
from headrace.schemas.messages import Leadership, Write, decode_message
from headrace.schemas.payload import decode_rows
from headrace.schemas.records import Create, encode_membership, format_of_membership

pytestmark = pytest.mark.broker
NODES = ("n1", "n2", "n3", "n4")


def remove(log: KafkaLog, topics: Topics, node: str, number: int, epoch: int) -> None:
    """A node leaves, as the nodes would record it; the topic of its group is closed."""
    table = read_slot_table(log, topics)
    leader = Leadership(epoch, next(each for each in table.nodes if each != node), "a")
    change = Change(leader, f"r{number}", ChangeKind.REMOVE, node, "", table.remove_node(node).to_bytes())
    done = [PreDone(number, header, table.group(header)[0], 1, 1) for header in table.headers]
    records: list[MembershipChange] = [MetadataClaim(leader), change, *done, Formal(leader, number)]
    appender = log.appender()
    for record in records:
        headers = format_headers(format_of_membership(record))
        appender.append(topics.membership, encode_membership("w", record), headers=headers)
    assert appender.flush(30.0) == 0
    appender.close()
    log.configure(topics.forward(node, table.birth(node)), {"max.message.bytes": "0"})


def rows_of(number: int) -> list[dict[str, object]]:
    """Rows of all groups, with one value."""
    return [{"time": time * 1_000_000, "pump": f"p{time}", "flow": number} for time in range(200)]


def test_a_writer_sees_no_error_when_a_group_ends(broker: BrokerInfo) -> None:
    """Rows that are under way when the topic is closed, and those behind it. No row is lost, none is doubled."""
    name = f"t{uuid.uuid4().hex[:12]}"
    log, topics = KafkaLog(broker.bootstrap), Topics(name)
    join_cluster(log, topics, Create(NODES, 2, 120))
    with (
        headrace.connect(broker.bootstrap, name, **dict[str, Any]({"linger.ms": 3_000})) as client,
        client.writer("plant", "pumps", tags=["pump"]) as writer,
    ):
        writer.write(rows_of(1))
        writer.flush()
        # Held back by `linger.ms`, so that they reach a topic that is closed.
        writer.write(rows_of(2))
        remove(log, topics, "n2", 1, 1)
        offsets = writer.flush()
        writer.write(rows_of(3))
        writer.flush()
    assert set(map(topics.forward, NODES)) >= set(offsets)
    found: dict[int, list[str]] = {}
    for node in NODES:
        topic = topics.forward(node)
        end, reader = log.describe(topic).end, log.reader({topic: 0})
        while reader.position(topic) < end:
            for record in reader.poll(100, 1.0):
                body = decode_message(record.value).body
                assert isinstance(body, Write)
                for row in decode_rows(body.rows).to_pylist():
                    found.setdefault(row["flow"], []).append(row["__series"])
                    assert node != "n2" or row["flow"] < 3
        reader.close()
    log.close()
    expected = sorted(f"pumps,pump=p{number}" for number in range(200))
    assert {1: expected, 2: expected, 3: expected} == {value: sorted(series) for value, series in found.items()}
