"""A process that has imported what all tests need but our own code, and forks to run some tests at once.

Runs as a file. Each line of its input is a JSON list of arguments of pytest; each line of its output is an exit code.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import signal
import sys
import traceback
from pathlib import Path

STAGE_TIMEOUT_S = 900
IMPORTED = (
    "pytest",
    "_pytest.assertion.rewrite",
    "hypothesis",
    "hypothesis.strategies",
    "hypothesis.stateful",
    "numpy",
    "pandas",
    "pyarrow",
    "pyarrow.compute",
    "pyarrow.parquet",
    "polars",
    "duckdb",
    "numba",
    "rocksdict",
    "confluent_kafka",
    "fastavro",
    "pydantic_settings",
    "sqlglot",
    "starlette.applications",
    "structlog",
    "typer.testing",
    "uvicorn",
    "xxhash",
)
FAILED = 1


class StageTimeout(Exception):
    """The tests of a stage did not end."""


def expired(_number: int, _frame: object) -> None:
    """The stage has taken too long."""
    raise StageTimeout


def run_in_child(arguments: list[str], directory: Path) -> int:
    """The exit code of pytest in a fork; tests that do not end count as failed."""
    child = os.fork()
    if child == 0:
        # A group of its own, so that what a test started ends with it.
        os.setpgid(0, 0)
        sys.path[0] = str(directory)
        output = os.open(directory / "output", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(output, 1)
        os.dup2(output, 2)
        code = 3
        try:
            code = int(importlib.import_module("pytest").main(arguments))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            # No clean-up of this process: threads that a mutant keeps alive would hold it.
            os._exit(code)
    signal.signal(signal.SIGALRM, expired)
    signal.alarm(STAGE_TIMEOUT_S)
    try:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    except StageTimeout:
        return FAILED
    finally:
        signal.alarm(0)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(child, 0)


def main() -> None:
    """Import, then serve until the input ends."""
    directory = Path.cwd()
    for name in IMPORTED:
        importlib.import_module(name)
    for line in sys.stdin:
        print(run_in_child(json.loads(line), directory), flush=True)


if __name__ == "__main__":
    main()
