"""What `headrace ingest run` shows without a terminal."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from headrace.cli import ingest, ingest_display
from headrace.cli.ingest_display import JsonLines, ProgressLines, Refusals, describe, live_display, show_dry_run
from headrace.connectors.formats.interface import FormatOptions
from headrace.connectors.log.port import LogUnavailable
from headrace.pipeline import dry_run
from headrace.pipeline.dry_run import DryRun, InferredTable
from headrace.pipeline.ingest_progress import REASONS_MAX, Counts, IngestProgress, IngestState
from headrace.pipeline.job import IngestJob
from headrace.terminal.output import Output

ROW = {"site": "north", "time": 1_767_225_600_500_000_000, "flow": float("nan")}


def test_a_line_is_logged_every_ten_seconds_also_without_news() -> None:
    """Rows, rate, lag and refused lines; silence would look like a hang."""
    now_s, lines = [0.0], list[str]()
    shown = ProgressLines("raw", lines.append, clock_s=lambda: now_s[0])
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
    assert describe(IngestProgress(Counts(rows=1, points=2), 0, -1, -1), 0, 0).startswith("1 row, 2 points, ")
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


def test_with_json_every_line_is_an_object(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Remarks, refusals and progress; a program that reads stderr line by line needs no other parser."""
    monkeypatch.setattr(ingest_display, "LINE_INTERVAL_S", 0.0)
    output = JsonLines(json_output=True)
    output.note("starting Spark")
    with live_display("raw", output) as show:
        show(
            IngestProgress(
                Counts(rows=5, points=10, rejected=2, reasons={"no time": 2}), 1, 7, -1, state=IngestState.RUNNING
            )
        )
        monkeypatch.setattr(ingest_display, "LINE_INTERVAL_S", 10.0)
        show(IngestProgress(Counts(rows=5, points=10, rejected=3, reasons={"no time": 3}), 1, 7, -1))
    printed = capsys.readouterr()
    assert "" == printed.out
    lines = [json.loads(line) for line in printed.err.splitlines()]
    assert [["note"], ["refused"], ["progress"], ["progress"], ["refused"]] == [list(line) for line in lines]
    assert [{"lines": 2, "reason": "no time"}, {"lines": 3, "reason": "no time"}] == [
        line["refused"] for line in lines if "refused" in line
    ]
    progress = lines[2]["progress"]
    assert ("raw", "running", 5, 10, 2) == tuple(
        progress[name] for name in ("topic", "state", "rows", "points", "rejected")
    )
    assert (7, -1) == (progress["lag_records"], progress["lag_seconds"])


def test_reasons_add_up_and_are_limited() -> None:
    """Counts of one reason are added; a file of noise does not make the driver keep all of its texts."""
    total = Counts(reasons={"a": 1}) + Counts(reasons={"a": 2, "b": 1})
    assert {"a": 3, "b": 1} == total.reasons
    for number in range(3 * REASONS_MAX):
        total += Counts(rejected=1, reasons={f"reason {number}": 1})
    assert (REASONS_MAX, 3 * REASONS_MAX, 3) == (len(total.reasons), total.rejected, total.reasons["a"])


def test_a_dry_run_shows_times_to_people_and_json_to_programs(capsys: pytest.CaptureFixture[str]) -> None:
    """A time in a wrong unit is seen at once; NaN, which is no JSON, is null."""
    table = InferredTable("pumps", ("site",), (("flow", "float64"),), known=False, rows=1, first=({**ROW},))
    job = IngestJob("b:1", "c", "plant.raw", "plant", "json", FormatOptions())
    found = DryRun(1, [table], 1, {"no time": 1}, ["siet"], 1)
    show_dry_run(job, found, Output())
    shown = capsys.readouterr().out
    assert "2026-01-01T00:00:00.5Z" in shown
    assert ["1 line refused: no time", "no row has 'siet': look for a misspelt name"] == shown.splitlines()[-3:-1]
    assert "1 row without a time" in shown.splitlines()[-1]
    show_dry_run(job, found, Output(json_output=True))
    document = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert [{**ROW, "flow": None}] == document["tables"][0]["first"]
    assert (["siet"], 1) == (document["absent"], document["untimed"])


def test_a_run_warns_of_names_that_no_row_has(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Values of a misspelt tag became a field, and rows that differ in it alone replaced each other without a word."""
    sampled = list[int]()

    def first(_job: IngestJob, messages_max: int) -> DryRun:
        sampled.append(messages_max)
        return DryRun(messages_max, absent=("siet",))

    monkeypatch.setattr(dry_run, "dry_run", first)
    output = Output(json_output=False)
    job = IngestJob("localhost:1", "c", "raw", "plant", "json", FormatOptions(table="t", tags=("siet",)))
    ingest._note_absent(job, output)
    text = "warning: in the first 100 messages no row has 'siet': look for a misspelt name\n"
    assert (text, [100]) == (capsys.readouterr().err, sampled)
    # Line protocol names its own.
    ingest._note_absent(replace(job, format="influx", options=FormatOptions()), output)
    assert [100] == sampled

    def silent(_job: IngestJob, _messages_max: int) -> DryRun:
        raise LogUnavailable("Kafka does not answer", retriable=True)

    # The run itself waits for it, or names it.
    monkeypatch.setattr(dry_run, "dry_run", silent)
    ingest._note_absent(job, output)
    assert "" == capsys.readouterr().err
