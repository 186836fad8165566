"""The lines that a person sees while a change runs."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.cli.change_display import NOTE_INTERVAL_S, ProgressView, phase_line, progress_line
from headrace.terminal.output import Output

CHANGE = {
    "version": 2,
    "phase": "migrating",
    "groups_done": 1,
    "groups_total": 1,
    "slots_done": 1_250,
    "slots_total": 5_000,
    "eta_s": 30,
    "waiting_for": ["node n4: 9 slots of group n4, the disk is full", "node n5: 9 slots of group n4"],
}


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "phase migrating: table 2 counts, 5,000 slots to move"),
        ({"slots_total": 1}, "phase migrating: table 2 counts, 1 slot to move"),
        ({"phase": "pre"}, "phase pre: 1 group prepares for the new members"),
        ({"phase": "pre", "groups_total": 5}, "phase pre: 5 groups prepare for the new members"),
        ({"phase": "formal", "groups_total": 5}, "phase formal: 5 groups ready, table 2 is due"),
    ],
)
def test_a_phase_has_a_line(changed: dict[str, Any], expected: str) -> None:
    """With what there is to do in it."""
    assert expected == phase_line({**CHANGE, **changed})


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        (
            {},
            "1,250 of 5,000 slots done, about 30 s left; waits for node n4: 9 slots of group n4, the disk is full, "
            "and for 1 more",
        ),
        ({"eta_s": -1, "waiting_for": []}, "1,250 of 5,000 slots done"),
        (
            {"phase": "pre", "eta_s": -1, "groups_total": 3, "waiting_for": ["group n2"]},
            "1 of 3 groups done; waits for group n2",
        ),
        ({"eta_s": -1, "waiting_for": ["x" * 400]}, f"1,250 of 5,000 slots done; waits for {'x' * 119}…"),
    ],
)
def test_a_phase_that_lasts_names_what_it_waits_for(changed: dict[str, Any], expected: str) -> None:
    """And the time that is left, where it is known; a long cause is cut."""
    assert expected == progress_line({**CHANGE, **changed})


def test_lines_come_with_phases_and_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    """Each look advances the bar; with --json nobody reads lines."""
    now_s, advanced = [100.0], list[tuple[int, int | None]]()
    for output in (Output(), Output(json_output=True)):
        view = ProgressView(output, lambda count, total=None: advanced.append((count, total)), lambda: now_s[0])
        for later_s, done in ((0.0, 0), (1.0, 10), (NOTE_INTERVAL_S, 10), (1.0, 30)):
            now_s[0] += later_s
            view.show({**CHANGE, "slots_done": done, "waiting_for": []})
        view.end(5_000)
    assert [(0, 5_000), (10, 5_000), (0, 5_000), (20, 5_000), (4_970, 5_000)] * 2 == advanced
    lines = ["phase migrating: table 2 counts, 5,000 slots to move", "10 of 5,000 slots done, about 30 s left"]
    assert lines == capsys.readouterr().err.splitlines()
