"""Which producers a group remembers: equal on all replicas, bounded, and never a query for the sake of deletes."""

from __future__ import annotations

import uuid

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.replication import group_state
from headrace.consumers.replication.actions import ApplyDelete, ApplyWrite, Ignored
from headrace.consumers.replication.group_state import GroupState, ProducerKind
from headrace.consumers.replication.replica import Replica
from headrace.schemas.messages import Body, Delete, Message, ProducerPosition, Write, encode_message

LIMIT = 5
QUERY = str(uuid.UUID(int=7))
ROWS = Write("db", "t", 1, 1, 1, b"rows")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A small limit."""
    monkeypatch.setattr(group_state, "PRODUCERS_MAX", LIMIT)


def send(replica: Replica, producer: str, batch: int, body: Body = ROWS, sequence: int = 0) -> list[object]:
    """The actions of one more record."""
    value = encode_message(Message(ProducerPosition(producer, batch, sequence), body))
    return list(replica.apply(replica.state.offset + 1, value, (("format", b"1"),)))


@pytest.mark.parametrize(("producer", "batch"), [(QUERY, 0), (QUERY, 7), ("a-writer-of-many-batches", 7)])
def test_short_lived_producers_do_not_push_out_a_silent_query(producer: str, batch: int) -> None:
    """A micro-batch that is replayed after thousands of deletes is still dropped: no deleted row returns."""
    replica = Replica(("n1",))
    assert [ApplyWrite(1, ROWS)] == send(replica, producer, batch)
    for number in range(4 * LIMIT):
        delete = Delete("db", "t", {"a": (str(number),)})
        assert [ApplyDelete(number + 2, delete)] == send(replica, uuid.UUID(int=number).hex, 1, delete)
    assert [] == send(replica, producer, batch)
    assert [] == send(replica, producer, batch - 1)
    assert {Ignored.REPEATED: 1, Ignored.SUPERSEDED: 1} == dict(replica.ignored)


def test_writers_of_many_batches_do_not_push_out_a_query() -> None:
    """Nor do programs that each write a few batches and end."""
    replica = Replica(("n1",))
    send(replica, QUERY, 0)
    for number in range(4 * LIMIT):
        for batch in (1, 2, 3):
            send(replica, uuid.UUID(int=number).hex, batch)
    assert [] == send(replica, QUERY, 0)


def test_memory_of_producers_is_bounded() -> None:
    """At most the limit of each kind; a producer that changes its kind counts once."""
    replica = Replica(("n1",))
    for number in range(4 * LIMIT):
        for batch in range(number % 4):
            send(replica, str(uuid.UUID(int=number)), batch)
            send(replica, uuid.UUID(int=number).hex, batch)
    kinds = [ProducerKind.of(name, known.batch) for name, known in replica.state.producers.items()]
    # One that writes a second batch frees a place among those of a single batch.
    assert [LIMIT, LIMIT, LIMIT - 1] == [kinds.count(kind) for kind in ProducerKind]


RECORDS = st.lists(st.tuples(st.integers(0, 11), st.integers(0, 3), st.integers(0, 1)), max_size=60)


@given(records=RECORDS, restored_at=st.integers(0, 60))
def test_a_restored_state_forgets_the_same_producers(records: list[tuple[int, int, int]], restored_at: int) -> None:
    """What is remembered follows from the log alone, wherever a replica was restored from bytes."""
    one, other = Replica(("n1",)), Replica(("n1",))
    for number, (producer, batch, sequence) in enumerate(records):
        if number == restored_at:
            other.state = GroupState.from_bytes(other.state.to_bytes())
        name = str(uuid.UUID(int=producer)) if producer % 3 == 0 else f"p{producer}"
        assert send(one, name, batch, sequence=sequence) == send(other, name, batch, sequence=sequence)
    assert one.state.to_bytes() == other.state.to_bytes()
    assert one.state == other.state


def test_a_record_makes_its_producer_younger_and_a_restart_changes_no_order() -> None:
    """The producer with the oldest last record is forgotten, on replicas that were restored from bytes as well."""
    replica = Replica(("n1",))
    names = [uuid.UUID(int=number).hex for number in range(LIMIT, 0, -1)]
    for name in names:
        send(replica, name, 1)
    send(replica, names[0], 1, sequence=1)
    restored = Replica(("n1",), GroupState.from_bytes(replica.state.to_bytes()))
    for each in (replica, restored):
        send(each, uuid.UUID(int=99).hex, 1)
        assert {*names[2:], names[0], uuid.UUID(int=99).hex} == set(each.state.producers)
    assert replica.state.to_bytes() == restored.state.to_bytes()
