"""Schedules of sync: senders and receivers that end at any step, rebalances, zombies, lost and late records, merges."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import pytest
import structlog

from headrace.consumers.sync import selection, send_round, sender
from tests.sim.schedules import run_schedules
from tests.sim.sync_rules import RULES, SyncRule
from tests.sim.sync_simulation import SyncSimulation
from tests.unit.sync import edge_model

SEEDS = 70
SEEDS_AT_ONCE = 35
SOAK_SEEDS = 20_000
SOAK_SEEDS_AT_ONCE = 5_000
CHUNK_BYTES = 64


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Small chunks, and no lines of the log."""
    for module in (edge_model, selection, send_round, sender):
        monkeypatch.setattr(module, "CHUNK_BYTES", CHUNK_BYTES)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


def run_seeds(seeds: Iterable[int]) -> None:
    """See `run_schedules`."""
    run_schedules(seeds, lambda seed: SyncSimulation(seed).run())


@pytest.mark.slow(12)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("first", range(0, SEEDS, SEEDS_AT_ONCE))
def test_no_schedule_of_sync_loses_a_row(first: int) -> None:
    """The centre has the rows of every edge in its order, each file once, and no device has two senders."""
    run_seeds(range(first, first + SEEDS_AT_ONCE))


def test_schedules_of_sync_are_not_empty() -> None:
    """Files are loaded late, merged and refused; receivers are replaced, and zombies act."""
    found = dict.fromkeys(("late", "merged", "rejected", "damaged", "zombies", "requests", "kills", "drops"), 0)
    for seed in range(20):
        world = SyncSimulation(seed)
        world.run()
        store = world.store
        counts = (store.late, store.merged, world.rejected, world.damaged, world.zombies)
        more = (world.late_requests, sum(each.kills for each in world.senders), world.kafka.dropped)
        found = {name: found[name] + count for name, count in zip(found, (*counts, *more), strict=True)}
    assert min(found.values()) > 0, found


def test_a_seed_of_sync_replays() -> None:
    """The same seed gives the same records."""
    logs = []
    for _ in range(2):
        world = SyncSimulation(7)
        world.run()
        logs.append({each: found.records for each, found in world.kafka.partitions.items()})
    assert logs[0] == logs[1]


@pytest.mark.slow(3)
@pytest.mark.timeout(600)
@pytest.mark.parametrize("rule", RULES, ids=lambda each: each.rule)
def test_a_broken_rule_of_sync_is_found(rule: SyncRule, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation can fail: it finds each rule that is broken on purpose."""
    rule.breaks(monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        run_seeds(rule.seeds)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("first", range(SEEDS, SOAK_SEEDS, SOAK_SEEDS_AT_ONCE))
def test_many_schedules_of_sync(first: int) -> None:
    """The soak test. A failing seed is named and replays with SEED=… alone."""
    run_seeds(range(first, first + SOAK_SEEDS_AT_ONCE))
