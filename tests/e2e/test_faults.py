"""Real processes, real Kafka, real faults: whatever happens, an acknowledged row is on every member in the end, and nothing else is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.e2e.conftest import TryDisk
from tests.e2e.faults import Diary, FaultRun, Plan, staged

pytestmark = [pytest.mark.slow, pytest.mark.broker]
SEED = 20_261


@pytest.mark.timeout(400)
def test_eight_faults_lose_no_acknowledged_row(
    tmp_path: Path, cluster_name: str, small_disk_if_allowed: TryDisk
) -> None:
    """Killed, stopped, cut off, wiped, out of disk, without broker: every acknowledged row is on all three members, once, and nothing else is."""
    seed = int(os.environ.get("HEADRACE_FAULT_SEED", SEED))
    plan = Plan(seed, faults=8, seconds=80, shortest_s=4, longest_s=7)
    with staged(tmp_path, cluster_name, small_disk_if_allowed) as stage:
        FaultRun(stage, plan, Diary(tmp_path / "events.txt")).run()
