"""The state machine of a group's health: the table of docs/internals/replication.md, and what holds in every state."""

from __future__ import annotations

import re
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.replication.group_health import (
    ASPECT,
    INITIAL,
    PRECEDENCE,
    REFUSES,
    TRANSITIONS,
    Aspect,
    Event,
    GroupHealth,
    IllegalTransition,
    State,
    Use,
)
from headrace.consumers.replication.group_state import LogBase
from headrace.consumers.replication.health import Progress

DOCUMENT = Path(__file__).parents[3] / "docs" / "internals" / "replication.md"


class Copying:
    """A recovery that shows one text."""

    bytes_done = bytes_total = 0
    reason = "recovering files from n2"

    def progress(self) -> Progress:
        """No figures."""
        return Progress("files")


def rows(header: str) -> list[list[str]]:
    """The cells of a table of the document."""
    lines = DOCUMENT.read_text().splitlines()
    found = []
    for line in lines[lines.index(header) + 2 :]:
        if not line.startswith("|"):
            break
        found.append([cell.strip() for cell in line.strip("|").split("|")])
    return found


STATES = rows("| aspect | state | meaning | refuses | events |")


def names(cell: str) -> list[str]:
    """The names in a cell; a dash is none."""
    return [] if cell == "–" else cell.split(", ")


def health() -> GroupHealth:
    """The health of a group that was just opened."""
    return GroupHealth(threading.Condition())


def test_the_table_is_the_code() -> None:
    """The documented states, refusals and transitions are those of the code, all of them and no others."""
    table = {State(row[1]): row for row in STATES}
    assert list(table) == list(State)
    assert {state: Aspect(row[0]) for state, row in table.items()} == ASPECT
    assert {state: {Use(use) for use in names(row[3])} for state, row in table.items()} == REFUSES
    steps = {state: dict(step.split(" → ") for step in names(row[4])) for state, row in table.items()}
    assert {state: {Event(event): State(to) for event, to in found.items()} for state, found in steps.items()} == (
        TRANSITIONS
    )


def test_the_first_state_of_each_aspect_is_the_first_in_the_table() -> None:
    """A group begins in the states that the table names first."""
    assert {Aspect(row[0]): State(row[1]) for row in reversed(STATES)} == INITIAL


def test_the_documented_order_is_that_of_the_reasons() -> None:
    """The page lists the states in the order in which their reasons are shown; it has every state with a reason."""
    found = re.search(r"in this order: (.+?)\.\n", DOCUMENT.read_text(), re.DOTALL)
    assert found is not None
    assert tuple(State(name) for name in re.findall(r"`(\w+)`", found[1])) == PRECEDENCE
    assert set(PRECEDENCE) == set(State) - set(INITIAL.values())


def test_every_event_has_a_reporter() -> None:
    """The second table names every event once."""
    reported = [name for row in rows("| event | who reports it |") for name in names(row[0])]
    assert sorted(reported) == sorted(Event)


def test_transitions_stay_within_their_aspect_and_every_state_is_reached() -> None:
    """No event moves an aspect into a state of another one, and no state is without a way in."""
    reached = {to for steps in TRANSITIONS.values() for to in steps.values()}
    assert [] == [
        (state, to) for state, steps in TRANSITIONS.items() for to in steps.values() if ASPECT[to] is not ASPECT[state]
    ]
    assert set(State) - set(INITIAL.values()) <= reached


def test_a_state_with_a_fault_refuses_reads_and_leadership() -> None:
    """Whatever is wrong with a group, it neither serves nor leads; a group without a fault refuses nothing."""
    for state, uses in REFUSES.items():
        assert uses >= {Use.READS, Use.LEADERSHIP} if state in PRECEDENCE else uses == frozenset(), state


@pytest.mark.parametrize("event", [Event.RECOVER, Event.RESUME, Event.JOIN])
def test_wrong_data_neither_recovers_nor_follows_before_its_mark_is_durable(event: Event) -> None:
    """An illegal event raises, and changes no aspect."""
    group = health()
    group.report(Event.TRIM, "the log begins at 10")
    group.mark("a file has changed")
    before = group.conditions
    with pytest.raises(IllegalTransition, match="illegal while data is wrong"):
        group.report(event)
    assert group.conditions is before


