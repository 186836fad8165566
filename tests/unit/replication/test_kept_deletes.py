"""Deletes that a group remembers: bounded, in their order, and encoded once however often its state is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.replication import kept_deletes
from headrace.consumers.replication.change_records import changes_record
from headrace.consumers.replication.change_state import ChangeState
from headrace.consumers.replication.cut_memory import CutMemory
from headrace.consumers.replication.group_state import GroupState
from headrace.consumers.replication.kept_deletes import KeptDeletes, state_codec
from headrace.consumers.replication.producer_section import Origin, Section
from headrace.schemas import group_changes
from headrace.schemas.framing import codec
from headrace.schemas.group_changes import GroupKey, HandedDelete, MovedProducer, Rank, delete_record
from headrace.schemas.message_bodies import Delete

SLOTS = st.lists(st.integers(0, 60), unique=True, min_size=1).map(lambda slots: tuple(sorted(slots)))
TIMES = st.none() | st.integers(-(2**62), 2**62)
TAGS = st.dictionaries(st.text(max_size=3), st.lists(st.text(max_size=3), max_size=2).map(tuple), max_size=2)
DELETES = st.lists(
    st.builds(
        HandedDelete,
        st.builds(Rank, st.integers(1, 3), st.integers(1, 9)),
        SLOTS,
        st.builds(Delete, st.just("db"), st.text(max_size=3), TAGS, TIMES, TIMES),
    ),
    max_size=80,
)
PRODUCERS = (MovedProducer("p", 3, ((1, b"d" * 16), (2, b"e" * 16))),)


@given(deletes=DELETES, of_cut=DELETES)
def test_a_state_has_the_bytes_that_avro_gives_it(deletes: list[HandedDelete], of_cut: list[HandedDelete]) -> None:
    """What is put together equals what fastavro writes of the whole record, and is read back."""
    section = Section(frozenset({1, 2, 5}))
    section.add(PRODUCERS)
    target = GroupKey("n2", 3)
    changes = ChangeState(
        ("n1", "n2"),
        deletes=KeptDeletes(deletes),
        cuts={7: CutMemory(2, ((target, (1, 2)),), b"l" * 16, (((1, 2), PRODUCERS),), tuple(of_cut))},
        origins={target: Origin(sections=[section])},
        gained={4: 2},
    )
    state = GroupState(version=9, changes=changes)
    found = state.to_bytes()
    # What is read of a union has its name, so that fastavro need not look for the branch.
    record = codec("state").decode(found)
    name, inner = record["changes"]
    assert inner | changes_record(changes) | {"deletes": [delete_record(each) for each in changes.deletes]} == inner
    assert codec("state").encode(record | {"changes": (name, inner)}) == found
    assert GroupState.from_bytes(found) == state


def test_a_group_without_members_has_no_changes() -> None:
    """The state of a group before its first record is as fastavro writes it."""
    assert GroupState.from_bytes(GroupState(version=3).to_bytes()) == GroupState(version=3)


def test_a_delete_is_encoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A seal encodes the state of its group: thousands of deletes must not be encoded again each time."""
    encoded: list[int] = []

    def counted(handed: HandedDelete) -> dict[str, object]:
        encoded.append(handed.rank.version)
        return delete_record(handed)

    monkeypatch.setattr(kept_deletes, "delete_record", counted)
    state = GroupState(changes=ChangeState(("n1",), deletes=KeptDeletes(map(numbered, range(1, 101)))))
    before = state.to_bytes()
    assert [*range(1, 101)] == encoded
    assert state.to_bytes() == before
    state.changes.deletes.keep(numbered(101))
    assert state.to_bytes() != before
    assert [*range(1, 102)] == encoded


def test_a_delete_that_comes_by_several_ways_is_kept_once() -> None:
    """For all slots that it concerns; another delete of the same rank, from another log, is one of its own."""
    kept = KeptDeletes([numbered(1), numbered(2)])
    for slots in ((1,), (3, 5), (1, 5), (4,)):
        kept.keep(replace(numbered(1), slots=slots))
    other = HandedDelete(Rank(1, 1), (7,), Delete("db", "t", {"a": ("b",)}))
    kept.keep(other)
    assert [(2, (2,)), (1, (1, 3, 4, 5)), (1, (7,))] == [(each.rank.version, each.slots) for each in kept]
    assert KeptDeletes(list(kept)) == kept
    assert [numbered(2)] == list(kept.of([2]))


def test_a_record_made_by_hand_leaves_a_state_that_can_be_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Slots that no table has are left out, so that all that is kept of a delete is never more than a state may have."""
    for module in (kept_deletes, group_changes):
        monkeypatch.setattr(module, "RECORD_SLOTS_MAX", 4)
    kept = KeptDeletes()
    for slots in ((0, 1, 2, 3), (3, 4, 5, 6), (7, 8, 9)):
        kept.keep(replace(numbered(1), slots=slots))
    kept.keep(replace(numbered(2), slots=(4, 5)))
    assert [(1, (0, 1, 2, 3))] == [(each.rank.version, each.slots) for each in kept]
    state = GroupState(changes=ChangeState(("n1",), deletes=kept))
    assert GroupState.from_bytes(state.to_bytes()) == state


@pytest.mark.usefixtures("few")
def test_the_oldest_delete_is_forgotten() -> None:
    """Beyond the limit; one that comes again is the newest."""
    kept = KeptDeletes(map(numbered, (1, 2, 3)))
    kept.keep(numbered(1))
    kept.keep(numbered(4))
    assert [3, 1, 4] == [each.rank.version for each in kept]
    assert [1] == [each.rank.version for each in kept.of([1])]
    assert len(kept.encoded()) == 3


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """A limit of three."""
    monkeypatch.setattr(kept_deletes, "KEPT_DELETES_MAX", 3)


def numbered(version: int) -> HandedDelete:
    """A delete of the slot of its number."""
    return HandedDelete(Rank(1, version), (version,), Delete("db", "t", {}))


def test_items_of_a_spliced_record_are_those_of_avro() -> None:
    """An item by itself has the bytes that it has within a record."""
    item = state_codec().item(delete_record(numbered(5)))
    state = GroupState(changes=ChangeState(("n1",), deletes=KeptDeletes([numbered(5)])))
    assert item in state.to_bytes()
