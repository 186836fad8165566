"""Runs mutants on private copies of the tree: `python -m tests.mutation.run [--own] [ROOM | NAME …]`.

Each mutant goes through its stages until one has a test that fails: its own tests, all unit tests of its room, and for
some a few schedules of the simulator. One that no stage notices has survived. `--own`: the first stage alone.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from queue import SimpleQueue

from tests.mutation.migration_mutants import MIGRATION
from tests.mutation.mutant import ROOT, Mutant
from tests.mutation.recovery_mutants import RECOVERY
from tests.mutation.replication_mutants import REPLICATION
from tests.mutation.rollup_mutants import ROLLUPS
from tests.mutation.scheduling_mutants import SCHEDULING
from tests.mutation.slot_mutants import SLOTS
from tests.mutation.state_mutants import STATE_MACHINE
from tests.mutation.store_mutants import STORE
from tests.mutation.tombstone_mutants import TOMBSTONE
from tests.mutation.wal_mutants import WAL

MUTANTS = (*REPLICATION, *STATE_MACHINE, *SLOTS, *MIGRATION, *RECOVERY, *WAL, *STORE, *TOMBSTONE, *ROLLUPS, *SCHEDULING)
COPIED = ("connectors", "consumers", "docs", "headrace", "pipeline", "producers", "schemas", "tests", "tools")
COPIED_FILES = ("pyproject.toml", "README.md", "CHANGELOG.md", "Makefile")
# Two at a time: the tests of one wait for little, and the machine has two cores.
AT_ONCE = 2
NICE = 10
TEST_TIMEOUT_S = 120
SIMULATED = "tests/sim/test_cluster.py"
# The first schedules, each with most kinds of fault.
SIMULATED_TESTS = ("test_no_schedule_breaks_an_invariant[0]", "test_no_schedule_breaks_an_invariant[25]")
PASSED, FAILED = 0, 1
STAGES = 3


class MutantInvalid(Exception):
    """The tests of a mutant did not run: it breaks an import, or names tests that are not there."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """Which stage noticed a mutant, empty for a survivor, and after how many seconds."""

    mutant: Mutant
    stage: str
    seconds: float


class TreeCopy:
    """A private copy of the tree, in which one file at a time is another one."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self._changes = 0
        unwanted = shutil.ignore_patterns("__pycache__", "node_modules")
        for name in COPIED:
            shutil.copytree(ROOT / name, directory / name, symlinks=True, ignore=unwanted)
        for name in COPIED_FILES:
            shutil.copy(ROOT / name, directory / name)
        self._process = self._start()

    @contextmanager
    def with_mutant(self, mutant: Mutant) -> Iterator[None]:
        """The copy has the mutant inside the block."""
        path = self.directory / mutant.path
        text = path.read_text()
        try:
            self._write(path, mutant.applied(text))
            yield
        finally:
            self._write(path, text)

    def _write(self, path: Path, text: str) -> None:
        # Compiled code counts as current by the size of its source and the second of its time: two changes
        # within a second may look alike.
        self._changes += 1
        path.write_text(text)
        changed_s = time.time() - 1_000_000 + self._changes
        os.utime(path, (changed_s, changed_s))

    def test(self, tests: Sequence[str]) -> int:
        """Run tests until the first failure; pytest's exit code. A run that does not end counts as a failure."""
        if self._process.poll() is not None:
            self._process = self._start()
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        arguments = ["-x", "-q", "-m", "not soak", "-p", "no:randomly", "-p", "no:cacheprovider", "--assert=plain"]
        process.stdin.write(json.dumps([*arguments, "--timeout", str(TEST_TIMEOUT_S), *tests]) + "\n")
        process.stdin.flush()
        return int(process.stdout.readline() or FAILED)

    def _start(self) -> subprocess.Popen[str]:
        caches = {"PYTHONPATH": str(self.directory), "PYTHONPYCACHEPREFIX": str(self.directory / "bytecode")}
        environment = os.environ | caches | {"PYTHONDONTWRITEBYTECODE": "", "TMPDIR": str(self.directory)}
        for variable in ("PYTEST_CURRENT_TEST", "PYTEST_ADDOPTS", "PYTEST_XDIST_WORKER", "SEED"):
            environment.pop(variable, None)
        return subprocess.Popen(
            ["nice", "-n", str(NICE), sys.executable, str(self.directory / "tests/mutation/warm.py")],
            cwd=self.directory,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait(60)
        self._process.stdout.close()

    def outcome(self, mutant: Mutant, stages: int) -> Outcome:
        """Take a mutant through its first stages. Raises MutantInvalid."""
        started_s = time.monotonic()
        noticed = ""
        with self.with_mutant(mutant):
            for stage, tests in stages_of(mutant)[:stages]:
                code = self.test(tests)
                if code not in (PASSED, FAILED):
                    output = (self.directory / "output").read_text(errors="replace")
                    raise MutantInvalid(f"{mutant.name}: pytest ended with {code}:\n{output[-3_000:]}")
                if code == FAILED:
                    noticed = stage
                    break
        return Outcome(mutant, noticed, time.monotonic() - started_s)


def stages_of(mutant: Mutant) -> list[tuple[str, list[str]]]:
    """The stages of a mutant: names and tests."""
    room = f"tests/unit/{mutant.room}"
    stages = [("own tests", [f"{room}/{test}" for test in mutant.tests]), ("room", [room])]
    if mutant.simulated:
        stages.append(("simulation", [f"{SIMULATED}::{test}" for test in SIMULATED_TESTS]))
    return stages


def run(mutants: Iterable[Mutant], report: Callable[[Outcome], None], stages: int = STAGES) -> list[Outcome]:
    """The outcomes of mutants, each reported as soon as it is known. Raises MutantInvalid."""
    with tempfile.TemporaryDirectory(prefix="headrace-mutants-") as directory:
        copies: SimpleQueue[TreeCopy] = SimpleQueue()
        for number in range(AT_ONCE):
            copies.put(TreeCopy(Path(directory) / str(number)))

        def outcome(mutant: Mutant) -> Outcome:
            copy = copies.get()
            try:
                found = copy.outcome(mutant, stages)
            finally:
                copies.put(copy)
            report(found)
            return found

        try:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                return list(pool.map(outcome, mutants))
        finally:
            while not copies.empty():
                copies.get().close()


def main(wanted: Sequence[str]) -> None:
    """Run the mutants of rooms or names, all without an argument, and print who noticed them."""
    stages = 1 if "--own" in wanted else STAGES
    wanted = [each for each in wanted if each != "--own"]
    chosen = [mutant for mutant in MUTANTS if not wanted or mutant.room in wanted or mutant.name in wanted]

    def report(outcome: Outcome) -> None:
        verdict = f"noticed by {outcome.stage}" if outcome.stage else "SURVIVED"
        # On a machine with other work a test that is only slow ends as a failure too.
        verdict += ", perhaps by a timeout" if outcome.stage and outcome.seconds >= TEST_TIMEOUT_S else ""
        print(f"{outcome.seconds:6.1f} s  {outcome.mutant.room}/{outcome.mutant.name}: {verdict}", flush=True)

    started_s = time.monotonic()
    outcomes = run(chosen, report, stages)
    survived = sum(not outcome.stage for outcome in outcomes)
    print(f"{len(outcomes)} mutants, {survived} survived, {time.monotonic() - started_s:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
