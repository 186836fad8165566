"""What a cut brings to the groups that took slots: divided into the same parts by everybody, and once."""

from __future__ import annotations

from dataclasses import replace

from headrace.consumers.replication.cut_memory import CutMemory
from headrace.schemas.group_changes import GroupKey, HandedDelete, MovedProducer, Rank
from headrace.schemas.message_bodies import Delete

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
