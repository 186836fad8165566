"""Changes of a cluster's members under faults: each ends by itself, and every answer has each acknowledged row once."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from headrace.client import connect
from headrace.connectors.kafka.broker import BrokerInfo
from headrace.consumers.membership.running_change import Phase
from tests.e2e.actions import running_cluster
from tests.e2e.change_faults import FAULTS_PER_CHANGE, ChangeFaultRun, Fault, Role, drawn_faults
from tests.e2e.change_load import Pace
from tests.e2e.faults import EventLog

pytestmark = [pytest.mark.slow, pytest.mark.broker]
SETTINGS = {"store_seal_age_ms": "2000"}
SEED = int(os.environ.get("HEADRACE_FAULT_SEED") or random.SystemRandom().randrange(1 << 32))
FEW = Pace(days_max=12, write_pause_s=0.4, query_pause_s=5.0)
"""Few files make cheap queries."""
EIGHT = (
    Fault(Role.METADATA_LEADER, Phase.PRE, stopped=False, seconds=1),
    Fault(Role.CHANGING, Phase.MIGRATING, stopped=False, seconds=1),
    Fault(Role.DONOR, Phase.PRE, stopped=False, seconds=1),
    Fault(Role.GROUP_LEADER, Phase.FORMAL, stopped=True, seconds=4),
    Fault(Role.CHANGING, Phase.PRE, stopped=False, seconds=1),
    Fault(Role.DONOR, Phase.MIGRATING, stopped=False, seconds=1),
    Fault(Role.METADATA_LEADER, Phase.FORMAL, stopped=True, seconds=10),
    Fault(Role.GROUP_LEADER, Phase.MIGRATING, stopped=False, seconds=1),
)


def run_faults(
    directory: Path,
    bootstrap: str,
    name: str,
    faults: Sequence[Fault],
    seed: int,
    nodes: int = 5,
    pace: Pace | None = None,
    bytes_per_second: int = 200_000,
    per_change: int = FAULTS_PER_CHANGE,
) -> None:
    """Nodes with three replicas become one more and one less again, with some faults in each change.

    The copy is slow, so that a fault in the last phase comes before its end. Nobody else reads the log of a group that
    ends, so it is not kept for long.
    """
    paces: dict[str, Any] = {"store_migration_bytes_per_second": str(bytes_per_second), "cluster_ended_log_kept_s": "1"}
    settings = SETTINGS | paces
    events = EventLog(directory / "events.txt")
    events.add(f"HEADRACE_FAULT_SEED={seed}")
    with (
        running_cluster(directory, bootstrap, name, nodes, replication=3, **settings) as cluster,
        connect(bootstrap=bootstrap, cluster=name) as client,
    ):
        ChangeFaultRun(cluster, client, events, seed, pace).run(faults, per_change)


@pytest.mark.parametrize(
    "per_change",
    [
        pytest.param(4, marks=pytest.mark.slow(110), id="in_two_changes"),
        # The same node joins and leaves once more, with an empty directory.
        pytest.param(2, marks=pytest.mark.soak, id="in_four_changes"),
    ],
)
@pytest.mark.timeout(1_800)
def test_eight_faults_stop_no_change(broker: BrokerInfo, tmp_path: Path, cluster_name: str, per_change: int) -> None:
    """A node joins and leaves, while each role of a change fails in each of them.

    All replicas are equal in the end, and nobody keeps segments of slots that it does not hold.
    """
    # Four nodes are the fewest that may be five.
    run_faults(
        tmp_path,
        broker.bootstrap,
        cluster_name,
        EIGHT,
        seed=1,
        nodes=4,
        pace=FEW,
        bytes_per_second=30_000,
        per_change=per_change,
    )


@pytest.mark.soak
@pytest.mark.timeout(7_200)
@pytest.mark.parametrize(
    ("before", "number", "pace", "bytes_per_second"),
    [
        # Fifty, of five clusters. Every change leaves files of its own, which nodes that are asked all the time read: after
        # twenty changes within minutes two processors do nothing else.
        *(pytest.param(before, 10, FEW, 30_000, id=f"fifty_from_{before}") for before in range(0, 50, 10)),
        # Five nodes that are asked each second for hundreds of small files leave two processors nothing: then all that a
        # change needs takes its turn among queries, and must get it.
        pytest.param(0, 10, Pace(days_max=60, write_pause_s=0.1), 200_000, id="under_load"),
    ],
)
def test_drawn_faults_stop_no_change(
    broker: BrokerInfo,
    tmp_path: Path,
    cluster_name: str,
    before: int,
    number: int,
    pace: Pace,
    bytes_per_second: int,
) -> None:
    """The same with faults from a seed: every role in every phase, killed and stopped, twice and more.

    `HEADRACE_FAULT_SEED` is the seed of all of them.
    """
    faults = drawn_faults(SEED, before + number)[before:]
    run_faults(tmp_path, broker.bootstrap, cluster_name, faults, SEED, pace=pace, bytes_per_second=bytes_per_second)
