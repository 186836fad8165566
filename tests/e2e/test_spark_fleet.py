"""A fleet as line protocol through Kafka and Spark into three nodes, while nodes and the driver are killed:
every row arrives once on each.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from headrace.connectors.kafka.broker import BrokerInfo
from headrace.local_cluster import LocalCluster
from headrace.workload.encode import to_line_protocol
from headrace.workload.workload import Workload, iot
from tests.e2e.actions import DATABASE, assert_holds, running_cluster, seal, verify
from tests.e2e.test_kill import assert_rebuilt

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 2_400
PARTITIONS = 2


def produce(bootstrap: str, topic: str, workload: Workload, lines_per_message: int) -> None:
    """Produce all tables as line protocol to a new raw topic, each series on one partition in order of the
    workload.
    """
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        admin.create_topics([NewTopic(topic, PARTITIONS, 1)])[topic].result(60)
    settings = {
        "linger.ms": 20,
        "queue.buffering.max.messages": 2_000_000,
        "compression.type": "lz4",
        "enable.idempotence": True,
    }
    producer = Producer({"bootstrap.servers": bootstrap, **settings})
    for index, table in enumerate(workload.tables):
        lines = to_line_protocol(table, workload.read(table)).to_pylist()
        for first in range(0, len(lines), lines_per_message):
            producer.produce(topic, "\n".join(lines[first : first + lines_per_message]), partition=index % PARTITIONS)
            if first % 10_000 == 0:
                producer.poll(0)
        assert 0 == producer.flush(300)


@contextmanager
def ingesting(cluster: LocalCluster, topic: str, *more: str) -> Iterator[subprocess.Popen[str]]:
    """`headrace ingest run` on the topic, killed with all its children at the end if it still runs."""
    source = ["--cluster", cluster.cluster, "--bootstrap", cluster.bootstrap, "--topic", topic]
    target = ["--database", DATABASE, "--format", "influx", "--checkpoint", str(cluster.directory / "checkpoint")]
    line = [sys.executable, "-m", "headrace", "ingest", "run", *source, *target, "--interval-s", "0", "--json", *more]
    with subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    ) as process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def kill_nodes(cluster: LocalCluster, kills: int, rng: random.Random) -> None:
    """Kill and restart random nodes at random times: mostly a node that serves, sometimes one that is still
    starting.
    """
    for _ in range(kills):
        time.sleep(rng.uniform(0.0, 4.0))
        victim = rng.choice([node.name for node in cluster.file.nodes])
        if rng.random() < 0.8:
            cluster.wait_ready([victim])
        cluster.kill(victim)
        cluster.start_node(victim)


def ingest_all(cluster: LocalCluster, topic: str, driver_kills: Sequence[float]) -> None:
    """Ingest to the end of the topic; each of the first runs has its driver killed after some seconds."""
    for seconds in driver_kills:
        with ingesting(cluster, topic, "--max-messages", "20000") as process:
            time.sleep(seconds)
            process.kill()
    with ingesting(cluster, topic, "--available-now") as process:
        stdout, stderr = process.communicate(timeout=WAIT_S)
    assert 0 == process.returncode, stderr
    assert 0 == json.loads(stdout)["rejected"]


@pytest.mark.spark
@pytest.mark.soak
@pytest.mark.timeout(5_400)
def test_seven_million_points_through_spark_survive_kills_and_a_rebuild(
    broker: BrokerInfo, cluster_name: str, tmp_path: Path
) -> None:
    """1,000 trucks for 2 hours, one row a message: 20 kills of nodes and 3 of the driver.

    Then all nodes are killed at once, and two of them are rebuilt.
    """
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    workload, topic = iot(1_000, duration_s=7_200), f"{cluster_name}.ingest.fleet"
    produce(broker.bootstrap, topic, workload, lines_per_message=1)
    with running_cluster(tmp_path, broker.bootstrap, cluster_name, store_seal_rows="100000") as cluster:
        failures: list[BaseException] = []

        def work() -> None:
            try:
                ingest_all(cluster, topic, [rng.uniform(10, 25) for _ in range(3)])
            except BaseException as error:
                failures.append(error)

        started_s = time.monotonic()
        worker = threading.Thread(target=work)
        worker.start()
        kill_nodes(cluster, 20, random.Random(seed + 1))
        worker.join()
        assert not failures, failures
        cluster.wait_ready()
        assert_holds(cluster, workload)
        print(f"{workload.points} points on three nodes after the kills, {time.monotonic() - started_s:.0f} s")
        for node in cluster.file.nodes:
            cluster.kill(node.name)
        for node in cluster.file.nodes:
            cluster.start_node(node.name)
        cluster.wait_ready()
        seal(cluster)
        assert_holds(cluster, workload)
        verify(cluster)
        assert_rebuilt(cluster, workload)
        print(f"rebuilt after {time.monotonic() - started_s:.0f} s")
