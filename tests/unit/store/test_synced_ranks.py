"""Ranks of files of sync senders over random schedules of seals, late loads, merges and deletes, without files."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from headrace.consumers.store import SegmentEntry
from headrace.consumers.store.compaction import are_neighbours, output_name, plan_compaction
from headrace.consumers.store.synced import name_of, of_all, rank_of, ranked
from headrace.schemas.message_rules import ORDER_END
from headrace.schemas.messages import SyncedRows
from tests.unit.store.conftest import SETTINGS

SCHEDULES = 1_000
STEPS = 80
SENDERS = ("s1", "s2", "s3", "s4")
ORDERS = [f"{number:03}" for number in range(40)]


class Location:
    """The segments of one location of one era, as any replica has them."""

    def __init__(self, seed: int) -> None:
        self.random = Random(seed)
        self.version = 0
        self.sealed = 0
        self.content = 0
        # Some have seals of their own between the files, and some files of many rows.
        self.weights = 6, 5, 1, self.random.choice((0, 0, 1))
        self.sizes = self.random.choice(((1,), (1, 1, 300)))
        self.entries: list[SegmentEntry] = []
        self.unsent = {sender: list(ORDERS) for sender in SENDERS}
        self.given: dict[str, str] = {}

    def step(self) -> None:
        """One record of the log, or nothing."""
        self.version += 1
        kind = self.random.choices((self.load, self.merge, self.delete, self.seal), self.weights)[0]
        kind()
        self.check()

    def seal(self) -> None:
        """Rows of the own log."""
        self.add(self.entry(self.sealed + 1, self.version))
        self.sealed = self.version

    def load(self) -> None:
        """A file of a sender, one of the next. Before it the group has sealed what it had, see `ranked`."""
        sender = self.random.choice(SENDERS)
        if not (left := self.unsent[sender]):
            return
        order = left.pop(0 if self.random.random() < 0.1 else self.random.randrange(min(6, len(left))))
        settled = max((each for each in ORDERS if not left or each < left[0]), default="")
        self.sealed = self.version
        new = self.entry(0, 0, synced=(SyncedRows(sender, order, settled),))
        new = replace(new, order=f"{order}{ORDER_END}{new.content_digest}")
        self.add(ranked(new, 1, self.version, self.entries))

    def merge(self) -> None:
        """What the leader plans; all rows of some outputs were deleted."""
        for plan in plan_compaction(self.entries, {}, SETTINGS):
            self.version += 1
            inputs = [next(each for each in self.entries if each.name == name) for name in plan.inputs]
            assert are_neighbours(inputs, self.entries)
            name = output_name(inputs)
            synced, _ = of_all(inputs)
            self.entries = [each for each in self.entries if each not in inputs]
            if self.random.random() < 0.5:
                merged = self.entry(name.first_version, name.last_version, synced=synced)
                self.add(replace(merged, order=name.order, generation=name.generation))

    def delete(self) -> None:
        """All rows of a segment go."""
        if self.entries:
            self.entries.remove(self.random.choice(self.entries))

    def entry(self, first: int, last: int, synced: tuple[SyncedRows, ...] = ()) -> SegmentEntry:
        """A segment with content of its own."""
        self.content += 1
        content = f"{self.content:06}"
        rows = self.random.choice(self.sizes)
        return SegmentEntry("", "d", "t", 0, 0, 1, first, last, 0, rows, 0, 9, 1, content, "", 1, 0, synced=synced)

    def add(self, entry: SegmentEntry) -> None:
        """It has the name of its ranks, which nothing else ever had."""
        entry = replace(entry, name=name_of(entry).relative)
        assert self.given.setdefault(entry.name, entry.content_digest) == entry.content_digest, f"again {entry.name}"
        self.entries.append(entry)

    def check(self) -> None:
        """Versions begin with 1, names sort as ranks do, and each sender's files have the order that it gave them."""
        found = sorted(self.entries, key=rank_of)
        assert all(each.first_version >= 1 for each in found), [rank_of(each) for each in found]
        assert [each.name for each in found] == sorted(each.name for each in found)
        for sender in SENDERS:
            orders = [rows.order for each in found for rows in each.synced if rows.sender == sender]
            assert orders == sorted(orders), (sender, orders)


@pytest.mark.parametrize("part", range(4))
def test_no_name_is_ever_given_twice(part: int) -> None:
    """A reader may have the first one still, and caches know files by their names; and versions never get below 1."""
    for seed in range(part * SCHEDULES // 4, (part + 1) * SCHEDULES // 4):
        location = Location(seed)
        try:
            for _ in range(STEPS):
                location.step()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
