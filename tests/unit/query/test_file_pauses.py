"""How many parts a scan of files has."""

from __future__ import annotations

import pytest

from headrace.consumers.query.file_pauses import (
    ALONE_VALUES,
    FILE_PAUSES_MAX,
    PART_PAUSES_MAX,
    PART_VALUES,
    STEP_VALUES_MAX,
    pauses_of_driver,
    pauses_of_statement,
)


@pytest.mark.parametrize(
    ("values", "beside", "alone", "driver", "driver_alone"),
    [
        (0, 1, 1, 1, 1),
        (STEP_VALUES_MAX, 1, 1, 1, 1),
        (STEP_VALUES_MAX + 1, 2, 1, 1, 1),
        (PART_VALUES + 1, 11, 1, 2, 1),
        (ALONE_VALUES, FILE_PAUSES_MAX, 1, 4, 1),
        (3 * ALONE_VALUES, FILE_PAUSES_MAX, 3, PART_PAUSES_MAX, 3),
        (1 << 40, FILE_PAUSES_MAX, FILE_PAUSES_MAX, PART_PAUSES_MAX, PART_PAUSES_MAX),
    ],
)
def test_parts_follow_from_the_values_of_a_scan(
    values: int, beside: int, alone: int, driver: int, driver_alone: int
) -> None:
    """A query that is alone has fewer; both have a limit."""
    assert (beside, alone) == tuple(pauses_of_statement(values, alone=each) for each in (False, True))
    assert (driver, driver_alone) == tuple(pauses_of_driver(values, alone=each) for each in (False, True))
