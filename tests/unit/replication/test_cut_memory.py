"""What a cut brings to the groups that took slots: divided into the same parts by everybody, and once."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.replication.change_state import ChangeState
from headrace.consumers.replication.cut_memory import CutMemory
from headrace.consumers.replication.group_state import GroupState, ProducerState
from headrace.consumers.replication.producer_section import Origin, Section, sections_of_cut
from headrace.schemas.group_changes import (
    Barrier,
    BarrierPhase,
    GroupKey,
    HandedDelete,
    MovedProducer,
    MovedTo,
    Rank,
)
from headrace.schemas.message_bodies import Anchor, Delete, ProducerPosition
from headrace.schemas.messages import Leadership

TARGET, OTHER = GroupKey("n2", 3), GroupKey("n3", 1)
PRODUCERS = (MovedProducer("p", 3, ((1, b"d" * 16),)),)
MEMORY = CutMemory(
    2,
    ((TARGET, (1, 2, 3)), (OTHER, (7,))),
    b"l" * 16,
    (((1, 2, 7), PRODUCERS), ((3,), PRODUCERS)),
    tuple(HandedDelete(Rank(1, number), (2, 7, 9), Delete("db", "t", {})) for number in (4, 5)),
)


def test_a_takeover_has_what_concerns_the_slots_of_its_target() -> None:
    """First the loaded files, then the producers of each section, then deletes, all cut to these slots."""
    files, *sections, deletes = MEMORY.takeovers(TARGET, 12)
    assert ((1, 2, 3), b"l" * 16) == (files.slots, files.loads)
    assert [((1, 2), PRODUCERS), ((3,), PRODUCERS)] == [(each.slots, each.producers) for each in sections]
    assert [(4, (2,)), (5, (2,))] == [(each.rank.version, each.slots) for each in deletes.deletes]
    assert 3 == len(MEMORY.takeovers(OTHER, 12))


def test_parts_are_made_once() -> None:
    """Each part is sent by itself, and every replica counts them: thousands of deletes are divided once for all of it."""
    memory = replace(MEMORY)
    parts = memory.takeovers(TARGET, 12)
    assert parts is memory.takeovers(TARGET, 12)
    assert memory.takeovers(OTHER, 12) is not parts
    assert parts == MEMORY.takeovers(TARGET, 12)
    assert memory == MEMORY


PRODUCER = st.sampled_from("pqrs")
SEEN = st.sets(st.tuples(st.integers(1, 3), st.sampled_from([b"d" * 16, b"e" * 16])), max_size=3)
KNOWN = st.dictionaries(PRODUCER, st.tuples(st.integers(1, 3), SEEN), max_size=4).map(
    lambda found: tuple(MovedProducer(name, batch, tuple(sorted(seen))) for name, (batch, seen) in found.items())
)
SOME_SLOTS = st.frozensets(st.integers(0, 7), max_size=8)


def section_of(slots: frozenset[int], producers: tuple[MovedProducer, ...]) -> Section:
    """A section with these producers."""
    section = Section(slots)
    section.add(producers)
    return section


SECTIONS = st.lists(st.builds(section_of, SOME_SLOTS, KNOWN), max_size=6)


@given(leaving=SOME_SLOTS, own=KNOWN, inherited=SECTIONS)
def test_merged_sections_know_what_all_of_them_knew(
    leaving: frozenset[int], own: tuple[MovedProducer, ...], inherited: list[Section]
) -> None:
    """Of each slot that leaves, every message that any holder so far had applied, and no other one."""
    found = [section_of(frozenset(slots), producers) for slots, producers in sections_of_cut(leaving, own, inherited)]
    before = [section_of(leaving, own), *inherited]
    for slot, producer, batch, sequence in itertools.product(leaving, "pqrst", range(4), range(4)):
        position = ProducerPosition(producer, batch, sequence)
        for digest in (b"d" * 16, b"e" * 16):
            known = [each for each in before if slot in each.slots and each.knows(position, digest)]
            kept = [each for each in found if slot in each.slots and each.knows(position, digest)]
            assert bool(known) == bool(kept)
    assert all(each.slots <= leaving for each in found)


@given(leaving=SOME_SLOTS, own=KNOWN, inherited=SECTIONS)
def test_a_producer_is_inherited_once(
    leaving: frozenset[int], own: tuple[MovedProducer, ...], inherited: list[Section]
) -> None:
    """For each slot, however many sections had it; and no two sections are of the same slots."""
    found = sections_of_cut(leaving, own, inherited)
    beyond = found[1:] if found and found[0] == (tuple(sorted(leaving)), own) else found
    for slot in leaving:
        names = [each.producer for slots, producers in beyond if slot in slots for each in producers]
        assert len(names) == len(set(names))
    assert len({slots for slots, _ in beyond}) == len(beyond)


def test_slots_that_go_to_and_fro_have_no_more_sections_each_time() -> None:
    """A node that joins and leaves again and again: what is handed over with its slots stays as small as it was."""
    groups = {name: GroupState(changes=ChangeState((name,), slots_total=12)) for name in ("n1", "n2", "n3")}
    counts: list[int] = []
    for change in range(1, 13):
        gone, come = (("n1", "n2"), ("n3",)) if change % 2 else (("n3",), ("n1", "n2"))
        for donor in gone:
            # Each holder has a producer of its own, and one that all have.
            groups[donor].producers |= {
                donor: ProducerState(change, change, {(1, b"d" * 16)}),
                "all": ProducerState(change, change, {(change, b"e" * 16)}),
            }
            moves = tuple(
                MovedTo(GroupKey(each, change), "t", (1, 2) if "n1" in (donor, each) else (3, 4)) for each in come
            )
            memory = groups[donor].cut_memory(barrier_of(change, moves))
            counts.append(len(memory.sections))
            for each in moves:
                for part in memory.takeovers(each.key, 12):
                    origins = groups[each.key.group].changes.origins
                    origin = origins.setdefault(GroupKey(donor, change), Origin())
                    origin.section(frozenset(part.slots)).add(part.producers)
    assert max(counts) <= 3


def test_every_leader_makes_the_same_parts() -> None:
    """Origins came in some order, which a member that was started again does not know."""
    origins = {
        GroupKey(name, 1): Origin(sections=[section_of(frozenset({1, 2}), producers)])
        for name, producers in (
            ("n3", (MovedProducer("p", 3, ((1, b"d" * 16),)), MovedProducer("q", 1, ()))),
            ("n2", (MovedProducer("q", 1, ((2, b"e" * 16),)), MovedProducer("p", 2, ()))),
        )
    }
    state = GroupState(changes=ChangeState(("n1",), slots_total=12, origins=origins))
    barrier = barrier_of(2, (MovedTo(TARGET, "t", (1, 2)),))
    again = GroupState.from_bytes(state.to_bytes())
    assert list(again.changes.origins) != list(origins)
    assert state.cut_memory(barrier).takeovers(TARGET, 12) == again.cut_memory(barrier).takeovers(TARGET, 12)


def barrier_of(change: int, moves: tuple[MovedTo, ...]) -> Barrier:
    """The barrier of a second phase."""
    anchor = Anchor(0, 1, b"c" * 16)
    return Barrier(Leadership(1, "n1", "i"), anchor, change, BarrierPhase.FORMAL, change, 12, ("n1",), moves)
