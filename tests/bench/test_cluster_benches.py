"""The benchmarks of whole clusters at tiny sizes: they end, compare what was stored, and leave nothing
behind.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.bench import recovery, replication

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600)]


def assert_nothing_left(directory: Path) -> None:
    """No file is left, and no child process that names the directory."""
    assert [] == list(directory.iterdir())
    running = [
        child for child in psutil.Process(os.getpid()).children(recursive=True) if is_named(child, str(directory))
    ]
    assert [] == running


def is_named(process: psutil.Process, text: str) -> bool:
    """Whether the command line of a process contains a text."""
    try:
        return any(text in word for word in process.cmdline())
    except psutil.Error:
        return False


def labels(rows: Any) -> list[str]:
    """The first column of a printed table."""
    return [label for label, _ in rows]


@pytest.mark.soak
def test_the_replication_bench_compares_every_replica(tmp_path: Path) -> None:
    """Both clusters hold the rows, with one and with three replicas, and every kind of acknowledgement is
    measured as often as configured.
    """
    lines: list[str] = []
    sizes = {"hosts": "20", "rows": "2000", "rounds": "1", "writes": "5", "load_rows": "1000"}
    result = replication.run({**sizes, "dir": str(tmp_path)}, lines.append)
    assert 20_000 == result["data"]["points"]
    assert {"one": 1, "three": 3} == {name: each["replicas"] for name, each in result["work"]["clusters"].items()}
    assert result["work"]["three_of_one_per_replica"]["median"] > 0
    counts = {each["count"] for kinds in result["latency_ms"].values() for each in kinds.values()}
    assert ({5}, {"alone", "under load"}) == (counts, set(result["latency_ms"]))
    assert "three against one, a replica" in labels(replication.table(result))
    assert lines
    assert_nothing_left(tmp_path)


@pytest.mark.soak
def test_the_recovery_bench_compares_the_recovered_rows(tmp_path: Path) -> None:
    """Replay, file copies and restarts end with the written rows; the copied bytes are at least those of the
    rows.
    """
    lines: list[str] = []
    sizes = {"hosts": "20", "rows": "2000", "rounds": "1", "files_mb": "2", "small_mb": "1", "large_mb": "2"}
    result = recovery.run({**sizes, "dir": str(tmp_path)}, lines.append)
    assert 20_000 == result["replay"]["data"]["points"]
    assert {"headrace replay", "decode, sort, encode", "drain"} == set(result["replay"]["legs"])
    assert result["files"]["data"]["bytes"] > 80 * result["files"]["data"]["rows"]
    small, large = (result["restart"]["sizes"][name] for name in ("small", "large"))
    assert 80 * small["rows"] < small["bytes"] < large["bytes"]
    assert "files over plain copy" in labels(recovery.table(result))
    assert lines
    assert_nothing_left(tmp_path)
