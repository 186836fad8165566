"""kill -9 at any moment neither loses nor duplicates a row, and a node recovers everything it lost from the
topics.
"""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path

import pytest

from headrace.connectors.kafka.broker import BrokerInfo
from headrace.local_cluster import LocalCluster
from headrace.workload.workload import Workload, iot
from tests.e2e.actions import (
    assert_holds,
    connected,
    running_cluster,
    seal,
    seal_by_command,
    verify,
    verify_by_command,
    write_workload,
)
from tests.forked import run_forked

pytestmark = pytest.mark.slow


class KilledWriting:
    """Writes a workload in one thread while another kills nodes; each kill releases the next batches, so that
    it interrupts work.
    """

    def __init__(self, cluster: LocalCluster, workload: Workload, kills: int, rows_per_batch: int, seed: int) -> None:
        self._cluster = cluster
        self._workload = workload
        self._kills = kills
        self._rows_per_batch = rows_per_batch
        self._batches = sum(1 for _ in workload.batches(rows_per_batch))
        self._random = random.Random(seed)
        self._changed = threading.Condition()
        self._released = 0
        self._failures: list[BaseException] = []

    def run(self) -> None:
        """Write everything and kill `kills` times; at the end all nodes run, not yet ready."""
        writing = threading.Thread(target=self._write)
        writing.start()
        for _ in range(self._kills):
            self._kill()
        with self._changed:
            self._released = self._batches
            self._changed.notify_all()
        writing.join()
        assert not self._failures, self._failures

    def _kill(self) -> None:
        """Release the next batches and kill a node soon after: mostly one that serves, sometimes one that is
        still starting.
        """
        victim = self._random.choice([node.name for node in self._cluster.file.nodes])
        if self._random.random() < 0.8:
            self._cluster.wait_ready([victim])
        with self._changed:
            self._released += 1
            self._changed.notify_all()
        threading.Event().wait(self._random.uniform(0.0, 0.5))
        self._cluster.kill(victim)
        self._cluster.start_node(victim)

    def _write(self) -> None:
        try:
            with connected(self._cluster) as shared:
                write_workload(shared, self._workload, self._rows_per_batch, before_batch=self._await_release)
        except BaseException as error:
            self._failures.append(error)

    def _await_release(self, batch: int) -> None:
        needed = batch * self._kills // self._batches
        with self._changed:
            self._changed.wait_for(lambda: self._released >= needed)


def assert_survives(cluster: LocalCluster, workload: Workload, kills: int, rows_per_batch: int, seed: int) -> None:
    """Kill while writing, wipe, replay: after each the content equals the generated rows."""
    print(f"seed {seed}")
    KilledWriting(cluster, workload, kills, rows_per_batch, seed).run()
    cluster.wait_ready()
    assert_holds(cluster, workload)
    seal_by_command(cluster)
    verify_by_command(cluster)
    assert_rebuilt(cluster, workload)


def assert_rebuilt(cluster: LocalCluster, workload: Workload) -> None:
    """A wiped node recovers by itself, a stopped one by replay: same rows, same chain, same segments."""
    cluster.stop_node("n2")
    cluster.wipe("n2")
    cluster.start_node("n2")
    cluster.stop_node("n3")
    replay = run_forked(
        *(
            "replay",
            "--cluster",
            cluster.cluster,
            "--bootstrap",
            cluster.bootstrap,
            "--id",
            "n3",
            "--replace",
            "--json",
        ),
        *("--data-dir", str(cluster.data_directory("n3"))),
        environment=cluster.environment,
    )
    assert 0 == replay.returncode, replay.stderr
    assert 0 < json.loads(replay.stdout)["segments"]
    cluster.start_node("n3")
    cluster.wait_ready()
    assert_holds(cluster, workload)
    assert all(group["segments"] for group in verify(cluster) if group["version"] > 2)


@pytest.mark.slow(47)
def test_kills_while_writing_neither_lose_nor_duplicate_rows(
    broker: BrokerInfo, cluster_name: str, tmp_path: Path
) -> None:
    """Nodes killed at random moments of writing and sealing end with exactly the written rows, and so does a
    rebuilt node.
    """
    # Rows in order are the longer test's.
    workload = iot(1_000, duration_s=600, disorder=True)
    with running_cluster(tmp_path, broker.bootstrap, cluster_name, store_seal_rows="7000") as cluster:
        assert_survives(cluster, workload, 6, 2_000, random.randrange(1 << 32))


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("disorder", [False, True], ids=["ordered", "disordered"])
def test_a_hundred_kills_lose_nothing_of_seven_million_points(
    broker: BrokerInfo, cluster_name: str, tmp_path: Path, disorder: bool
) -> None:
    """The same with 1,000 trucks for 2 hours and 100 kills."""
    workload = iot(1_000, duration_s=7_200, disorder=disorder)
    with running_cluster(tmp_path, broker.bootstrap, cluster_name, store_seal_rows="30000") as cluster:
        assert_survives(cluster, workload, 100, 5_000, random.randrange(1 << 32))


@pytest.mark.slow(30)
def test_two_million_points_are_read_back_from_every_node(
    broker: BrokerInfo, cluster_name: str, tmp_path: Path
) -> None:
    """1,000 trucks for 40 minutes: every node answers with the generated rows, unsealed, sealed, and after all
    were killed at once.
    """
    workload = iot(1_000, duration_s=2_400)
    with running_cluster(tmp_path, broker.bootstrap, cluster_name, store_seal_rows="70000") as cluster:
        with connected(cluster) as shared:
            write_workload(shared, workload)
        assert_holds(cluster, workload)
        for node in cluster.file.nodes:
            cluster.kill(node.name)
        for node in cluster.file.nodes:
            cluster.start_node(node.name)
        cluster.wait_ready()
        seal(cluster)
        assert_holds(cluster, workload, ["n1"])
        verify(cluster)
