"""How `headrace backfill` ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.cli import backfill
from headrace.pipeline import backfill_plan
from headrace.terminal.output import Output


@pytest.fixture(params=[signal.SIGTERM, signal.SIGHUP])
def ending(request: pytest.FixtureRequest) -> Iterator[tuple[int, list[int]]]:
    """A signal, and those that reach what a command is without its own handlers."""
    received: list[int] = []
    before = signal.signal(request.param, lambda number, _frame: received.append(number))
    yield request.param, received
    signal.signal(request.param, before)


def test_what_ends_the_command_ends_spark_too(
    ending: tuple[int, list[int]], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """As Ctrl-C does: only an exception ends the JVM, and removes the folder and the file that are beside it."""
    number, received = ending
    plan = SimpleNamespace(files=["a file"])
    monkeypatch.setattr(backfill_plan, "plan_files", lambda *_given, **_named: plan)
    monkeypatch.setattr(backfill, "_through_spark", lambda *_given: os.kill(os.getpid(), number))
    cluster: Any = SimpleNamespace(tags=(), begin=lambda job, _directory: (job, nullcontext()))
    given: Any = None
    with pytest.raises(KeyboardInterrupt):
        backfill._run(Output(False), given, given, [], tmp_path, cluster, (False, False))
    assert [] == received
