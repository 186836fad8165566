"""Thousands of schedules from seeds: kills, pauses, lost disks, full disks, cuts, repeats, gaps, trimming, recovery from files."""

from __future__ import annotations

import os
from collections.abc import Iterable

import pytest

from consumers.replication.state import GroupState
from tests.sim.node import Disk, SimNode
from tests.sim.simulation import InvariantBroken, Simulation

SEEDS = 300
_DURABLE_OFFSET = Disk.durable_offset
SOAK_SEEDS = 20_000


def run_seeds(seeds: Iterable[int], *, verbose: bool = False) -> None:
    """Run each seed's schedule. Raises InvariantBroken, which names the seed."""
    for seed in seeds:
        Simulation(seed, verbose).run()


@pytest.mark.slow
@pytest.mark.timeout(1_200)
def test_no_schedule_breaks_an_invariant() -> None:
    """The first seeds, or the one of SEED alone, keep every invariant and converge once healed."""
    seed = os.environ.get("SEED")
    run_seeds([int(seed)] if seed else range(SEEDS), verbose=seed is not None)


@pytest.mark.soak
def test_many_schedules() -> None:
    """The long form; a failing seed is printed and replays with SEED=… alone."""
    run_seeds(range(SEEDS, SOAK_SEEDS))


def test_a_seed_replays() -> None:
    """The same seed gives the same events."""
    first, second = Simulation(7), Simulation(7)
    first.run()
    second.run()
    assert first.world.lines == second.world.lines


def test_the_simulator_notices_forgotten_producers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness can fail: a replica that forgets in a restart what it has seen of its producers applies a repeat that others drop."""
    whole = GroupState.from_bytes

    def forgetful(data: bytes) -> GroupState:
        state = whole(data)
        state.producers = {}
        return state

    monkeypatch.setattr(GroupState, "from_bytes", forgetful)
    # Members compare what they hold and mend it: here nothing else is wrong, nobody mends, and the harness must see it for itself.
    monkeypatch.setattr(SimNode, "_inspect", lambda _node: None)
    monkeypatch.setattr(SimNode, "tamper", lambda _node: None)
    monkeypatch.setattr(Simulation, "_may_rot", lambda _simulation, _victim: False)
    with pytest.raises(InvariantBroken, match="hold other rows"):
        run_seeds(range(200))


def test_the_simulator_notices_early_acknowledgement(monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness can fail: a node that calls a record durable before it is on its disk breaks a quorum."""
    monkeypatch.setattr(Disk, "durable_offset", lambda disk: max(0, _DURABLE_OFFSET(disk) - 5))
    with pytest.raises(InvariantBroken, match="was acknowledged with"):
        run_seeds(range(50))
