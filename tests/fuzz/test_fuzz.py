"""Every door takes mutated inputs: each is applied, refused by name or ignored and counted.

A case runs in a process of its own, so that a crash is a failure of the test, which prints how to run it again.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
# `groups` counts in units of 250 records.
SLICE = {"messages": 1_000, "groups": 3, "parquet": 80, "arrow": 150, "text": 50} | {
    "membership": 20,
    "tables": 40,
    "statuses": 40,
    "transfers": 20,
    "answers": 10,
    "owners": 20,
    "letters": 200,
}
SOAK = {"messages": 10_000_000, "groups": 2_400, "parquet": 120_000, "arrow": 250_000, "text": 60_000} | {
    "membership": 40_000,
    "tables": 200_000,
    "statuses": 100_000,
    "transfers": 60_000,
    "answers": 30_000,
    "owners": 50_000,
    "letters": 2_000_000,
}
PROCESS_CASES = 500_000


def run(seed: str, progress: Path, *parts: str) -> None:
    """Run parts KIND:FIRST:COUNT in a child; a failure has its output and the command for the case."""
    arguments = [sys.executable, "-m", "tests.fuzz.worker", seed, str(progress), *parts]
    # A case has a few rows: threads cost more than they spare.
    environment = os.environ | {"POLARS_MAX_THREADS": "1"}
    done = subprocess.run(arguments, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    case = progress.read_text().strip() if progress.exists() else parts[0]
    kind, _, rest = case.partition(":")
    if kind == "messages" and rest:
        # Replicas are compared behind a thousand of records, and a failure may need all of them.
        case = f"{kind}:{int(rest.partition(':')[0]) // 1_000 * 1_000}:1000"
    again = f"python -m tests.fuzz.worker {seed} progress {case}"
    assert (done.returncode, case) == (0, "done"), f"exit {done.returncode}: {again}\n{done.stderr[-4_000:]}"


@pytest.mark.slow(10)
def test_mutated_inputs_do_no_harm(tmp_path: Path) -> None:
    """No crash, no ended thread, no untyped error, no row that is lost silently."""
    run("slice", tmp_path / "progress", *(f"{kind}:0:{count}" for kind, count in SLICE.items()))


@pytest.mark.soak
@pytest.mark.parametrize("kind", SOAK)
def test_millions_of_mutated_inputs_do_no_harm(kind: str, tmp_path: Path) -> None:
    """The same for other seeds: `HEADRACE_FUZZ_SEED` gives one, `HEADRACE_FUZZ_CASES` the number of cases."""
    seed, count = os.environ.get("HEADRACE_FUZZ_SEED", "soak"), int(os.environ.get("HEADRACE_FUZZ_CASES", SOAK[kind]))
    for first in range(0, count, PROCESS_CASES):
        run(seed, tmp_path / "progress", f"{kind}:{first}:{min(PROCESS_CASES, count - first)}")
