"""The progress bar in terminals of different widths."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.terminal.progress_bar import RateColumn, progress_bar


@pytest.mark.parametrize(
    ("unit", "text"), [("slots", "2.5 k of 2.5 k slots, 2.0 k/s"), ("B", "2.5 KB of 2.5 KB, 2.0 KB/s")]
)
def test_a_size_has_the_units_of_sizes(unit: str, text: str) -> None:
    """And a count its own."""
    task: Any = SimpleNamespace(completed=2_500, total=2_500, speed=None, finished_speed=2_000.0)
    assert text == RateColumn(unit).render(task).plain


@pytest.mark.parametrize(("width", "bar"), [(80, True), (40, False)])
def test_a_narrow_terminal_gets_one_line_of_numbers(
    width: int, bar: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The numbers are in one line in both."""
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with progress_bar("moving", 2_500, "slots") as advance:
        advance(2_500)
    shown = capsys.readouterr().err
    assert "2.5 k of 2.5 k slots" in shown
    assert bar == ("━" in shown)
