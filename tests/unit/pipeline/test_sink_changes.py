"""Tasks of a sink while the members of the cluster change."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from headrace.consumers.membership.routing import MembershipRouting
from headrace.pipeline.sink_task import SinkTask
from headrace.pipeline.source_options import Target, WriteOptions
from headrace.pipeline.task_positions import TaskPositions
from headrace.producers.cluster import Cluster
from headrace.schemas.membership_records import ChangeKind
from headrace.schemas.messages import Write
from tests.unit.membership.growing import TOPICS
from tests.unit.producers.test_changing_members import HOSTS, Clients, block, clients_of, expected

OPTIONS = WriteOptions(Target("db", "t", "c", "nowhere"), ("host",))


@pytest.fixture
def clients() -> Iterator[Clients]:
    """Four nodes that keep two copies."""
    with clients_of() as made:
        yield made


@pytest.fixture
def other(clients: Clients) -> Iterator[Cluster]:
    """The connection of another worker process."""
    routing = MembershipRouting(clients.growing.log, TOPICS)
    yield replace(clients.cluster, routing=routing)
    routing.close()


def task(cluster: Cluster, batch: int, query: str = "q", *, of_stream: bool = True) -> SinkTask:
    """A task of a streaming query, of which each process may run any, or of a write."""
    return SinkTask(cluster, OPTIONS, TaskPositions(query, batch, 0), of_stream=of_stream)


def rows(value: int) -> list[pa.Table]:
    """Two blocks with one value in each row."""
    half = len(HOSTS) // 2
    return [block(value, HOSTS[:half]), block(value, HOSTS[half:])]


def join(clients: Clients) -> None:
    """A node joins; its slots are on their way."""
    clients.growing.begin(ChangeKind.ADD, "n5")
    clients.growing.formal()
    clients.growing.create_topic("n5")


def versions(clients: Clients) -> set[int]:
    """The tables that the messages of all logs name."""
    return {message.body.slot_table_version for _, message in clients.messages() if isinstance(message.body, Write)}


@pytest.mark.parametrize("of_stream", [True, False])
def test_a_process_that_has_not_read_of_a_change_writes_no_older_rank(
    clients: Clients, other: Cluster, of_stream: bool
) -> None:
    """The batch before had the new table, in another process: rows by the older one would lose against its rows.

    So it is with one write after the other.
    """
    assert clients.cluster.slot_table.version == other.slot_table.version == 1
    join(clients)
    task(clients.cluster, 0, "first", of_stream=of_stream).write_tables(rows(1))
    task(other, 1, "second", of_stream=of_stream).write_tables(rows(2))
    assert versions(clients) == {2}
    assert clients.visible() == expected(2)


def test_an_attempt_keeps_its_table(clients: Clients, other: Cluster) -> None:
    """One that was given up writes behind a later batch and a change: no row of it gets a higher rank."""

    def slow() -> Iterator[pa.Table]:
        first, second = rows(1)
        yield first
        task(other, 1).write_tables(rows(2))
        join(clients)
        clients.cluster.routing.look(10.0)
        yield second

    task(clients.cluster, 0).write_tables(slow())
    assert clients.cluster.slot_table.version == 2
    assert versions(clients) == {1}


def test_a_long_write_follows_the_changes(clients: Clients) -> None:
    """No batch comes after it, and former holders need not hand over what it writes for hours."""

    def slow() -> Iterator[pa.Table]:
        first, second = rows(1)
        yield first
        join(clients)
        clients.cluster.routing.look(10.0)
        yield second

    task(clients.cluster, 1, of_stream=False).write_tables(slow())
    assert versions(clients) == {1, 2}
    assert clients.visible() == expected(1)


def test_an_attempt_takes_the_newest_table_when_a_group_has_ended(clients: Clients) -> None:
    """The log of that group takes nothing any more, so no message is tried there."""
    clients.appender.due = 1

    def slow() -> Iterator[pa.Table]:
        first, second = rows(1)
        yield first
        clients.growing.remove("n2")
        clients.cluster.routing.look(10.0)
        yield second

    task(clients.cluster, 0).write_tables(slow())
    assert clients.visible() == expected(1)
    assert versions(clients) == {1, 2}
    assert clients.appender.delivered == len(clients.messages())
