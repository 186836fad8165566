"""Schedules of the classes that ship: kills and stops inside any step, disks, cuts, zombies, clocks and lost logs."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from headrace.consumers.integrity.divergence_monitor import DivergenceMonitor
from headrace.consumers.recovery.supervisor import RecoverySupervisor
from headrace.consumers.replication.group_actions import GroupActions
from headrace.consumers.replication.leader_tasks import LeaderTasks
from headrace.consumers.replication.log_consumer import LogConsumer
from headrace.consumers.store.store_view import StoreView
from tests.sim.faults import ACCEPTED, CLOCKS, COMMON, LOST_LOGS, RESTORED, STOPS
from tests.sim.model_store import ModelStore
from tests.sim.parts import ProgrammingError, SimFiles
from tests.sim.real_store import RealFiles
from tests.sim.rules import QUICK_SEEDS, RULES, Rule
from tests.sim.schedules import run_schedules, shows_more
from tests.sim.simulation import FilesFactory, Simulation

SEEDS = 50
SEEDS_AT_ONCE = 25
SOAK_SEEDS = 50_000
SOAK_SEEDS_AT_ONCE = 5_000
SLOW_SEEDS = 5_000
LOST_SEEDS = 6
LOST_AGAIN = (*LOST_LOGS, ACCEPTED, "pause", "pause inside", "cut reads", "cut sends")
LOST_WITH_DISKS = (*LOST_AGAIN, "kill", "power loss", "wipe", "corrupt")
REAL_SEEDS = 4
REAL_SOAK_SEEDS = 500
REAL = tuple(fault for fault in COMMON if fault != "tamper")
"""`tamper` changes the rows of the model store."""
MEMORY = Path("/dev/shm")
DOCUMENT = Path(__file__).parents[2] / "docs" / "internals" / "replication.md"


def run_seeds(seeds: Iterable[int], faults: tuple[str, ...] = COMMON, files: FilesFactory = SimFiles) -> None:
    """Run each seed's schedule, or that of SEED alone. Raises InvariantBroken, which names the seed."""
    run_schedules(seeds, lambda seed: Simulation(seed, faults, shows_more(), files).run())


def run_real_seeds(seeds: Iterable[int], faults: tuple[str, ...] = REAL) -> None:
    """The same over real stores, in memory where the machine has a directory for that."""

    def run(seed: int) -> None:
        with TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as root:
            Simulation(seed, faults, shows_more(), partial(RealFiles, root=Path(root))).run()

    run_schedules(seeds, run)


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
    """A clock that steps back or forth by minutes keeps no healthy member away, alone or among the other faults.

    The clocks of nodes are wrong by up to a year in every schedule.
    """
    run_seeds(range(3), CLOCKS)
    run_seeds(range(4), (*COMMON, *CLOCKS, *CLOCKS, *CLOCKS))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("fault", LOST_LOGS)
def test_no_copy_of_another_log_counts(fault: str) -> None:
    """A quorum acknowledgement has its copies, of that log, also after a log lost its end or was made again."""
    run_seeds(range(LOST_SEEDS), (fault, "kill", "pause inside", "cut reads"))


@pytest.mark.timeout(600)
def test_an_accepted_gap_is_continued() -> None:
    """A log is made again, an operator accepts the gap: every member continues behind it, with the same rows."""
    run_seeds(range(10), ("recreate", "kill", ACCEPTED))


@pytest.mark.timeout(600)
def test_a_log_that_is_lost_again_and_again_is_continued() -> None:
    """It is cut or made again, also before an accepted gap was read; each of these seeds has shown another defect."""
    run_seeds((0, 13, 42, 46, 98, 185, 332, 618, 935, 1185, 1200, 1236, 1571, 700_006, 901_177), LOST_AGAIN)


@pytest.mark.timeout(600)
def test_a_log_and_disks_that_are_lost_are_continued() -> None:
    """A replaced disk finds a log that was made again (1, 5), a copy is compared with one that was cut (32, 900011)."""
    run_seeds((*range(8), 32, 900_001, 900_011, 900_027), LOST_WITH_DISKS)
    # A member with wrong data counts most.
    run_seeds((900_313,), (RESTORED, RESTORED, *LOST_AGAIN, "wipe", "kill", "full", "sync fails"))


