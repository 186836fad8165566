"""Faults of the log: Kafka away, a topic deleted or recreated, foreign bytes, records of a newer format,
oversized records.

Each gives a clear reason, and nothing is lost.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka.admin import AdminClient

from headrace.client import Client, connect
from headrace.connectors.kafka.broker import BrokerInfo, EmbeddedBroker
from headrace.connectors.kafka.broker_process import free_port
from headrace.connectors.log.port import Record, RecordTooLarge
from headrace.connectors.log.topics import Topics
from headrace.consumers.query.query_errors import QueryError
from headrace.local_cluster import LocalCluster
from headrace.node_client import NodeClient
from headrace.producers.cluster import Cluster
from headrace.producers.router import RowTooLarge
from headrace.schemas.framing import FORMAT, FORMAT_HEADER, format_headers
from headrace.workload.workload import iot
from tests.e2e.actions import (
    assert_holds,
    connected,
    eventually_unready,
    group_status,
    headrace,
    kill_all,
    local_cluster,
    log_text,
    query,
    running_cluster,
    seal,
    status,
    verify,
    write,
    write_workload,
)
from tests.waiting import eventually

STOP_S = 15.0
MEBIBYTE = 1024 * 1024
WORKLOAD = iot(100, duration_s=600)
COUNT = f"SELECT count(*) AS rows FROM fleet.{next(iter(WORKLOAD.tables))}"


def node_command(bootstrap: str, directory: Path) -> list[str]:
    """The arguments of `headrace` for the only node of a cluster."""
    return [
        *("node", "run", "--cluster", "nowhere", "--id", "n1", "--nodes", "n1", "--bootstrap", bootstrap),
        *("--data-dir", str(directory / "data"), "--http", "127.0.0.1:0"),
    ]


@pytest.mark.slow(11)
def test_a_node_without_kafka_waits_and_then_ends_with_an_error(tmp_path: Path) -> None:
    """It logs the address it waits for, and ends with one clear error at its timeout."""
    bootstrap = f"127.0.0.1:{free_port()}"
    done = headrace(*node_command(bootstrap, tmp_path), environment={"HEADRACE__NODE__STARTUP_TIMEOUT_S": "2"})
    assert 1 == done.returncode
    assert f"waiting for Kafka at {bootstrap}" in done.stderr
    errors = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert 1 == len(errors), done.stderr
    assert bootstrap in errors[0]


@pytest.mark.slow(12)
def test_a_node_that_waits_for_kafka_ends_on_sigterm(tmp_path: Path) -> None:
    """SIGTERM ends a start that waits, at once and without an error."""
    command = [sys.executable, "-m", "headrace", *node_command(f"127.0.0.1:{free_port()}", tmp_path)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        started = time.monotonic()
        assert "waiting for Kafka" in child.stderr.readline()
        child.send_signal(signal.SIGTERM)
        rest = child.stderr.read()
        assert 0 == child.wait(STOP_S), rest
        assert "Traceback" not in rest
        assert STOP_S + 20 > time.monotonic() - started


@pytest.mark.slow(55)
def test_an_outage_of_the_broker_loses_nothing(own_broker: EmbeddedBroker, cluster_name: str, tmp_path: Path) -> None:
    """Without Kafka no node serves, but for those who allow an older answer, and a starting one waits; with Kafka
    back all continue by themselves.
    """
    cluster = local_cluster(tmp_path, own_broker.start().bootstrap, cluster_name)
    try:
        cluster.start()
        with connected(cluster) as shared:
            write_workload(shared, WORKLOAD, 2_000)
        with connect(cluster.bootstrap, cluster_name) as client:
            current = client.query(COUNT, stale="5m")
            assert current.as_of is None
            know_their_ends(cluster)
            own_broker.stop()
            for node in cluster.file.nodes:
                eventually_unready(cluster, node.name, "not read back within 3 s")
            assert_older_answers(cluster, client, current.to_dicts())
        cluster.kill("n2")
        log_length = len(log_text(cluster, "n2"))
        cluster.start_node("n2")
        eventually(lambda: "waiting for Kafka" in log_text(cluster, "n2")[log_length:], "a node that waits for Kafka")
        own_broker.start()
        cluster.wait_ready()
        with connected(cluster) as shared:
            write_workload(shared, WORKLOAD, 7_000)
        assert_holds(cluster, WORKLOAD)
        seal(cluster)
        verify(cluster)
    finally:
        kill_all(cluster)


def know_their_ends(cluster: LocalCluster) -> None:
    """Wait until every node knows that it holds all that was written before this call."""
    written_s = time.monotonic()
    for node in cluster.file.nodes:
        eventually(
            lambda name=node.name: 0 <= status(cluster, name)["data_age_s"] < time.monotonic() - written_s,
            f"an end of every log at {node.name}",
        )


def assert_older_answers(cluster: LocalCluster, client: Client, rows: list[dict[str, object]]) -> None:
    """Each node answers with all rows and their age when that is allowed, and names the way out when it is not."""
    for node in cluster.file.nodes:
        answer = client.query(COUNT, stale="5m", node=cluster.url(node.name))
        assert rows == answer.to_dicts()
        assert answer.as_of is not None
        assert timedelta(seconds=2) < datetime.now(UTC) - answer.as_of < timedelta(minutes=5)
    assert rows == client.query(COUNT, stale_ok=True).to_dicts()
    with pytest.raises(QueryError, match="everything up to"):
        NodeClient(cluster.url("n1")).query(COUNT)
    # As text, and refused: see first_hour.sh.
    document = json.loads(headrace("query", "--node", cluster.url("n1"), "--stale", "5m", "--json", COUNT).stdout)
    assert rows == document["rows"]
    assert datetime.fromisoformat(document["as_of"]) < datetime.now(UTC)
    nowhere = headrace("query", "--bootstrap", cluster.bootstrap, "--stale", "5m", COUNT)
    assert (1, True) == (nowhere.returncode, "--node URL" in nowhere.stderr), nowhere


@pytest.mark.slow(23)
def test_a_topic_deleted_under_running_nodes_stops_its_group_only(
    broker: BrokerInfo, cluster_name: str, tmp_path: Path
) -> None:
    """The group of the topic stops with the reason and keeps its data; the others accept records; a recreated
    topic is not followed.
    """
    with running_cluster(tmp_path, broker.bootstrap, cluster_name) as cluster:
        with connected(cluster) as shared:
            write_workload(shared, WORKLOAD)
            seal(cluster)
            segments = sorted(cluster.data_directory("n1").rglob("*.parquet"))
            topic = shared.topics.forward("n2")
            with AdminClient({"bootstrap.servers": cluster.bootstrap}) as admin:
                admin.delete_topics([topic])[topic].result(30)
            for node in cluster.file.nodes:
                assert topic in eventually_unready(cluster, node.name, "data is kept")
            assert_others_continue(cluster, shared)
            shared.log.create_topic(topic, {})
            # The old producer caches that the topic does not exist.
            appender = shared.log.appender()
            appender.append(topic, b"something else", headers=format_headers())
            assert 0 == appender.flush(10)
            appender.close()
        cluster.kill("n3")
        cluster.start_node("n3")
        reason = eventually_unready(cluster, "n3", "recreated")
        assert "data is kept" in reason
        assert group_status(cluster, "n1", "n2")["reason"]
        assert 0 == group_status(cluster, "n3", "n1")["lag_records"]
        assert segments == sorted(cluster.data_directory("n1").rglob("*.parquet"))


def assert_others_continue(cluster: LocalCluster, shared: Cluster) -> None:
    """The groups n1 and n3 append a record, and every node applies it."""
    for group in ("n1", "n3"):
        before = group_status(cluster, "n1", group)["version"]
        shared.appender.append(shared.topics.forward(group), b"foreign bytes", headers=format_headers())
        assert 0 == shared.appender.flush(10)
        for node in cluster.file.nodes:
            eventually(
                lambda name=node.name, group=group, before=before: (
                    group_status(cluster, name, group)["version"] > before
                ),
                f"a record of group {group} at {node.name}",
            )


@pytest.fixture(scope="module")
def cluster(broker: BrokerInfo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A cluster for the tests of foreign and large records."""
    with running_cluster(tmp_path_factory.mktemp("foreign"), broker.bootstrap, "foreign") as cluster:
        yield cluster


