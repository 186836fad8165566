"""What a node shows of the data that it pulls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from headrace.consumers.migration.pull import Pull
from headrace.consumers.migration.pull_figures import figures_of
from headrace.consumers.migration.slot_pull import Pair, PullDecision, PullState
from headrace.schemas.group_changes import GroupKey


def test_a_new_group_names_a_few_of_its_pairs() -> None:
    """It takes slots from every group: one line cannot name them all. Those with a cause are first."""
    target, counts = GroupKey("n9", 2), SimpleNamespace(files=0, errors=0)
    pulls = [Pull(Pair(target, GroupKey(f"n{number}", 1), (number,)), ()) for number in range(1, 9)]
    last: Any = pulls[-1]
    last.decision, last.refusal = PullDecision(PullState.LISTING), "the donor is behind"
    reason = figures_of(pulls, {}, 0.0, counts).reasons["n9"]
    assert reason.startswith("pulling 1 slots of group n8: listing; the donor is behind; pulling 1 slots of group n1:")
    assert reason.endswith("; and 5 more")
    assert "; and" not in figures_of(pulls[:3], {}, 0.0, counts).reasons["n9"]
