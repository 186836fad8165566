"""What `headrace ingest run` shows without a terminal."""

from __future__ import annotations

from headrace.cli.ingest_display import ProgressLines, Refusals, describe
from headrace.pipeline.ingest_progress import REASONS_MAX, Counts, IngestProgress, IngestState


def test_a_line_is_logged_every_ten_seconds_also_without_news() -> None:
    """Rows, rate, lag and refused lines; silence would look like a hang."""
    now_s, lines = [0.0], list[str]()
    shown = ProgressLines("raw", lines.append, lambda: now_s[0])
    for second in range(31):
        now_s[0] = float(second)
        shown.show(IngestProgress(Counts(rows=100 * second, points=200 * second, rejected=1), 1, 7, 2.4))
    assert 3 == len(lines)
    assert "raw: 1.0 k rows, 2.0 k points, 100 rows/s, 0.0 MB/s, lag 7 records, 2 s, 1 line refused" == lines[0]
    now_s[0] = 40.0
    shown.show(IngestProgress(Counts(rows=3_000), 1, 0, 0.0))
    assert 4 == len(lines)


def test_a_lag_that_is_not_known_is_unknown() -> None:
    """Never a negative number of records or seconds; what else than running the run does is named."""
    assert "lag unknown," in describe(IngestProgress(Counts(), 0, -1, -1), 0, 0)
    assert "lag 1 record, unknown s," in describe(IngestProgress(Counts(), 0, 1, -1), 0, 0)
    waiting = describe(IngestProgress(Counts(), 0, -1, -1, state=IngestState.WAITING), 0, 0)
    assert waiting.endswith("0 lines refused, waiting")


def test_each_reason_is_shown_when_it_occurs_first() -> None:
    """With the lines that had it so far; never twice."""
    lines = list[str]()
    refusals = Refusals(lines.append)
    first = Counts(rejected=2, reasons={"no time": 2})
    refusals.show(first)
    refusals.show(first + Counts(rejected=4, reasons={"no time": 3, "no field": 1}))
    assert ["2 lines refused: no time", "1 line refused: no field"] == lines
    refusals.show_totals()
    assert ["5 lines refused in all: no time"] == lines[2:]


def test_reasons_add_up_and_are_limited() -> None:
    """Counts of one reason are added; a file of noise does not make the driver keep all of its texts."""
    total = Counts(reasons={"a": 1}) + Counts(reasons={"a": 2, "b": 1})
    assert {"a": 3, "b": 1} == total.reasons
    for number in range(3 * REASONS_MAX):
        total += Counts(rejected=1, reasons={f"reason {number}": 1})
    assert (REASONS_MAX, 3 * REASONS_MAX, 3) == (len(total.reasons), total.rejected, total.reasons["a"])
