"""Schedules of a simulation, one a seed."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterable

ONLY = "SEED"
"""The variable of the environment that names the one seed to run, with more output where a simulation has it."""


def run_schedules(seeds: Iterable[int], run: Callable[[int], object]) -> None:
    """Run the schedule of each seed, or that of SEED alone. Raises what a schedule raises, which names its seed."""
    only = os.environ.get(ONLY)
    # A schedule leaves few cycles, and looking for them again and again takes a part of its time.
    gc.disable()
    try:
        for seed in [int(only)] if only else seeds:
            run(seed)
            gc.collect(0)
    finally:
        gc.enable()


def shows_more() -> bool:
    """Whether one seed is run, to look at it."""
    return ONLY in os.environ
