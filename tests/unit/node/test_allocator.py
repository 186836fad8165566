"""What a node's process does with memory that it has freed."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

MEASURED = """
import sys
from headrace.consumers.node import allocator
from headrace.consumers.node.allocator import give_back
getattr(allocator, sys.argv[1])()
import numpy as np
import psutil
import pyarrow as pa

def held_mb():
    return psutil.Process().memory_info().rss >> 20

begun = held_mb()
arrays = [np.ones(1 << 20) for _ in range(16)]
columns = [pa.concat_arrays([pa.array(each), pa.array(each)]) for each in arrays]
del arrays, columns
freed = held_mb()
give_back()
print(freed - begun, held_mb() - begun)
"""


def measured(chosen: str = "keep_freed", **environment: str) -> tuple[int, int]:
    """MB that a process still holds of 512 it has freed, before and after `give_back`."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "MIMALLOC_"))}
    line = [sys.executable, "-c", MEASURED, chosen]
    done = subprocess.run(line, env={**inherited, **environment}, capture_output=True, text=True, check=True)
    freed, given = done.stdout.split()
    return int(freed), int(given)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="settings of glibc")
def test_freed_memory_is_cached_until_it_is_returned() -> None:
    """The process caches freed memory of NumPy and Arrow arrays; `give_back` returns almost all of it."""
    freed, given = measured()
    assert freed > 300
    assert given < 100


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="settings of glibc")
def test_settings_in_the_environment_win() -> None:
    """Allocator settings of the environment that return memory at once are not overridden."""
    freed, _ = measured(MALLOC_MMAP_THRESHOLD_="65536", MIMALLOC_PURGE_DELAY="0")
    assert freed < 150


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="settings of glibc")
def test_a_small_node_returns_what_it_frees() -> None:
    """A node without Kafka may run on a machine that has little memory."""
    freed, _ = measured("stay_small")
    assert freed < 150