@pytest.mark.slow(7)
def test_foreign_bytes_are_counted_and_ignored_by_all(cluster: LocalCluster) -> None:
    """Undecodable bytes advance the version and change nothing else, on every replica alike."""
    with connected(cluster) as shared:
        write_workload(shared, WORKLOAD, 5_000)
        topic = shared.topics.forward("n2")
        frame = next(record.value for record in first_records(shared, topic) if len(record.value) > 1_000)
        garbage = [b"", b"\xc3\x01", b"hello", bytes(100_000), frame[:-1], frame[:10] + b"\xff" * 20, frame[2:]]
        for value in garbage:
            shared.appender.append(topic, value, headers=format_headers())
            shared.appender.append(topic, value)
        shared.appender.append(topic, b"x" * (15 * MEBIBYTE))
        assert 0 == shared.appender.flush(30)
        write_workload(shared, WORKLOAD, 8_000)
    assert_holds(cluster, WORKLOAD)
    counts = [group_status(cluster, node.name, "n2")["ignored"] for node in cluster.file.nodes]
    assert counts[0] == counts[1] == counts[2]
    assert 2 * len(garbage) + 1 == counts[0]["undecodable"]


def first_records(shared: Cluster, topic: str) -> list[Record]:
    """The first records of a topic."""
    reader = shared.log.reader({topic: 0})
    try:
        return [record for _ in range(20) for record in reader.poll(100, 0.1)]
    finally:
        reader.close()


