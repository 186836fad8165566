"""The progress bar in terminals of different widths."""

from __future__ import annotations

import pytest

from headrace.terminal.progress_bar import progress_bar


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
