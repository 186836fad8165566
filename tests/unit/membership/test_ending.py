"""What a member of a group that ended does: nothing that was acknowledged goes with its topic."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from headrace.consumers.membership.ending import Ending, EndingView, all_settled, decide_ending
from headrace.consumers.membership.slot_table import SlotTable
from tests.unit.statuses import STATUS

DOCUMENT = Path(__file__).resolve().parents[3] / "docs/internals/membership.md"


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (EndingView(acts=False, end=9, applied=9, due=False, kept=True), Ending.FOLLOWING),
        # A late writer may never pause: records that are due do not keep the topic open.
        (EndingView(acts=True, end=None, applied=3, due=True, kept=False), Ending.CLOSING),
        (EndingView(acts=True, end=None, applied=9, due=False, kept=True), Ending.CLOSING),
        (EndingView(acts=True, end=9, applied=8, due=False, kept=True), Ending.DRAINING),
        (EndingView(acts=True, end=9, applied=9, due=True, kept=True), Ending.HANDING_OVER),
        (EndingView(acts=True, end=9, applied=9, due=False, kept=False), Ending.KEEPING),
        (EndingView(acts=True, end=9, applied=9, due=False, kept=True), Ending.DELETING),
    ],
)
def test_each_situation(view: EndingView, expected: Ending) -> None:
    """The first that holds."""
    assert expected is decide_ending(view)


def test_nothing_is_deleted_early() -> None:
    """Only what is closed, drained, handed over and kept for a while goes, and only by a member that acts."""
    truth = (False, True)
    for acts, end, applied, due, kept in itertools.product(truth, (None, 5), (4, 5, 6), truth, truth):
        view = EndingView(acts, end, applied, due, kept)
        deletes = acts and end is not None and applied >= end and not due and kept
        assert deletes is (decide_ending(view) is Ending.DELETING), view


@dataclass
class Member:
    """What one member has read of the log, and the end that it has seen as final."""

    applied: int = 0
    end: int | None = None


@dataclass
class Topic:
    """The log of an ended group, and how far another group has accepted it."""

    closed: bool = False
    deleted: bool = False
    end: int = 0
    accepted: int = 0


def test_no_acknowledged_record_is_lost() -> None:
    """Two members act in every order with a writer that never pauses, and read in between. The topic goes, and all
    that it took was accepted.
    """
    for order in itertools.product(("write", "read a", "read b", "act a", "act b"), repeat=6):
        topic = Topic()
        members = {"a": Member(), "b": Member()}
        for step in (*order, *(("write", "act a", "read a") * 4)):
            if not topic.deleted:
                run_step(topic, members.get(step[-1]), step)
        assert (True, topic.end) == (topic.deleted, topic.accepted), order


def run_step(topic: Topic, member: Member | None, step: str) -> None:
    """A write, or what a member reads or does."""
    if member is None:
        topic.end += not topic.closed
    elif step.startswith("read"):
        member.applied = topic.end
    else:
        act(topic, member)


def act(topic: Topic, member: Member) -> None:
    """One step of a member that acts."""
    ending = decide_ending(EndingView(True, member.end, member.applied, topic.accepted < member.applied, True))
    if ending is Ending.CLOSING:
        topic.closed, member.end = True, topic.end
    elif ending is Ending.HANDING_OVER:
        topic.accepted = max(topic.accepted, member.applied)
    elif ending is Ending.DELETING:
        topic.deleted = True


def test_the_situations_are_documented() -> None:
    """docs/internals/membership.md has them in their order, and no other."""
    table = DOCUMENT.read_text("utf-8").split("| situation | holds if | does |\n|---|---|---|\n")[1].split("\n\n")[0]
    assert [str(each) for each in Ending] == re.findall(r"^\| (\w[\w ]*) \|", table, re.MULTILINE)


def test_a_topic_is_closed_only_when_every_group_has_the_new_table() -> None:
    """Before its second phase a group may have late records for one that ends. One member that shows it is enough."""
    table = SlotTable.create(("n1", "n2", "n3"), 2, 8, version=4)
    shown = [replace(STATUS, group=group, node=node, settled=4) for group, node in (("n1", "n2"), ("n2", "n2"))]
    behind = replace(STATUS, group="n3", node="n3", settled=3)
    assert not all_settled(table, shown)
    assert not all_settled(table, [*shown, behind])
    assert all_settled(table, [*shown, behind, replace(behind, node="n1", settled=4)])
