"""Schedules of the classes that ship: kills and stops inside any step, disks, cuts, zombies, clocks and lost logs."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from tests.sim.faults import CLOCKS, COMMON, LOST_LOGS
from tests.sim.mutations import QUICK, SLOW, Mutation
from tests.sim.simulation import Simulation

SEEDS = 300
SEEDS_AT_ONCE = 25
SOAK_SEEDS = 50_000
SOAK_SEEDS_AT_ONCE = 5_000
SLOW_SEEDS = 5_000
QUICK_SEEDS = 60


def run_seeds(seeds: Iterable[int], faults: tuple[str, ...] = COMMON) -> None:
    """Run each seed's schedule, or that of SEED alone. Raises InvariantBroken, which names the seed."""
    only = os.environ.get("SEED")
    for seed in [int(only)] if only else seeds:
        Simulation(seed, faults, verbose=only is not None).run()


@pytest.mark.slow(8)
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_AT_ONCE))
def test_no_schedule_breaks_an_invariant(first: int) -> None:
    """The first seeds keep every invariant, and heal in bounded time."""
    run_seeds(range(first, first + SEEDS_AT_ONCE))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, SOAK_SEEDS, SOAK_SEEDS_AT_ONCE))
def test_many_schedules(first: int) -> None:
    """The soak test. A failing seed is named and replays with SEED=… alone."""
    run_seeds(range(first, first + SOAK_SEEDS_AT_ONCE))


def test_a_seed_replays() -> None:
    """The same seed gives the same events."""
    first, second = Simulation(11), Simulation(11)
    first.run()
    second.run()
    assert first.world.lines == second.world.lines
    assert first.truth.chain == second.truth.chain


@pytest.mark.timeout(600)
def test_a_broker_clock_may_step() -> None:
    """A clock that steps back or forth by minutes keeps no healthy member away."""
    run_seeds(range(12), CLOCKS)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", LOST_LOGS)
def test_no_copy_of_another_log_counts(fault: str) -> None:
    """A quorum acknowledgement has its copies, of that log, also after a log lost its end or was made again."""
    run_seeds(range(30), (fault, "kill", "pause inside", "cut reads"))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("mutation", QUICK, ids=lambda mutation: mutation.__name__)
def test_a_broken_rule_is_found(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness can fail: within some seeds it finds each rule that is broken on purpose."""
    mutation(monkeypatch)
    with pytest.raises(AssertionError, match="seed|ended"):
        run_seeds(range(QUICK_SEEDS))


@pytest.mark.soak
@pytest.mark.parametrize("mutation", SLOW, ids=lambda mutation: mutation.__name__)
def test_a_broken_rule_is_found_in_many_schedules(mutation: Mutation, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that need a rare schedule."""
    mutation(monkeypatch)
    with pytest.raises(AssertionError, match="seed|ended"):
        run_seeds(range(SLOW_SEEDS))
