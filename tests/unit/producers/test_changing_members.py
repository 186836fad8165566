"""Writers and deletes while the members of the cluster change: nothing is lost, doubled, or out of order."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.connectors.log.memory import MemoryAppender
from headrace.connectors.log.port import AppendUnknown, Headers, OnDelivery
from headrace.consumers.membership.routing import MembershipRouting
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.replication.heartbeat import StatusWatch
from headrace.producers.acks import QuorumTimeout
from headrace.producers.cluster import Cluster, Route
from headrace.producers.deletes import GroupEnded, delete_rows, repeat_deletes
from headrace.producers.sender import WriteFailed, WriteUnknown
from headrace.producers.writer import TableWriter, WriterSettings
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.membership_records import ChangeKind
from headrace.schemas.messages import Delete, Message, ProducerPosition, Write, decode_message
from headrace.schemas.payload import SERIES_COLUMN, decode_rows
from headrace.schemas.receipts import WrittenRecords, receipt_of, value_digest
from headrace.schemas.records import encode_status
from headrace.schemas.series import bucket_of, slot_of
from headrace.schemas.tables import TimeResolution
from tests.unit.membership.growing import TOPICS, ClosableLog, Growing
from tests.unit.producers.scene import DAY_NS, readings, status_of

NODES = ("n1", "n2", "n3", "n4")
HOSTS = tuple(f"h{number}" for number in range(12))


class LateAppender(MemoryAppender):
    """Delivers records when it is flushed, or when `due` are queued: reports come long after the calls."""

    def __init__(self, log: ClosableLog, due: int = 1_000) -> None:
        super().__init__(log)
        self.due = due
        self.queue: list[Callable[[], None]] = []
        self.before: Callable[[int], None] = lambda _count: None
        self.delivered = 0
        self.errors: list[HeadraceError] = []

    def append(
        self,
        topic: str,
        value: bytes,
        *,
        key: bytes | None = None,
        headers: Headers = (),
        on_delivery: OnDelivery | None = None,
    ) -> None:
        """See Appender."""
        append = super().append

        def deliver() -> None:
            self.delivered += 1
            self.before(self.delivered)
            if self.errors and on_delivery is not None:
                append(topic, value, key=key, headers=headers)
                on_delivery(None, self.errors.pop(0))
            else:
                append(topic, value, key=key, headers=headers, on_delivery=on_delivery)

        self.queue.append(deliver)
        if len(self.queue) >= self.due:
            self.flush(0.0)

    def flush(self, timeout_s: float) -> int:
        """See Appender."""
        queue, self.queue = self.queue, []
        for deliver in queue:
            deliver()
        return 0


@dataclass
class Clients:
    """A cluster whose members change, and the connection of its clients."""

    growing: Growing
    cluster: Cluster
    appender: LateAppender
    tables: dict[int, SlotTable]
    eras: dict[int, int]

    def writer(self, **given: Any) -> TableWriter:
        """A writer of `db.t`."""
        return TableWriter(self.cluster, "db", "t", WriterSettings(**{"resolution": TimeResolution.NS, **given}))

    def messages(self) -> list[tuple[GroupKey, Message]]:
        """Every record of the forward logs, in the order of their appends."""
        found = []
        for topic in list(self.growing.log._topics):
            if (group := TOPICS.group_of(topic)) is not None:
                records = self.growing.log._topics[topic].records
                found += [(each.timestamp_ms, GroupKey(*group), decode_message(each.value)) for each in records]
        return [(group, message) for _, group, message in sorted(found, key=lambda each: each[0])]

    def visible(self) -> dict[tuple[str, int], int]:
        """The value of each (series, time) that replicas show: by the table of its log, then by its place there.

        Every row must be in the log of the group that holds its slot by the table that its message names. A delete
        concerns older rows of the slots that its group held when it came.
        """
        found: dict[tuple[str, int], tuple[tuple[int, int], int]] = {}
        for place, (group, message) in enumerate(self.messages()):
            body = message.body
            if isinstance(body, Write):
                rank = body.slot_table_version, place
                for row in decode_rows(body.rows).to_pylist():
                    key = row[SERIES_COLUMN], row["time"]
                    assert self.holder(key, body.slot_table_version) == group, (key, body.slot_table_version)
                    found[key] = max(found.get(key, (rank, row["v"])), (rank, row["v"]))
            elif isinstance(body, Delete):
                since = self.since[place]
                gone = [key for key, (rank, _) in found.items() if rank < (since, place)]
                for key in gone:
                    if self.holder(key, since) == group:
                        del found[key]
        return {key: value for key, (_, value) in found.items()}

    @property
    def since(self) -> list[int]:
        """By place, the table that counted when a record of the forward logs came."""
        times = [
            each.timestamp_ms
            for topic in list(self.growing.log._topics)
            if TOPICS.group_of(topic) is not None
            for each in self.growing.log._topics[topic].records
        ]
        return [self.eras[time] for time in sorted(times)]

    def holder(self, key: tuple[str, int], version: int) -> GroupKey:
        """The group that holds the slot of a row by a table."""
        series, time = key
        table, database = self.tables[version], self.cluster.tables.ensure_database("db")
        slot = slot_of("db", bucket_of(series, database.buckets), time // database.slice_ns, table.slots)
        header = table.holder(slot)
        return GroupKey(header, table.birth(header))

    def hold(self, group: GroupKey, *nodes: str) -> None:
        """Members hold all that the log of a group has."""
        topic = TOPICS.forward(group.group, group.birth)
        records = self.growing.log.topic(topic).records
        receipts = b"".join(receipt_of(each.offset, value_digest(each.value)) for each in records)
        state = {"topic_id": self.growing.log.describe(topic).topic_id, "log_lost": False, "receipts": receipts}
        for node in nodes:
            status = status_of(node=node, group=group.group, durable_offset=records[-1].offset, **state)
            self.growing.log.store(TOPICS.status, encode_status(status), None, ())


@contextmanager
def clients_of(nodes: tuple[str, ...] = NODES, replication: int = 2, due: int = 1_000) -> Iterator[Clients]:
    """Clients of a cluster."""
    log = ClosableLog()
    tables_by_version: dict[int, SlotTable] = {}
    eras: dict[int, int] = {}
    growing: Growing | None = None

    def tick() -> int:
        """Each record has a time of its own, and the table that counts then."""
        if growing is not None:
            tables_by_version[growing.table.version] = growing.table
            eras[len(eras)] = growing.table.version
        else:
            eras[len(eras)] = 0
        return len(eras) - 1

    log._clock_ms = tick
    growing = Growing(nodes, replication, log)
    tables, watch, appender = SchemaLog(log, TOPICS), StatusWatch(log, TOPICS), LateAppender(log, due)
    routing = MembershipRouting(log, TOPICS)
    try:
        cluster = Cluster(log, TOPICS, routing, tables, watch, appender)
        yield Clients(growing, cluster, appender, tables_by_version, eras)
    finally:
        routing.close()
        watch.close()
        tables.close()


@pytest.fixture
def clients() -> Iterator[Clients]:
    """Clients of four nodes that keep two copies."""
    with clients_of() as made:
        yield made


def block(value: int, hosts: tuple[str, ...] = HOSTS, days: int = 5) -> Any:
    """A row of every host on every day, all with one value."""
    pairs = [(host, day * DAY_NS) for host in hosts for day in range(days)]
    return readings([host for host, _ in pairs], [time for _, time in pairs], v=[value] * len(pairs))


def expected(value: int, hosts: tuple[str, ...] = HOSTS, days: int = 5) -> dict[tuple[str, int], int]:
    """What a block shows."""
    return {(f"t,host={host}", day * DAY_NS): value for host in hosts for day in range(days)}


def test_a_writer_works_over_any_number_of_changes(clients: Clients) -> None:
    """Nodes join and leave, and join again; each block is routed by a table of its time, and no row is lost."""
    with clients.writer() as writer:
        for value, node in enumerate(("", "n5", "n6", "")):
            if node:
                clients.growing.add(node)
            writer.write(block(value), ["host"])
            clients.cluster.routing.look(10.0)
        for value, node in enumerate(("n1", "n5", "n2"), 10):
            clients.growing.remove(node)
            writer.write(block(value), ["host"])
        clients.growing.add("n1")
        clients.cluster.routing.look(10.0)
        writer.write(block(20), ["host"])
        offsets = writer.flush()
    assert expected(20) == clients.visible()
    assert {TOPICS.forward("n1"), TOPICS.forward("n1", 7)} <= set(offsets)
    newest = [message.body for group, message in clients.messages() if group == GroupKey("n1", 7)]
    assert {7} == {body.slot_table_version for body in newest if isinstance(body, Write)}


def test_what_a_closed_topic_refused_is_written_to_the_groups_that_took_its_slots(clients: Clients) -> None:
    """The writer routed it by the table before; nobody reports it, and no log has it twice."""
    with clients.writer() as writer:
        writer.write(block(1), ["host"])
        clients.growing.remove("n2")
        assert not clients.messages()
        clients.appender.flush(0.0)
        assert len(clients.visible()) < len(expected(1))
        writer.flush()
    assert expected(1) == clients.visible()
    rows = sum(message.body.row_count for _, message in clients.messages() if isinstance(message.body, Write))
    assert len(expected(1)) == rows
    assert "n2" not in {group.group for group, _ in clients.messages()}


def test_a_missing_topic_is_as_good_as_a_closed_one(clients: Clients) -> None:
    """Its group has ended, and everything in it was handed over before it was deleted."""
    with clients.writer() as writer:
        writer.write(block(1), ["host"])
        clients.growing.remove("n3")
        clients.growing.log.delete_topic(TOPICS.forward("n3"))
    assert expected(1) == clients.visible()


def test_a_refused_row_never_replaces_a_later_one(clients: Clients) -> None:
    """Of two blocks with the same rows the second one wins, although the first one is written again behind it."""
    with clients.writer() as writer:
        writer.write(block(1), ["host"])
        writer.write(block(2), ["host"])
        clients.growing.remove("n2")
        clients.cluster.routing.look(10.0)
        writer.write(block(3, HOSTS[:3]), ["host"])
    assert {**expected(2), **expected(3, HOSTS[:3])} == clients.visible()


@settings(max_examples=50, deadline=None)
@given(st.data())
def test_whatever_changes_and_whenever_the_last_value_of_each_row_wins(data: st.DataObject) -> None:
    """Changes begin, count and end between any two records, also inside a block; reports come early or late."""
    with clients_of(due=data.draw(st.integers(1, 30), "due")) as clients:
        growing, names = clients.growing, iter(f"m{number}" for number in range(1_000))
        steps: list[Callable[[], None]] = []
        written: dict[tuple[str, int], int] = {}

        def change() -> None:
            """The next step of a change, or the first one of another."""
            if steps:
                steps.pop(0)()
            elif len(growing.table.nodes) > 2 and data.draw(st.booleans(), "remove"):
                node = data.draw(st.sampled_from(growing.table.nodes), "node")
                topic = TOPICS.forward(node, growing.table.birth(node))
                growing.begin(ChangeKind.REMOVE, node)
                ending = [growing.formal, growing.finish, lambda: growing.log.closed.add(topic)]
                steps.extend([growing.cancel] if data.draw(st.booleans(), "cancel") else ending)
            else:
                node = next(names)
                growing.begin(ChangeKind.ADD, node)
                steps.extend([growing.formal, lambda: growing.create_topic(node), growing.finish])

        due = set(data.draw(st.lists(st.integers(1, 120), max_size=12), "changes before records"))
        clients.appender.before = lambda count: change() if count in due else None
        with clients.writer() as writer:
            for value in range(data.draw(st.integers(1, 6), "blocks")):
                hosts = HOSTS[: data.draw(st.integers(1, 12), "hosts")]
                writer.write(block(value, hosts, 3), ["host"])
                written |= expected(value, hosts, 3)
                for _ in range(data.draw(st.sampled_from((0, 0, 1, 4)), "changes")):
                    change()
                if data.draw(st.booleans(), "look"):
                    clients.cluster.routing.look(10.0)
        assert written == clients.visible()


def test_a_topic_that_refuses_rows_of_a_group_that_stays_is_an_error(clients: Clients) -> None:
    """At once: nothing would change by waiting. The rows are certainly not in the log."""
    clients.growing.log.closed.add(TOPICS.forward("n2"))
    writer = clients.writer()
    writer.write(block(1), ["host"])
    with pytest.raises(WriteFailed, match=r"rows are not in the log: a record of .* is more than topic") as raised:
        writer.flush()
    assert len(expected(1)) == raised.value.rows + len(clients.visible())
    clients.growing.log.closed.clear()
    clients.growing.log.delete_topic(TOPICS.forward("n1"))
    writer.write(block(2), ["host"])
    with pytest.raises(WriteFailed, match="does not exist"):
        writer.close()


def test_what_may_be_in_the_old_log_is_reported_as_unknown(clients: Clients) -> None:
    """It is not written again by itself: the caller decides, and writing again is safe."""
    writer = clients.writer()
    clients.appender.errors = [AppendUnknown("no answer")]
    writer.write(block(1), ["host"])
    clients.appender.flush(0.0)
    clients.growing.remove("n2")
    with pytest.raises(WriteUnknown, match="may or may not be in the log"):
        writer.flush()
    writer.write(block(1), ["host"])
    writer.close()
    assert expected(1) == clients.visible()


def test_refused_rows_whose_place_is_not_known_are_an_error(clients: Clients) -> None:
    """The log does not answer within the time of the flush, so nobody knows which groups have the slots now."""
    writer = clients.writer(flush_timeout_s=0.3)
    writer.write(block(1), ["host"])
    clients.growing.remove("n2")
    clients.appender.flush(0.0)
    clients.growing.log.hidden.add(TOPICS.membership)
    with pytest.raises(WriteFailed, match="where its rows belong now is not known") as raised:
        writer.flush()
    assert raised.value.retriable
    clients.growing.log.hidden.clear()
    writer.write(block(1), ["host"])
    writer.close()
    assert expected(1) == clients.visible()


# Quorums.


def single(clients: Clients) -> tuple[Any, GroupKey]:
    """One row, and the group that owns it."""
    rows = block(1, HOSTS[:1], 1)
    with clients.writer() as writer:
        writer.write(rows, ["host"])
        (topic,) = writer.flush()
    group = TOPICS.group_of(topic)
    assert group is not None
    return rows, GroupKey(*group)


def test_a_quorum_needs_members_of_before_and_after_a_change() -> None:
    """While the change may still be cancelled: copies at members that leave or come do not suffice alone."""
    with clients_of(("n1", "n2", "n3", "n4", "n5"), 3) as clients:
        rows, group = single(clients)
        before = clients.growing.table.group(group.group)
        leaver = before[-1]
        clients.growing.begin(ChangeKind.REMOVE, leaver)
        assert clients.growing.state.change is not None
        after = clients.growing.state.change.table.group(group.group)
        [joiner] = set(after) - set(before)
        cluster = replace(clients.cluster, appender=clients.growing.log.appender())
        cluster.routing.look(10.0)

        def confirmed(*nodes: str) -> bool:
            appender = HeldAppender(clients, group, nodes)
            writer = TableWriter(
                replace(cluster, appender=appender), "db", "t", WriterSettings(quorum=2, quorum_timeout_ms=100)
            )
            try:
                writer.write(rows, ["host"])
            except QuorumTimeout:
                return False
            return True

        assert not confirmed(group.group, leaver)
        assert not confirmed(group.group, joiner)
        assert confirmed(group.group, leaver, joiner)
        assert confirmed(*before[:2])
        clients.growing.formal()
        cluster.routing.look(10.0)
        assert confirmed(group.group, joiner)


class HeldAppender(MemoryAppender):
    """The named members hold each record of a group at once; the newest status of the others does not count."""

    def __init__(self, clients: Clients, group: GroupKey, nodes: tuple[str, ...]) -> None:
        super().__init__(clients.growing.log)
        self._clients, self._group, self._nodes = clients, group, nodes

    def append(self, topic: str, value: bytes, **given: Any) -> None:
        """See Appender."""
        super().append(topic, value, **given)
        self._clients.hold(self._group, *self._nodes)


def test_a_group_that_came_later_has_a_quorum(clients: Clients) -> None:
    """The id of its topic is looked up before its first row."""
    writer = clients.writer(quorum=2, quorum_timeout_ms=5_000)
    clients.growing.add("n0")
    clients.cluster.routing.look(10.0)
    groups = [GroupKey(header, clients.growing.table.birth(header)) for header in clients.growing.table.headers]

    def hold(_count: int) -> None:
        for group in groups:
            if clients.growing.log.describe(TOPICS.forward(group.group, group.birth)).end:
                clients.hold(group, *clients.growing.table.group(group.group))

    clients.appender.before = hold
    clients.appender.due = 1
    confirm = writer._quorum.confirm

    def held_first(written: Mapping[GroupKey, WrittenRecords], rows: int, unit: str = "rows") -> None:
        hold(0)
        confirm(written, rows, unit)

    writer._quorum.confirm = held_first  # type: ignore[method-assign]
    writer.write(block(1), ["host"])
    assert TOPICS.forward("n0", 2) in writer.newest()


# Deletes.


def deletes(clients: Clients) -> list[GroupKey]:
    """The groups that have a delete, in the order of the appends."""
    return [group for group, message in clients.messages() if isinstance(message.body, Delete)]


def test_a_delete_comes_first_to_a_group_that_ends(clients: Clients) -> None:
    """In each phase: where the group takes it no longer, the others have taken its slots over before theirs."""
    single(clients)
    clients.growing.begin(ChangeKind.REMOVE, "n2")
    assert set(delete_rows(clients.cluster, "db", "t")) == set(map(TOPICS.forward, NODES))
    assert deletes(clients)[0] == GroupKey("n2", 1)
    clients.growing.formal()
    assert set(delete_rows(clients.cluster, "db", "t")) == set(map(TOPICS.forward, NODES))
    assert deletes(clients)[4] == GroupKey("n2", 1)
    assert {} == clients.visible()
    clients.growing.finish()
    clients.growing.log.closed.add(TOPICS.forward("n2"))
    assert set(delete_rows(clients.cluster, "db", "t")) == set(map(TOPICS.forward, ("n1", "n3", "n4")))
    clients.growing.log.delete_topic(TOPICS.forward("n2"))
    assert set(delete_rows(clients.cluster, "db", "t")) == set(map(TOPICS.forward, ("n1", "n3", "n4")))


def test_a_delete_that_meets_the_end_of_a_group_is_sent_to_the_others_once_more(clients: Clients) -> None:
    """They had it before they had the rows of that group; only a delete behind those hides them."""
    single(clients)
    began = clients.appender.delivered

    def end(count: int) -> None:
        if count == began + 1:
            clients.growing.remove("n3")

    clients.appender.before = end
    assert set(delete_rows(clients.cluster, "db", "t")) == set(map(TOPICS.forward, ("n1", "n2", "n4")))
    assert deletes(clients) == [GroupKey(name, 1) for name in (*clients.growing.table.headers,) * 2]
    assert {} == clients.visible()
    # What is written behind it stays.
    with clients.writer() as writer:
        writer.write(block(2), ["host"])
    assert expected(2) == clients.visible()


def test_a_delete_reaches_groups_that_came_while_the_client_was_idle(clients: Clients) -> None:
    """It looks at the log first: a row that another client wrote to a new group before must go."""
    single(clients)
    clients.growing.add("n0")
    with clients.writer() as writer:
        clients.cluster.routing.look(10.0)
        writer.write(block(2), ["host"])
    assert expected(2) == clients.visible()
    assert TOPICS.forward("n0", 2) in delete_rows(clients.cluster, "db", "t")
    assert {} == clients.visible()


def test_a_delete_that_a_present_group_refuses_is_an_error(clients: Clients) -> None:
    """Never taken for a group that has ended."""
    single(clients)
    clients.growing.log.closed.add(TOPICS.forward("n4"))
    with pytest.raises(WriteFailed, match="1 delete messages are not in the log"):
        delete_rows(clients.cluster, "db", "t")


def repeated(clients: Clients, route: Route, batch: int = 1) -> None:
    """Delete everything by a route, at a position of ours."""
    position, body = ProducerPosition("sync/s1/e1/1", batch, 0), Delete("db", "t", {})
    repeat_deletes(clients.cluster, route, [(position, body)], 10.0)


def test_deletes_of_a_route_go_to_its_groups_alone(clients: Clients) -> None:
    """Whoever has a route of long ago reaches no group that came since."""
    single(clients)
    route = clients.cluster.routing.look(10.0)
    clients.growing.add("n0")
    repeated(clients, route)
    assert [GroupKey(name, 1) for name in NODES] == sorted(deletes(clients), key=lambda each: each.group)
    repeated(clients, clients.cluster.routing.look(10.0), 2)
    assert GroupKey("n0", 2) in deletes(clients)


def test_deletes_of_a_route_fail_at_the_end_of_a_group(clients: Clients) -> None:
    """Nothing is sent to others than those of the route: its owner takes the newest one, and begins again."""
    single(clients)
    route = clients.cluster.routing.look(10.0)
    clients.growing.remove("n3")
    with pytest.raises(GroupEnded) as raised:
        repeated(clients, route)
    assert raised.value.retriable
    repeated(clients, clients.cluster.routing.look(10.0))
    assert {} == clients.visible()
