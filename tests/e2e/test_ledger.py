"""What reads a fault run back notices whatever can be wrong: a check that cannot fail shows nothing."""

from __future__ import annotations

import random

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from tests.e2e.ledger import Entry, Expectation, Told, rows_of

WRITES = 30


def entries() -> list[Entry]:
    """Writes of one writer, one after the other; every fifth of unknown state, every seventh failed."""
    chosen = random.Random(3)
    made = []
    for number in range(1, WRITES + 1):
        told = Told.FAILED if number % 7 == 0 else Told.UNKNOWN if number % 5 == 0 else Told.ACKNOWLEDGED
        made.append(Entry(number, 0, rows_of(number, 0, chosen), 2, told, float(number), number + 0.5))
    return made


def applied(writes: list[Entry]) -> pa.Table:
    """What a node holds after these writes, the later above the earlier."""
    newest: dict[tuple[str, int], dict[str, object]] = {}
    for entry in writes:
        for row in entry.rows.to_pylist():
            newest[row["pump"], row["time"]] = row
    return pa.Table.from_pylist(list(newest.values()))


def halves(rows: pa.Table) -> list[pa.Table]:
    """Two messages a write: the series below and above the middle."""
    lower = pc.less(rows.column("pump"), "w0p5")
    return [rows.filter(lower), rows.filter(pc.invert(lower))]


@pytest.fixture
def expectation() -> Expectation:
    """What must be held after `entries`."""
    return Expectation(entries(), halves)


def without(rows: pa.Table, number: int, count: int) -> pa.Table:
    """Rows less the first so many of a write."""
    found = [index for index, write in enumerate(rows.column("write").to_pylist()) if write == number][:count]
    return rows.take([index for index in range(rows.num_rows) if index not in found])


@pytest.mark.parametrize("unknown_there", [True, False])
def test_what_was_written_is_right_with_and_without_what_is_unknown(
    expectation: Expectation, unknown_there: bool
) -> None:
    """Writes of unknown state may be there or not."""
    there = [Told.ACKNOWLEDGED, Told.UNKNOWN] if unknown_there else [Told.ACKNOWLEDGED]
    assert [] == expectation.faults_of(applied([entry for entry in entries() if entry.told in there]))


def right() -> pa.Table:
    """A node as it should be."""
    return applied([entry for entry in entries() if entry.told is not Told.FAILED])


def changed(column: str, value: object) -> pa.Table:
    """A node as it should be but for one row."""
    rows = right().to_pylist()
    rows[-1][column] = value
    return pa.Table.from_pylist(rows)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (without(right(), WRITES - 1, 1), "1 acknowledged and lost"),
        (pa.concat_tables([right(), right().slice(0, 2)]), "there twice: 2 rows"),
        (changed("value", 1), "1 there with another value"),
        (changed("write", 7), "1 there that nobody wrote, or that failed"),
        (changed("write", 999), "1 there that nobody wrote, or that failed"),
        (changed("pump", "stranger"), "1 there that nobody wrote, or that failed"),
        (without(right(), WRITES - 5, 1), "there without the rest of their message"),
        (applied([entry for entry in entries() if entry.number < WRITES - 5]), "acknowledged and lost"),
        (applied(entries()), "there that nobody wrote, or that failed"),
    ],
)
def test_whatever_is_wrong_is_named(expectation: Expectation, found: pa.Table, expected: str) -> None:
    """Lost, doubled, changed, foreign, failed or torn rows each have their line, with an example."""
    lines = expectation.faults_of(found)
    assert any(expected in line for line in lines), lines


def test_an_older_row_above_a_newer_acknowledged_one_is_a_loss(expectation: Expectation) -> None:
    """The order of the log shows: a row that was written over by an acknowledged write must not come back."""
    acknowledged = [entry for entry in entries() if entry.told is Told.ACKNOWLEDGED]
    lines = expectation.faults_of(applied(acknowledged[::-1]))
    assert any("acknowledged and lost" in line for line in lines), lines
