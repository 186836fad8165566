"""Schedules of sync while slots move: receivers that are replaced, zombies, groups that are born and end."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from headrace.consumers.replication import replica
from tests.sim.moving_groups import Group
from tests.sim.moving_sync import Job, MovingSyncSimulation
from tests.sim.moving_sync_rules import RULES, MovingSyncRule
from tests.sim.schedules import run_schedules

SEEDS = 60
FOUND_SEEDS = (23_929, 24_511)
"""Schedules in which a soak lost rows: a list of deletes came again at a group that had just gained a slot."""
SOAK_SEEDS = 20_000
SOAK_SEEDS_AT_ONCE = 5_000


def run_seeds(seeds: Iterable[int]) -> None:
    """See `run_schedules`."""
    run_schedules(seeds, lambda seed: MovingSyncSimulation(seed).run())


@pytest.mark.slow(8)
def test_no_schedule_of_sync_and_changes_loses_a_row() -> None:
    """The groups have the rows of the edge in its order: none is lost or stale, and no deleted one is back."""
    run_seeds((*range(SEEDS), *FOUND_SEEDS))


def test_schedules_of_sync_and_changes_are_not_empty() -> None:
    """Members change, receivers are replaced, files are void, and zombies append what is done already."""
    worlds = [MovingSyncSimulation(seed) for seed in range(15)]
    for world in worlds:
        world.run()
    counts = [(world.groups.changes, world.zombies, world.void, world.superseded, world.refused) for world in worlds]
    assert all(sum(each) for each in zip(*counts, strict=True)), counts


def test_a_seed_of_sync_and_changes_replays() -> None:
    """The same seed gives the same records."""
    logs = []
    for _ in range(2):
        world = MovingSyncSimulation(7)
        world.run()
        logs.append([(group.key, group.log.values) for group in world.groups.table.groups])
    assert logs[0] == logs[1]


@pytest.mark.slow(2)
@pytest.mark.parametrize("rule", RULES, ids=lambda each: each.rule)
def test_a_broken_rule_of_sync_and_changes_is_found(rule: MovingSyncRule, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation can fail: it finds each rule that is broken on purpose."""
    rule.breaks(monkeypatch)
    with pytest.raises(AssertionError, match="seed"):
        run_seeds(rule.seeds)


@pytest.mark.parametrize("broken", [False, True])
def test_a_group_that_gains_slots_takes_over_before_it_deletes(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver begins once all is done, a newer row is here, and its slot moves: it must not delete there yet.

    No schedule that was drawn shows this rule broken, so it has one of its own.
    """
    if broken:
        monkeypatch.setattr(MovingSyncSimulation, "is_whole", lambda *_: True)
    world = MovingSyncSimulation(1)
    zombie = world_with_zombie(world)
    move(world, 0)
    finish(world, zombie, broken)


@pytest.mark.parametrize("broken", [False, True])
def test_deletes_of_an_older_table_do_not_count(broken: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver looks at the table and is stopped. A group that knows nothing of its list gains a slot meanwhile."""
    if broken:
        monkeypatch.setattr(replica, "is_late_delete", lambda *_: False)
    world = MovingSyncSimulation(1)
    zombie = world_with_zombie(world)
    # Born behind the list: it has none of these deletes in its own log.
    world.groups.add_group((1,))
    while not world.groups.is_quiet:
        world.groups.go_on(calm=True)
        world.groups.hand_over()
    world.do(zombie)
    move(world, 0, world.groups.table.holders[1])
    finish(world, zombie, broken)


def world_with_zombie(world: MovingSyncSimulation) -> Job:
    """Deletes of a row are done, and a newer one is here; a receiver has not begun with these deletes."""
    world.write(0, [1])
    done(world, world.send_file(world.waiting[0][0]))
    world.delete((0,), 1, 2)
    zombie = world.send_deletes()
    done(world, world.begin(zombie.manifest))
    world.write(0, [1])
    done(world, world.send_file(world.waiting[0][0]))
    return zombie


def move(world: MovingSyncSimulation, slot: int, taker: Group | None = None) -> None:
    """A slot gets another holder, by default a new group; nothing is handed over yet."""
    groups = world.groups
    donor = groups.table.holders[slot]
    if taker is None:
        groups.add_group((slot,))
    else:
        groups.move((slot,), taker)
    for group in groups.table.groups:
        groups.enter(group)
    if taker is not None:
        # For the second phase.
        groups.enter(taker)
    assert groups.table.holders[slot] is not donor


def finish(world: MovingSyncSimulation, zombie: Job, broken: bool) -> None:
    """The zombie wakes up, and everything is handed over. With a broken rule a row is lost."""
    for _ in range(20):
        if zombie in world.jobs:
            world.do(zombie)
    world.finish()
    if broken:
        with pytest.raises(AssertionError, match="missing"):
            world.check()
    else:
        world.check()


def done(world: MovingSyncSimulation, job: Job) -> None:
    """A receiver does all its steps."""
    while not world.do(job):
        continue


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize("first", range(SEEDS, SOAK_SEEDS, SOAK_SEEDS_AT_ONCE))
def test_many_schedules_of_sync_and_changes(first: int) -> None:
    """The soak test. A failing seed is named and replays with SEED=… alone."""
    run_seeds(range(first, first + SOAK_SEEDS_AT_ONCE))
