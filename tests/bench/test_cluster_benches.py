"""The benchmarks of whole clusters at sizes that prove nothing about speed: they end, compare what was stored, and leave nothing behind."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import psutil
import pytest

from headrace.bench import recovery, replication

pytestmark = [pytest.mark.slow, pytest.mark.broker, pytest.mark.timeout(600)]


def assert_nothing_left(directory: Path) -> None:
    """No file, and no process of this one that still runs."""
    assert [] == list(directory.iterdir())
    running = [child for child in psutil.Process(os.getpid()).children(recursive=True) if named(child, str(directory))]
    assert [] == running


def named(process: psutil.Process, text: str) -> bool:
    """Whether a process was started with a text."""
    try:
        return any(text in word for word in process.cmdline())
    except psutil.Error:
        return False


def labels(rows: Any) -> list[str]:
    """The first column of a table for people."""
    return [label for label, _ in rows]


def test_the_replication_bench_compares_every_replica(tmp_path: Path) -> None:
    """Both clusters hold the rows, three replicas are told from one, and every kind of acknowledgement was taken as often as was asked for."""
    said: list[str] = []
    sizes = {"hosts": "20", "rows": "2000", "rounds": "1", "writes": "5", "load_rows": "1000"}
    result = replication.run({**sizes, "dir": str(tmp_path)}, said.append)
    assert 20_000 == result["data"]["points"]
    assert {"one": 1, "three": 3} == {name: each["replicas"] for name, each in result["work"]["clusters"].items()}
    assert result["work"]["three_of_one_per_replica"]["median"] > 0
    counts = {each["count"] for kinds in result["latency_ms"].values() for each in kinds.values()}
    assert ({5}, {"alone", "under load"}) == (counts, set(result["latency_ms"]))
    assert "three against one, a replica" in labels(replication.table(result))
    assert said
    assert_nothing_left(tmp_path)


@pytest.mark.soak
def test_the_recovery_bench_compares_what_came_back(tmp_path: Path) -> None:
    """Replay, files of another member and restarts end with the rows that were written; bytes copied are at least those of the rows."""
    said: list[str] = []
    sizes = {"hosts": "20", "rows": "2000", "rounds": "1", "files_mb": "2", "small_mb": "1", "large_mb": "2"}
    result = recovery.run({**sizes, "dir": str(tmp_path)}, said.append)
    assert 20_000 == result["replay"]["data"]["points"]
    assert {"headrace replay", "decode, sort, encode", "drain"} == set(result["replay"]["legs"])
    assert result["files"]["data"]["bytes"] > 80 * result["files"]["data"]["rows"]
    small, large = (result["restart"]["sizes"][name] for name in ("small", "large"))
    assert 80 * small["rows"] < small["bytes"] < large["bytes"]
    assert "files over plain copy" in labels(recovery.table(result))
    assert said
    assert_nothing_left(tmp_path)
