"""What `headrace sync verify` shows of a comparison."""

from __future__ import annotations

import pytest

from headrace.cli.sync_verify import _report
from headrace.consumers.sync.comparison import DayVerdict
from headrace.sync_verify import SyncComparison, Unsent
from headrace.terminal.output import Output


def test_days_that_differ_name_all_reasons(capsys: pytest.CaptureFixture[str]) -> None:
    """Files may be rejected, devices handed over, rows those of the centre, and the edge an older copy of itself: whoever
    reads one reason alone looks in vain."""
    difference = "pumps,pump=p1: 7 rows at both ends, and not all are equal"
    day = DayVerdict("plant", "pumps", "2026-05-01", 7, 7, False, (difference,))
    assert 1 == _report(Output(json_output=False), SyncComparison("u", (day,), 0, Unsent()))
    lines = capsys.readouterr().out.splitlines()
    assert f"plant.pumps 2026-05-01: {difference}" in lines
    assert lines[-1] == (
        "1 of 1 day differs, and nothing waits: the centre rejected files (headrace sync status names them), "
        "devices were handed to another sender, rows were written or deleted at the centre itself, or the edge was "
        "restored from a backup"
    )
