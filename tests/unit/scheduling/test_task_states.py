"""The states of a driver task."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from headrace.consumers.scheduling.task_states import ENDED, TaskState, Transition, after

PAGE = Path(__file__).parents[3] / "docs/internals/scheduling.md"


def documented() -> dict[tuple[str, str], str]:
    """What the table of the page has for each state and transition; empty where it has a dash."""
    heads, *rows = (
        [cell.strip(" *`") for cell in row.strip("|").split("|")]
        for row in re.findall(r"^\|.*\|$", PAGE.read_text("utf-8").partition("## States")[2], re.MULTILINE)[:7]
        if not set(row) <= set("|- ")
    )
    return {
        (row[0], transition): cell.replace("–", "")
        for row in rows
        for transition, cell in zip(heads[1:], row[1:], strict=True)
    }


@pytest.mark.parametrize("state", TaskState)
@pytest.mark.parametrize("transition", Transition)
def test_transitions_are_those_of_the_page(state: TaskState, transition: Transition) -> None:
    """Each transition leads where docs/internals/scheduling.md shows, and nowhere where it shows a dash."""
    assert documented()[state.upper(), transition] == (after(state, transition) or "").upper()


@pytest.mark.parametrize("state", sorted(ENDED))
@pytest.mark.parametrize("transition", Transition)
def test_an_end_is_final(state: TaskState, transition: Transition) -> None:
    """Nothing happens to a task that has ended."""
    assert after(state, transition) is None
