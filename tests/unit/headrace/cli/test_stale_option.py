"""`headrace query --stale`: what is accepted, and how the age of an answer is shown."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pytest

from headrace.cli.stale import StaleAnswer
from headrace.schemas.durations import DURATION_S_MAX, DurationInvalid, age_text, duration_s
from headrace.terminal.output import Output

MOMENT = datetime(2026, 1, 2, 3, 4, 5, 678_900, UTC)


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ("60s", 60),
        ("1h30m", 5_400),
        ("250ms", 0.25),
        ("1.5m", 90),
        (" 5m ", 300),
        ("60", 60),
        (0, 0),
        (2.5, 2.5),
        (timedelta(minutes=2), 120),
        ("366d", DURATION_S_MAX),
    ],
)
def test_a_duration_is_a_text_a_number_or_a_timedelta(given: float | str | timedelta, seconds: float) -> None:
    """Each form gives seconds."""
    assert seconds == duration_s(given)


@pytest.mark.parametrize(
    "given",
    ["", "60x", "s", "-5s", "5 m", "1e3", "٥s", "367d", -1, float("nan"), float("inf"), True, None, [1], 31_622_401],
)
def test_what_is_no_duration_is_refused_with_examples(given: object) -> None:
    """Negative, endless, longer than a year, or of another type."""
    with pytest.raises(DurationInvalid, match="is not a duration") as refused:
        duration_s(given)  # type: ignore[arg-type]
    assert "60s" in refused.value.action
    assert 2 == refused.value.exit_code


def test_an_age_has_one_unit() -> None:
    """Tenths only where they matter."""
    shown = [age_text(seconds) for seconds in (0.04, 9.94, 10, 599, 600, 7_199, 7_200, 90_000)]
    assert ["0.0 s", "9.9 s", "10 s", "599 s", "10 min", "120 min", "2.0 h", "25.0 h"] == shown


def test_json_has_one_shape_when_an_age_was_allowed() -> None:
    """A script finds `as_of` and `rows` in a current answer too; without --stale the rows are as ever."""
    rows = [b'[{"a":1},\n', b'{"a":2}]\n']
    assert [{"a": 1}, {"a": 2}] == json.loads(b"".join(StaleAnswer(None).document(iter(rows))))
    allowed = StaleAnswer("5m")
    expected: dict[str, object] = {"as_of": None, "rows": [{"a": 1}, {"a": 2}]}
    assert expected == json.loads(b"".join(allowed.document(iter(rows))))
    allowed.note(MOMENT)
    expected["as_of"] = "2026-01-02T03:04:05.678Z"
    document = b"".join(allowed.document(iter(rows)))
    assert expected == json.loads(document)
    # As of every command with --json that prints an object.
    assert (1, b"\n") == (document.count(b"\n"), document[-1:])


def test_stderr_has_one_line_for_an_answer_that_is_not_current(capsys: pytest.CaptureFixture[str]) -> None:
    """Stdout has the rows alone; a current answer needs no remark."""
    answer = StaleAnswer("5m")
    answer.show(Output())
    assert ("", "") == capsys.readouterr()
    answer.note(MOMENT)
    answer.show(Output())
    out, err = capsys.readouterr()
    assert ("", 1) == (out, err.count("\n"))
    assert "everything up to 2026-01-02T03:04:05.678Z, " in err
    answer.show(Output(json_output=True))
    assert ("", "") == capsys.readouterr()
    by_setting = StaleAnswer(None)
    by_setting.note(MOMENT)
    by_setting.show(Output(json_output=True))
    assert {"as_of": "2026-01-02T03:04:05.678Z"} == json.loads(capsys.readouterr().err)
