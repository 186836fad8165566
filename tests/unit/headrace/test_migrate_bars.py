"""The figures of `headrace bench migrate` are compared with their bars."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.bench.asking import Queries
from headrace.bench.migrate import bars, migrating_seconds


@pytest.mark.parametrize(
    ("pause", "ratio", "ingest", "met"),
    [
        (20.0, 1.5, 0.9, [True, True, True]),
        (20.1, 1.51, 0.89, [False, False, False]),
        (0.0, 9.0, 2.0, [True, False, True]),
    ],
)
def test_each_figure_has_its_bar(pause: float, ratio: float, ingest: float, met: list[bool]) -> None:
    """A pause and a ratio to a plain copy have a most, the ingest that is left has a least."""
    figures: dict[str, Any] = {"write_pause_ms": {"p99": pause}, "ratio": ratio, "ingest_ratio": ingest}
    found = bars(figures)
    assert met == [found[name]["met"] for name in ("write_pause_p99_ms", "ratio", "ingest_ratio")]
    assert [pause, ratio, ingest] == [bar["value"] for bar in found.values()]


def test_a_phase_that_nobody_saw_is_not_free() -> None:
    """A short one may come and go between two looks: then the whole change counts. It had a ratio of 0."""
    assert 3.0 == migrating_seconds({"syncing": 1.0, "migrating": 4.0}, 0.5, 7.0)
    assert 6.5 == migrating_seconds({"syncing": 1.0}, 0.5, 7.0)


def test_queries_count_where_they_ran() -> None:
    """One that ends after a change has waited in it: such a one was left out, and was the longest."""
    queries = Queries([1.0, 2.0, 3.0, 4.0], [10.0, 20.0, 30.0, 40.0])
    assert [20.0, 30.0] == queries.between(1.5, 3.0)
