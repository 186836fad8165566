"""The states of a pull: as a table, as a function of what is known, and against a model of logs, donors and kills."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.consumers.membership.running_change import RunningChange, bits_of
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.migration.cut_listing import NOBODY, CutListing, CutListingInvalid, led_by
from headrace.consumers.migration.slot_pull import (
    LOADS_AT_ONCE,
    Pair,
    PullDecision,
    PullState,
    PullView,
    covered,
    decide_pull,
    donors_of,
    is_reported,
    pairs_of,
    slots_of_bits,
)
from headrace.consumers.store import SegmentEntry
from headrace.schemas.group_changes import BEGINNING, GroupKey, HandOverPosition
from headrace.schemas.membership_records import ChangeKind
from headrace.schemas.messages import CarriedDelete, Leadership, Load, SyncedRows, load_identity
from headrace.schemas.series import slot_of

DOCUMENT = Path(__file__).parents[3] / "docs" / "internals" / "membership.md"
TOTAL = 12
DELETE = CarriedDelete(1, 99, (("host", ("a", "b")),), None, 7)


def load(number: int, deletes: tuple[CarriedDelete, ...] = ()) -> Load:
    """A file of the cut."""
    ranks = (1, number * 10 + 1, number * 10 + 9, 0)
    return Load(NOBODY, "c.forward.n1.1@7", 2, "db", "t", 3, 1, *ranks, bytes(16), 5, 1, 2, 100, 1, deletes)


FILES = tuple(load(number, (DELETE,) if number == 1 else ()) for number in range(4))
SLOT = slot_of("db", 1, 3, TOTAL)
LISTING = CutListing(2, 7, 2, (SLOT,), TOTAL, FILES)
TAKEN = HandOverPosition(7, 1)


def test_the_states_are_documented() -> None:
    """docs/internals/membership.md has them in their order, and no other."""
    table = DOCUMENT.read_text("utf-8").split("| state of a pair | holds if | does |\n|---|---|---|\n")[1]
    assert [str(each) for each in PullState] == re.findall(r"^\| (\w[\w ]*) \|", table.split("\n\n")[0], re.MULTILINE)


@pytest.mark.parametrize(
    ("view", "state"),
    [
        (PullView(reported=True), PullState.REPORTED),
        (PullView(), PullState.WAITING),
        (PullView(listing=LISTING), PullState.WAITING),
        (PullView(reached=True), PullState.LISTING),
        (PullView(reached=True, listing=LISTING, missing=FILES), PullState.LOADING),
        (PullView(reached=True, listing=LISTING, awaited=1, settled=True), PullState.FETCHING),
        (PullView(reached=True, listing=LISTING, awaited=1, settled=False), PullState.LOADING),
        (PullView(reached=True, listing=LISTING, settled=False), PullState.LOADING),
        (PullView(reached=True, listing=LISTING, settled=True), PullState.TAKING_OVER),
        (
            PullView(reached=True, listing=LISTING, settled=True, accepted=HandOverPosition(7, 0)),
            PullState.TAKING_OVER,
        ),
        (PullView(reached=True, listing=LISTING, settled=True, accepted=TAKEN), PullState.COMPLETE),
    ],
)
def test_the_first_state_that_holds_counts(view: PullView, state: PullState) -> None:
    """Only a member that leads, and that does not wait for earlier loads, appends some."""
    assert PullDecision(state) == decide_pull(view)
    led = decide_pull(replace(view, leads=True))
    assert view.missing == led.loads
    assert () == decide_pull(replace(view, leads=True, appended=True)).loads


def test_a_leader_appends_some_loads_at_once() -> None:
    """The next ones come when these are read back."""
    many = tuple(map(load, range(LOADS_AT_ONCE + 5)))
    view = PullView(reached=True, listing=LISTING, missing=many, leads=True)
    assert many[:LOADS_AT_ONCE] == decide_pull(view).loads


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_a_pull_ends_however_often_its_members_are_killed(data: st.DataObject) -> None:
    """Loads may be lost or come twice, leaders change, members forget everything. Nobody reports too early."""
    model = Model()
    events = st.sampled_from(sorted(Model.EVENTS))
    for name in data.draw(st.lists(events, max_size=60)):
        model.happen(name, data.draw(st.integers(0, 2)))
    model.lossy = False
    for _ in range(40):
        for member in range(3):
            model.happen("seal", member)
            model.happen("take", member)
            model.happen("turn", member)
            model.happen("fetch", member)
    assert {0, 1, 2} == model.reported
    # A repeat is ignored, so each file is in the catalogue once.
    assert len(FILES) == len(model.counted)


class Model:
    """Three members of a group and one donor, without any bytes."""

    EVENTS = ("turn", "fetch", "kill", "lead", "seal", "take", "lose", "expire", "repeat")

    def __init__(self) -> None:
        self.log: list[Load] = []
        self.counted: dict[bytes, Load] = {}
        self.leader = 0
        self.sealed = False
        self.accepted = BEGINNING
        self.lossy = False
        self.listings: list[CutListing | None] = [None, None, None]
        self.appended: list[frozenset[bytes]] = [frozenset()] * 3
        self.attached: list[set[bytes]] = [set(), set(), set()]
        self.reported: set[int] = set()

    def happen(self, name: str, member: int) -> None:
        """One event at one member."""
        getattr(self, f"_{name}")(member)

    def _turn(self, member: int) -> None:
        listing = self.listings[member]
        missing = {} if listing is None else {
            key: each for key, each in listing.by_identity.items() if key not in self.counted
        }  # fmt: skip
        awaited = len(self.counted.keys() - self.attached[member])
        view = PullView(
            reported=member in self.reported,
            reached=True,
            listing=listing,
            missing=tuple(missing.values()),
            settled=True,
            awaited=awaited,
            accepted=self.accepted,
            leads=member == self.leader,
            appended=not self.appended[member].isdisjoint(missing),
        )
        decision = decide_pull(view)
        if decision.state is PullState.LISTING and self.sealed:
            self.listings[member] = LISTING
        if decision.loads:
            self.appended[member] = frozenset(map(load_identity, decision.loads))
            if not self.lossy:
                self._count(led_by(decision.loads, Leadership(1, str(member), "i")))
        if decision.state is PullState.COMPLETE:
            assert len(FILES) == len(self.attached[member])
            assert self.accepted >= TAKEN
            self.reported.add(member)

    def _count(self, loads: tuple[Load, ...]) -> None:
        for each in loads:
            self.counted.setdefault(load_identity(each), each)

    def _fetch(self, member: int) -> None:
        for identity in sorted(self.counted.keys() - self.attached[member])[:1]:
            self.attached[member].add(identity)

    def _kill(self, member: int) -> None:
        self.listings[member], self.appended[member] = None, frozenset()

    def _lead(self, member: int) -> None:
        self.leader = member

    def _seal(self, _member: int) -> None:
        self.sealed = True

    def _take(self, _member: int) -> None:
        self.accepted = TAKEN if self.accepted > BEGINNING else HandOverPosition(7, 0)

    def _lose(self, _member: int) -> None:
        self.lossy = not self.lossy

    def _expire(self, member: int) -> None:
        self.appended[member] = frozenset()

    def _repeat(self, member: int) -> None:
        if self.listings[member] is not None:
            self._count(FILES[:2])


def test_a_list_survives_the_way() -> None:
    """With its deletes; the receiver names origin and era, and the origin has the version of the cut."""
    document = LISTING.document()
    assert LISTING == CutListing.parse(document, "c.forward.n1.1", 2)
    assert TAKEN == LISTING.takeover
    assert 400 == LISTING.size_bytes


@pytest.mark.parametrize(
    "change",
    [
        {"version": "seven"},
        {"files": [{}]},
        {"files": None},
        {"slots": [SLOT + 1]},
        {"parts": 0},
        {"slots_total": 0},
    ],
)
def test_a_list_that_no_node_writes_is_refused(change: dict[str, object]) -> None:
    """Whatever came over the network, the error has a type."""
    with pytest.raises(CutListingInvalid):
        CutListing.parse(LISTING.document() | change, "c.forward.n1.1", 2)


BASE = SlotTable.create(("n1", "n2", "n3"), 2, TOTAL)


def test_pairs_follow_from_the_tables() -> None:
    """One for each former holder, once the new table counts, at every member of the new group."""
    change = RunningChange(1, "r", ChangeKind.ADD, "n4", "s", BASE, BASE.add_node("n4"))
    assert () == pairs_of(change, "n4") == pairs_of(None, "n4")
    change = replace(change, formal=True)
    group = change.table.group("n4")
    assert GroupKey("n4", 2) == pairs_of(change, "n4")[0].target
    for member in group:
        found = pairs_of(change, member)
        assert [slot for slot, _ in change.table.moved] == sorted(slot for pair in found for slot in pair.slots)
        assert {GroupKey(former, 1) for _, former in change.table.moved} == {pair.donor for pair in found}
    (other,) = set(change.table.nodes) - set(group) - {"n1"} or {"n1"}
    assert () == pairs_of(change, other)


def test_each_member_begins_with_another_donor() -> None:
    """Member number i with number i, after itself."""
    base = SlotTable.create(tuple(f"n{number}" for number in range(9)), 3, 90)
    change = RunningChange(1, "r", ChangeKind.ADD, "joiner", "s", base, base.add_node("joiner"), formal=True)
    for pair in pairs_of(change, "joiner"):
        before, found = base.group(pair.donor.group), dict[str, tuple[str, ...]]()
        for member in change.table.group("joiner"):
            found[member] = donors_of(change, pair, member)
            assert set(before) <= set(found[member])
            assert member not in before or member == found[member][0]
        if set(before).isdisjoint(found):
            assert list(before) == [order[0] for order in found.values()]


def test_a_report_counts_slot_by_slot() -> None:
    """Of this node alone."""
    change = RunningChange(1, "r", ChangeKind.ADD, "n4", "s", BASE, BASE.add_node("n4"), formal=True)
    change = change.with_received("n4", bits_of((1, 5)))
    assert is_reported(change, "n4", (1, 5))
    assert not is_reported(change, "n4", (1, 2))
    assert not is_reported(change, "n3", (1,))
    assert frozenset({0, 1, 5}) == slots_of_bits(bits_of((0, 1, 5)))


def _entry(era: int, first: int, last: int, order: str = "", *synced: SyncedRows) -> SegmentEntry:
    ranks = (era, first, last, 0)
    return SegmentEntry("x", "db", "t", 3, 1, *ranks, 5, 1, 2, 100, "", "", 1, 0, order=order, synced=synced)


def test_a_file_of_a_sync_sender_is_there_if_its_rows_are() -> None:
    """Another file may end at its version, and several files may be at it."""
    place, own = ("db", "t", 3, 1), SyncedRows("s1", "5")
    first = FILES[1].last_version
    load = replace(FILES[1], first_version=first, order="5+a", synced=(own,))
    assert not covered(load, {place: [_entry(1, 1, first), _entry(1, first, first, "6+a", own)]})
    assert not covered(load, {place: [_entry(1, 1, first, "", SyncedRows("s1", "4"), SyncedRows("s2", "9"))]})
    assert covered(load, {place: [_entry(1, 1, first, "", SyncedRows("s1", "6"))]})
    assert covered(load, {place: [_entry(1, first, first, "5+a", own)]})


def test_rows_of_a_merged_file_are_there() -> None:
    """A load whose name nobody has any more is covered by the file that it became a part of."""
    place = ("db", "t", 3, 1)
    assert covered(FILES[1], {place: [_entry(1, 1, 40)]})
    assert not covered(FILES[1], {place: [_entry(1, 12, 40)]})
    assert not covered(FILES[1], {place: [_entry(2, 1, 40)]})
    assert not covered(FILES[1], {("db", "t", 3, 2): [_entry(1, 1, 40)]})
    assert Pair(GroupKey("a", 1), GroupKey("b", 1), (1,)) < Pair(GroupKey("a", 1), GroupKey("c", 1), (0,))
