"""Schedules of the metadata group: kills and stops inside any call, cuts, late and lost records, false reports."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import pytest
import structlog

from tests.sim.membership_rules import MEMBERSHIP_RULES, MembershipRule
from tests.sim.membership_simulation import MembershipSimulation
from tests.sim.schedules import run_schedules, shows_more

SEEDS = 300
SOAK_SEEDS = 20_000
SOAK_SEEDS_AT_ONCE = 5_000
QUICK_SEEDS = 400
SLOW_SEEDS = 5_000


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """No lines of the log: there would be thousands."""
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    yield
    structlog.reset_defaults()


def run_seeds(seeds: Iterable[int]) -> None:
    """See `run_schedules`."""
    run_schedules(seeds, lambda seed: MembershipSimulation(seed, shows_more()).run())


@pytest.mark.slow(8)
@pytest.mark.timeout(600)
def test_no_schedule_of_the_metadata_group_breaks_an_invariant() -> None:
    """One leader an epoch, one change at a time, each request decided once, no answer that the log does not bear out.

    Once faults cease, every change ends, and one node leads.
    """
    run_seeds(range(SEEDS))


@pytest.mark.soak
@pytest.mark.parametrize("first", range(SEEDS, SOAK_SEEDS, SOAK_SEEDS_AT_ONCE))
def test_many_schedules_of_the_metadata_group(first: int) -> None:
    """The soak test. A failing seed is named and replays with SEED=… alone."""
    run_seeds(range(first, first + SOAK_SEEDS_AT_ONCE))


def test_a_seed_of_the_metadata_group_replays() -> None:
    """The same seed gives the same records."""
    logs = []
    for _ in range(2):
        simulation = MembershipSimulation(3)
        simulation.run()
        logs.append([record.value for record in simulation.topic.records])
    assert logs[0] == logs[1]
    assert len(logs[0]) > 3


def test_changes_end_in_every_way() -> None:
    """Schedules are not empty: some changes are done, some are cancelled, and some requests are refused."""
    found = set()
    for seed in range(12):
        simulation = MembershipSimulation(seed)
        simulation.run()
        found |= {str(outcome.phase) for outcome in simulation.invariants.accepted.values()}
        found |= {answer for answers in simulation.answers.values() for answer in answers if isinstance(answer, str)}
    assert {"done", "cancelled", "ChangeRunning", "NotMetadataLeader"} <= found


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rule", [each for each in MEMBERSHIP_RULES if each.quick], ids=lambda each: each.rule)
def test_a_broken_rule_of_the_metadata_group_is_found(rule: MembershipRule, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation can fail: it finds each rule that is broken on purpose."""
    rule.breaks(monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        run_seeds(range(QUICK_SEEDS))


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("rule", [each for each in MEMBERSHIP_RULES if not each.quick], ids=lambda each: each.rule)
def test_a_broken_rule_of_the_metadata_group_is_found_in_many_schedules(
    rule: MembershipRule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rules that need a rare schedule."""
    rule.breaks(monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        run_seeds(range(SLOW_SEEDS))