@pytest.mark.timeout(600)
def test_a_log_that_is_restored_is_followed_again() -> None:
    """Every member reports it as lost, and none of them needs a restart or an operator once it is there again.

    In the second half of the schedules it is cut or made again as well.
    """
    run_seeds((*range(16), 900_144), (RESTORED, *COMMON))
    run_seeds((*range(16), 700_008, 700_037, 700_192), (RESTORED, RESTORED, *LOST_AGAIN))


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_many_logs_that_are_restored() -> None:
    """The soak test of the same, also over real stores."""
    run_seeds(range(16, 600), (RESTORED, *COMMON))
    run_seeds(range(16, 600), (RESTORED, RESTORED, *LOST_AGAIN))
    run_real_seeds(range(200), (RESTORED, *LOST_AGAIN))


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_many_logs_that_are_lost_again_and_again() -> None:
    """The soak test of the same, also over real stores."""
    run_seeds(range(800), LOST_AGAIN)
    run_seeds(range(8, 800), LOST_WITH_DISKS)
    run_real_seeds(range(400), LOST_AGAIN)


def test_nobody_passes_a_record_of_a_later_build() -> None:
    """A record that this build cannot read stops every replica right before it, over restarts too."""
    run_seeds(range(6), (*STOPS, "kill"))


@pytest.mark.slow(12)
@pytest.mark.timeout(1_200)
@pytest.mark.parametrize("first", range(0, REAL_SEEDS, REAL_SEEDS // 2))
def test_no_schedule_breaks_an_invariant_of_real_stores(first: int) -> None:
    """The same schedules over RocksDB and Parquet: a scan gives the rows of the log, at any record and in the end."""
    run_real_seeds(range(first, first + REAL_SEEDS // 2))


def test_files_may_be_ahead_of_their_state_or_damaged() -> None:
    """Copies whose merges lack rows of a delete that is yet to come (142), scans of damaged files (1029, 1095)."""
    run_real_seeds((142, 1029, 1095))


def test_lost_logs_of_real_stores_are_continued() -> None:
    """Files that are ahead by a merge alone are read (68); a member journals records behind a gap before it (397)."""
    run_real_seeds((68, 397), LOST_AGAIN)


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_many_schedules_of_real_stores() -> None:
    """The soak test of real stores."""
    run_real_seeds(range(REAL_SEEDS, REAL_SOAK_SEEDS))


@pytest.mark.timeout(600)
@pytest.mark.parametrize("rule", [rule for rule in RULES if rule.quick], ids=lambda rule: rule.mutation.__name__)
def test_a_broken_rule_is_found(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """The harness can fail: within some seeds it finds each rule that is broken on purpose."""
    _must_be_found(rule, QUICK_SEEDS, monkeypatch)


@pytest.mark.soak
@pytest.mark.parametrize("rule", [rule for rule in RULES if not rule.quick], ids=lambda rule: rule.mutation.__name__)
def test_a_broken_rule_is_found_in_many_schedules(rule: Rule, monkeypatch: pytest.MonkeyPatch) -> None:
    """All other rules: those that need a rare schedule, and those that would only make the tests longer."""
    _must_be_found(rule, SLOW_SEEDS, monkeypatch)


def test_the_table_of_rules_is_documented() -> None:
    """docs/internals/replication.md has the rules as they are, and no other."""
    rows = [f"| {rule.section} | {rule.rule} | `{rule.mutation.__name__}` | {rule.seeds} |" for rule in RULES]
    table = DOCUMENT.read_text("utf-8").split("| design | rule | mutation | seeds |\n|---|---|---|---|\n")[1]
    assert table.split("\n\n")[0].splitlines() == rows


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_store_that_forgets_deletes_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulation of real stores can fail: a Delete, or a Drop, that hides nothing is found by a scan."""
    monkeypatch.setattr(StoreView, "add_tombstone", lambda _self, _tombstone: None)
    with pytest.raises(AssertionError, match="holds other rows than"):
        run_real_seeds(range(REAL_SEEDS))


@pytest.mark.parametrize(
    ("part", "method"),
    [
        (LeaderTasks, "_upkeep"),
        (LogConsumer, "_poll"),
        (GroupActions, "_write"),
        (ModelStore, "freeze"),
        (DivergenceMonitor, "turn"),
        (RecoverySupervisor, "turn"),
    ],
    ids=lambda each: getattr(each, "__name__", each),
)
@pytest.mark.parametrize("error", [AttributeError, KeyError, TypeError])
def test_a_programming_error_fails_a_schedule(
    part: type, method: str, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in a thread that logs what it did not expect and continues: the schedule would only have done less."""

    def broken(*_: object, **__: object) -> None:
        raise error("no such thing")

    monkeypatch.setattr(part, method, broken)
    with pytest.raises(ProgrammingError, match=f"seed 0: a thread of .* met {error.__name__}"):
        run_seeds([0])


def _must_be_found(rule: Rule, seeds: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rule.mutation(monkeypatch)
    with pytest.raises(AssertionError, match="seed|ended") as found:
        run_seeds(range(seeds), rule.faults)
    # A mutation that does not fit the code any more breaks no rule: it only breaks.
    by_mistake = isinstance(found.value, ProgrammingError) and not isinstance(found.value.__cause__, AssertionError)
    assert not by_mistake, found.value
