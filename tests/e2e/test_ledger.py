"""The check of a fault run detects every kind of violation: a check that cannot fail proves nothing."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.e2e.ledger import Entry, Expectation, Outcome, rows_of

WRITES = 30


def entries() -> list[Entry]:
    """Consecutive writes of one writer; every fifth of unknown outcome, every seventh failed."""
    rng = random.Random(3)
    written = []
    for number in range(1, WRITES + 1):
        outcome = Outcome.FAILED if number % 7 == 0 else Outcome.UNKNOWN if number % 5 == 0 else Outcome.ACKNOWLEDGED
        written.append(Entry(number, 0, rows_of(number, 0, rng), 2, outcome, float(number), number + 0.5))
    return written


def applied(writes: list[Entry]) -> pa.Table:
    """The rows of a node after these writes; a later row replaces an earlier one."""
    newest: dict[tuple[str, int], dict[str, object]] = {}
    for entry in writes:
        for row in entry.rows.to_pylist():
            newest[row["pump"], row["time"]] = row
    return pa.Table.from_pylist(list(newest.values()))


def halves(rows: pa.Table) -> list[pa.Table]:
    """Two messages for each write: the series below and above the middle."""
    lower = pc.less(rows.column("pump"), "w0p5")
    return [rows.filter(lower), rows.filter(pc.invert(lower))]


@pytest.fixture
def expectation() -> Expectation:
    """The expectation after `entries`."""
    return Expectation(entries(), halves)


def without(rows: pa.Table, number: int, count: int) -> pa.Table:
    """The rows without the first `count` of a write."""
    found = [index for index, write in enumerate(rows.column("write").to_pylist()) if write == number][:count]
    return rows.take([index for index in range(rows.num_rows) if index not in found])


@pytest.mark.parametrize("unknown_present", [True, False])
def test_rows_of_unknown_outcome_may_be_present_or_absent(expectation: Expectation, unknown_present: bool) -> None:
    """Writes of unknown outcome may be present or absent."""
    present = [Outcome.ACKNOWLEDGED, Outcome.UNKNOWN] if unknown_present else [Outcome.ACKNOWLEDGED]
    assert [] == expectation.faults_of(applied([entry for entry in entries() if entry.outcome in present]))


def correct_rows() -> pa.Table:
    """The rows of a correct node."""
    return applied([entry for entry in entries() if entry.outcome is not Outcome.FAILED])


def changed(column: str, value: object) -> pa.Table:
    """The rows of a correct node except for one value."""
    rows = correct_rows().to_pylist()
    rows[-1][column] = value
    return pa.Table.from_pylist(rows)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (without(correct_rows(), WRITES - 1, 1), "1 acknowledged and lost"),
        (pa.concat_tables([correct_rows(), correct_rows().slice(0, 2)]), "there twice: 2 rows"),
        (changed("value", 1), "1 there with another value"),
        (changed("write", 7), "1 there that nobody wrote, or that failed"),
        (changed("write", 999), "1 there that nobody wrote, or that failed"),
        (changed("pump", "unknown"), "1 there that nobody wrote, or that failed"),
        (without(correct_rows(), WRITES - 5, 1), "there without the rest of their message"),
        (applied([entry for entry in entries() if entry.number < WRITES - 5]), "acknowledged and lost"),
        (applied(entries()), "there that nobody wrote, or that failed"),
    ],
)
def test_every_violation_is_reported(expectation: Expectation, found: pa.Table, expected: str) -> None:
    """Lost, duplicate, changed, foreign, failed or torn rows each have their line, with an example."""
    lines = expectation.faults_of(found)
    assert any(expected in line for line in lines), lines


def test_an_older_row_in_place_of_an_acknowledged_one_is_a_loss(expectation: Expectation) -> None:
    """A row that an acknowledged write has replaced must not reappear."""
    acknowledged = [entry for entry in entries() if entry.outcome is Outcome.ACKNOWLEDGED]
    lines = expectation.faults_of(applied(acknowledged[::-1]))
    assert any("acknowledged and lost" in line for line in lines), lines