@pytest.mark.slow(9)
def test_fifty_megabytes_are_split_or_refused(cluster: LocalCluster) -> None:
    """A record or a row of 50 MB is refused before it is sent.

    Fifty rows of 1 MB become several messages and are read back complete.
    """
    with connected(cluster) as shared:
        refused: list[object] = []
        with pytest.raises(RecordTooLarge):
            shared.appender.append(
                shared.topics.forward("n1"),
                bytes(50 * MEBIBYTE),
                on_delivery=lambda _offset, error: refused.append(error),
            )
        texts = [chr(ord("a") + number % 26) * MEBIBYTE for number in range(50)]
        rows = pa.table(
            {"pump": ["p"] * 50, "time": pa.array(range(50), pa.int64()), "note": texts},
        )
        with pytest.raises(RowTooLarge):
            write(shared, "notes", pa.table({"pump": ["p"], "time": [0], "note": [incompressible(50)]}), ["pump"])
        write(shared, "notes", rows, ["pump"])
        offset = write(shared, "notes", pa.table({"pump": ["q"], "time": [0], "note": [incompressible(5)]}), ["pump"])
        assert offset
    verify(cluster)
    for node in cluster.file.nodes:
        found = query(
            cluster.url(node.name),
            "SELECT pump, count(*) AS rows, sum(length(note)) AS size FROM fleet.notes GROUP BY 1",
        )
        sizes = {row["pump"]: (row["rows"], row["size"]) for row in found.to_pylist()}
        assert {"p": (50, 50 * MEBIBYTE), "q": (1, 5 * MEBIBYTE)} == sizes


def incompressible(mebibytes: int) -> str:
    """Text that no compression makes smaller than half."""
    import random

    return random.Random(mebibytes).randbytes(mebibytes * MEBIBYTE // 2).hex()


@pytest.mark.slow(9)
def test_a_newer_format_stops_the_group_and_requests_an_upgrade(
    broker: BrokerInfo, cluster_name: str, tmp_path: Path
) -> None:
    """A record that only a newer build can read is never skipped: the group stops before it, also after a
    restart.
    """
    with running_cluster(tmp_path, broker.bootstrap, cluster_name, nodes=1) as cluster:
        with connected(cluster) as shared:
            write_workload(shared, WORKLOAD, 5_000)
            topic = Topics(cluster.cluster).forward("n1")
            shared.appender.append(topic, b"from the future", headers=[(FORMAT_HEADER, str(FORMAT + 1).encode())])
            assert 0 == shared.appender.flush(10)
        assert "pgrade" in eventually_unready(cluster, "n1", f"format {FORMAT + 1}")
        version = group_status(cluster, "n1", "n1")["version"]
        cluster.kill("n1")
        cluster.start_node("n1")
        assert "pgrade" in eventually_unready(cluster, "n1", f"format {FORMAT + 1}")
        assert version == group_status(cluster, "n1", "n1")["version"]
