"""What a member of a group that ended does: nothing that was acknowledged goes with its topic."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from headrace.consumers.membership.ending import Ending, EndingView, decide_ending

DOCUMENT = Path(__file__).resolve().parents[3] / "docs/internals/membership.md"


@pytest.mark.parametrize(
    ("view", "expected"),
    [
        (EndingView(False, False, True, 9, 9), Ending.FOLLOWING),
        (EndingView(True, True, False, None, 3), Ending.HANDING_OVER),
        (EndingView(True, True, True, None, 3), Ending.REOPENING),
        (EndingView(True, True, True, 9, 9), Ending.REOPENING),
        (EndingView(True, False, False, None, 9), Ending.CLOSING),
        # Another member closed it; this one has not seen a refusal.
        (EndingView(True, False, True, None, 9), Ending.CLOSING),
        # Another member opened it again.
        (EndingView(True, False, False, 9, 9), Ending.CLOSING),
        (EndingView(True, False, True, 9, 8), Ending.DRAINING),
        (EndingView(True, False, True, 9, 9), Ending.DELETING),
    ],
)
def test_each_situation(view: EndingView, expected: Ending) -> None:
    """The first that holds."""
    assert expected is decide_ending(view)


def test_nothing_is_deleted_early() -> None:
    """Only what is closed, drained and handed over goes, and only by the member that acts."""
    flags = itertools.product((False, True), repeat=3)
    for (acts, due, closed), end, applied in itertools.product(flags, (None, 5), (4, 5, 6)):
        view = EndingView(acts, due, closed, end, applied)
        deletes = acts and not due and closed and end is not None and applied >= end
        assert deletes is (decide_ending(view) is Ending.DELETING), view


class Topic:
    """The log of an ended group: its end, and how far another group has accepted it."""

    def __init__(self) -> None:
        self.closed, self.deleted, self.end, self.accepted = False, False, 0, 0


def test_no_acknowledged_record_is_lost() -> None:
    """Two members step in every order with a writer, which then stops: the topic goes, and all it took was accepted."""
    for order in itertools.product("wab", repeat=8):
        topic = ended(order)
        assert (True, topic.end) == (topic.deleted, topic.accepted), order


def ended(order: tuple[str, ...]) -> Topic:
    """The topic after the steps of an order and some more of the members."""
    topic, ends = Topic(), dict[str, int | None]({"a": None, "b": None})
    for step in (*order, *"abababababab"):
        if topic.deleted:
            break
        if step == "w":
            topic.end += not topic.closed
            continue
        # Each has applied all; the leader may hand over only while the topic takes its records.
        ending = decide_ending(EndingView(True, topic.accepted < topic.end, topic.closed, ends[step], topic.end))
        if ending is Ending.CLOSING:
            topic.closed, ends[step] = True, topic.end
        elif ending is Ending.REOPENING:
            topic.closed, ends[step] = False, None
        elif ending is Ending.HANDING_OVER:
            topic.accepted = topic.end
        elif ending is Ending.DELETING:
            topic.deleted = ends[step] == topic.end
            ends[step] = None
    return topic


def test_the_situations_are_documented() -> None:
    """docs/internals/membership.md has them in their order, and no other."""
    table = DOCUMENT.read_text("utf-8").split("| situation | holds if | does |\n|---|---|---|\n")[1].split("\n\n")[0]
    assert [str(each) for each in Ending] == re.findall(r"^\| (\w[\w ]*) \|", table, re.MULTILINE)
