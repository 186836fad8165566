"""Seeds of tests whose long version runs in `make soak`."""

from __future__ import annotations

import pytest
from _pytest.mark import ParameterSet


def seeds(quick: int, total: int) -> list[ParameterSet]:
    """The seeds from 0 on as parameters: the first `quick` run in `make test`, the others in `make soak`."""
    return [pytest.param(seed, marks=() if seed < quick else pytest.mark.soak) for seed in range(total)]