def test_the_way_of_wrong_data() -> None:
    """Marked, not recorded for lack of space, recorded, under recovery; the texts say so."""
    group = health()
    assert group.mark("a file has changed", frozenset({"n2"}))
    assert not group.mark("another file has changed")
    group.note_unrecorded("no space left on device")
    assert group.reason == "wrong data: a file has changed; it recovers once that is recorded: no space left on device"
    assert (State.WRONG, frozenset({"n2"})) == (group.state, group.conditions.trusted)
    assert all(group.refuses(use) for use in Use)
    group.report(Event.RECORD)
    assert (State.CONDEMNED, "a file has changed") == (group.state, group.reason)
    group.recover("a file has changed", Copying())
    assert (State.RECOVERING, "recovering files from n2") == (group.state, group.reason)
    with pytest.raises(IllegalTransition):
        group.report(Event.RESUME)
    assert group.is_wrong


def test_conditions_of_several_aspects_hold_at_once_and_end_one_by_one() -> None:
    """A later cause of higher precedence hides an earlier one and does not end it."""
    group = health()
    group.report(Event.DISPUTE, "members differ")
    group.report(Event.TRIM, "the log begins at 10")
    group.recover("the log begins at 10", Copying())
    assert group.reason == "recovering files from n2"
    group.report(Event.RESUME)
    assert (State.DISPUTED, "members differ", None) == (group.state, group.reason, group.conditions.recovery)
    group.report(Event.STOP, "record 7")
    group.report(Event.STOP, "record 8")
    assert "record 7" == group.reason
    group.report(Event.AGREE)
    assert "record 7" == group.reason


def test_a_change_wakes_who_waits_for_it() -> None:
    """A report by one thread wakes another one that waits on the same condition."""
    changed = threading.Condition()
    group, woken = GroupHealth(changed), threading.Event()

    def wait() -> None:
        with changed:
            changed.wait_for(lambda: group.holds(State.STOPPED))
        woken.set()

    waiting = threading.Thread(target=wait, daemon=True)
    waiting.start()
    group.report(Event.STOP, "record 7")
    assert woken.wait(60.0)
    waiting.join(60.0)


@given(events=st.lists(st.sampled_from(Event), max_size=30))
def test_any_order_of_events_keeps_the_rules(events: list[Event]) -> None:
    """After any events: one state an aspect, a text exactly while something is wrong, and no way back from wrong data."""
    group = health()
    for number, event in enumerate(events):
        before = group.conditions
        try:
            if event is Event.RECOVER:
                group.recover(f"cause {number}", Copying())
            else:
                group.report(event, f"cause {number}" if number % 3 else "")
        except IllegalTransition:
            assert group.conditions is before
        states = group.conditions.states
        assert all(ASPECT[state] is aspect for aspect, state in states.items())
        assert bool(group.reason) == (group.state is not None) == group.refuses(Use.READS)
        assert set(group.conditions.causes) <= {aspect for aspect in Aspect if states[aspect] is not INITIAL[aspect]}
        assert (group.conditions.recovery is not None) == (states[Aspect.RECOVERY] is not State.UNNEEDED)
        if before.states[Aspect.DATA] in (State.WRONG, State.CONDEMNED):
            assert group.is_wrong


def test_an_undecided_dispute_ends_at_an_accepted_gap() -> None:
    """The log was to rebuild the data, and cannot: any member in sync is a source. Members found right stay so."""
    for trusted, after in ((frozenset(), None), (frozenset({"n2"}), {"n2"}), (None, None)):
        for report in (GroupHealth.mark, GroupHealth.damage):
            group = health()
            group.mark("diverged", trusted)
            group.report(Event.RECORD)
            group.mark("a file has changed")
            assert trusted == group.conditions.trusted
            report(group, "the log lost records", gap=LogBase("t", 1, 2))
            assert after == group.conditions.trusted
