"""Fault runs of real processes on real Kafka: in the end every member holds each acknowledged row, and
nothing else.
"""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest

from tests.e2e.conftest import TryDisk
from tests.e2e.faults import ENVIRONMENT, EventLog, FaultRun, Plan, proxied_cluster

pytestmark = [pytest.mark.slow, pytest.mark.broker]
SEED = 20_261
SOAK_S = 1_800.0


@pytest.mark.slow(75)
@pytest.mark.timeout(400)
def test_eight_faults_lose_no_acknowledged_row(
    tmp_path: Path, cluster_name: str, small_disk_if_allowed: TryDisk
) -> None:
    """Nodes killed, stopped, cut off, wiped, out of disk, without broker.

    All three members end with each acknowledged row once, and nothing else.
    """
    seed = int(os.environ.get("HEADRACE_FAULT_SEED", SEED))
    plan = Plan(seed, faults=8, seconds=48, shortest_s=4, longest_s=5, longest_stop_s=8, pause_s=0.4)
    with proxied_cluster(tmp_path, cluster_name, small_disk_if_allowed, ENVIRONMENT) as proxied:
        FaultRun(proxied, plan, EventLog(tmp_path / "events.txt")).run()


@pytest.mark.soak
@pytest.mark.timeout(7_200)
def test_a_hundred_faults_lose_no_acknowledged_row(
    tmp_path: Path, cluster_name: str, small_disk_if_allowed: TryDisk
) -> None:
    """The same for half an hour and more.

    While one node is away, a write with quorum 2 takes at most twice as long as otherwise.
    """
    seed = int(os.environ.get("HEADRACE_FAULT_SEED") or random.SystemRandom().randrange(1 << 32))
    seconds = float(os.environ.get("HEADRACE_FAULT_SECONDS", SOAK_S))
    plan = Plan(seed, int(seconds / 17), seconds, shortest_s=5, longest_s=12, longest_stop_s=20, truncates=True)
    events = EventLog(tmp_path / "events.txt")
    with proxied_cluster(tmp_path, cluster_name, small_disk_if_allowed, ENVIRONMENT) as proxied:
        run = FaultRun(proxied, plan, events)
        run.run()
        ratio = run.latency_ratio()
    print(events.text(), f"p99 with one node away / healthy: {ratio:.2f}", sep="\n")
    assert 2 >= ratio, events.text()
