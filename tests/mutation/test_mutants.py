"""The list of mutants stays current, and every one of them is noticed, but for those with a reason."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.mutation.mutant import ROOT
from tests.mutation.run import MUTANTS, Outcome, run
from tests.mutation.survivors import SURVIVORS

ROOMS = {"replication": 20, "recovery": 20, "wal": 20, "store": 20, "scheduling": 20, "migration": 15}
"""The rooms with mutants, and how many each has at least."""


def test_every_mutant_still_has_its_place() -> None:
    """Its text is in its file exactly once, the change is another text, and its tests are there."""
    texts: dict[str, str] = {}
    for mutant in MUTANTS:
        text = texts.setdefault(mutant.path, (ROOT / mutant.path).read_text())
        assert text != mutant.applied(text)
        compile(mutant.applied(text), mutant.path, "exec")
        for test in mutant.tests:
            assert (ROOT / "tests" / "unit" / mutant.room / test).exists(), f"{mutant.name}: {test}"


def test_every_room_has_mutants_with_names_of_their_own() -> None:
    """A survivor is known by its name."""
    names = Counter(mutant.name for mutant in MUTANTS)
    assert {1} == set(names.values())
    assert SURVIVORS.keys() <= names.keys()
    rooms = Counter(mutant.room for mutant in MUTANTS)
    assert all(rooms[room] >= least for room, least in ROOMS.items())


@pytest.mark.soak
@pytest.mark.timeout(4 * 3_600)
@pytest.mark.parametrize("room", ROOMS)
def test_every_mutant_is_noticed(room: str) -> None:
    """By a unit test of its room, or by the simulation; the survivors are those with a reason, and no others."""

    def report(outcome: Outcome) -> None:
        print(f"{outcome.seconds:6.1f} s  {outcome.mutant.name}: {outcome.stage or 'survived'}", flush=True)

    outcomes = run([mutant for mutant in MUTANTS if mutant.room == room], report)
    survived = {outcome.mutant.name for outcome in outcomes if not outcome.stage}
    assert survived == {outcome.mutant.name for outcome in outcomes} & SURVIVORS.keys()
