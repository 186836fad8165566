"""The Python client against running nodes: read your own writes, deletes, and quorums."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import headrace
from headrace.connectors.kafka.broker import BrokerInfo
from headrace.local_cluster import LocalCluster
from headrace.workload import iot
from headrace.workload.checksum import checksums, compare, workload_checksums
from tests.e2e.actions import running_cluster, seal
from tests.forked import run_forked
from tests.waiting import WAIT_S, eventually

pytestmark = [pytest.mark.broker, pytest.mark.slow(25)]
T0 = datetime(2026, 1, 1, tzinfo=UTC)


@pytest.fixture
def cluster(broker: BrokerInfo, cluster_name: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three running nodes."""
    with running_cluster(tmp_path_factory.mktemp("nodes"), broker.bootstrap, cluster_name) as running:
        yield running


def test_a_client_reads_its_own_writes_and_knows_when_copies_are_missing(cluster: LocalCluster) -> None:
    """Writes and deletes are visible at once; quorum 2 is still acknowledged without a dead node, quorum 3
    never. No node has loaded pandas for it.
    """
    workload = iot(10, duration_s=600)
    with headrace.connect(cluster.bootstrap, cluster.cluster) as client:
        for name, rows in workload.batches():
            with client.writer("fleet", name, tags=workload.tags, quorum=3, quorum_timeout_ms=20_000) as writer:
                writer.write(rows)
        for name, expected in workload_checksums(workload).items():
            found = client.query(f"SELECT * FROM fleet.{name}").to_arrow()
            assert [] == compare(expected, checksums(found, workload.tags))

        with client.writer("db", "t", ["host"], quorum=2, quorum_timeout_ms=20_000) as two_members:
            two_members.write([{"time": T0, "host": f"h{number}", "v": number} for number in range(24)])
            client.delete("db", "t", {"host": "h5"}, start=T0)
            numbers = sorted(row["v"] for row in client.query("SELECT * FROM db.t").to_dicts())
            assert [number for number in range(24) if number != 5] == numbers
            with pytest.raises(headrace.QueryError, match="nothing"):
                client.query("SELECT * FROM db.nothing")

            check_removal(cluster, client)
            check_own_drops(client)
            for node in cluster.file.nodes:
                assert "/pandas/" not in Path(f"/proc/{node.pid}/maps").read_text()
            cluster.kill("n3")
            two_members.write([{"time": T0, "host": "h3", "v": 300}])
            with (
                client.writer("db", "t", quorum=3, quorum_timeout_ms=500) as all_members,
                pytest.raises(headrace.QuorumTimeout) as raised,
            ):
                all_members.write([{"time": T0, "host": "h4", "v": 400}])
        (members,) = raised.value.lagging.values()
        assert ["n3"] == [node for node, state in members.items() if state != "holds it"]
        answer = client.query("SELECT host, v FROM db.t WHERE v >= 100 ORDER BY v").to_dicts()
    assert [("h3", 300), ("h4", 400)] == [(row["host"], row["v"]) for row in answer]


def check_own_drops(client: headrace.Client) -> None:
    """What a client drops is gone for it at once, and back with the next row, whichever node it asks."""
    for round_ in range(20):
        with client.writer("db", "mine", ["site"]) as writer:
            writer.write([{"time": T0, "site": "s0", "v": round_}])
        assert "mine" in {each.table for each in client.tables()}
        assert 1 == client.table("db", "mine").version
        client.drop_table("db", "mine")
        # Whoever answered last is asked first: here it is another one each time.
        client._nodes.note_failure(client._nodes._answered)
        assert "mine" not in {each.table for each in client.tables()}
        with pytest.raises(headrace.HeadraceError, match="there is no table"):
            client.table("db", "mine")


def check_removal(cluster: LocalCluster, client: headrace.Client) -> None:
    """`delete`, `table drop` and `retention set` remove what `--dry-run` counted, and nothing with it."""
    with client.writer("db", "gone", ["site"], quorum=3, quorum_timeout_ms=20_000) as writer:
        writer.write([{"time": T0 + timedelta(days=day), "site": f"s{day % 2}", "v": day} for day in range(4)])
    seal(cluster)
    given = ("--tag", "site=s1", "--end", "2026-01-03")
    assert (1, 0) == counts(run(cluster, *DELETE, *given, "--dry-run"))
    assert 4 == rows(client)
    assert {"table": "db.gone", "deleted": True} == run(cluster, *DELETE, *given)
    # By another process, whose offset this client does not know: a node may answer as of the moment before.
    eventually(lambda: 3 == rows(client), "the delete")
    assert (1, 1) == counts(run(cluster, *DELETE, "--start", "2026-01-04", "--dry-run"))

    keep = f"{(datetime.now(UTC) - T0).days - 1}d"
    found = run(cluster, "retention", "set", "db.gone", keep, "--dry-run")
    assert found["rows"] > 0
    run(cluster, "retention", "set", "db.gone", keep)
    eventually(lambda: 3 - found["rows"] == rows(client), "the retention")
    assert {"table": "db.gone", "retention_s": None} == run(cluster, "retention", "set", "db.gone", "forever")

    assert rows(client) == run(cluster, "table", "drop", "db.gone", "--dry-run")["rows"] > 0
    run(cluster, "table", "drop", "db.gone", "--yes")
    check_gone(cluster, client)


def check_gone(cluster: LocalCluster, client: headrace.Client) -> None:
    """A dropped table is in no list and is no name, and its files go; a row of a client that knew it brings it back."""

    def listed() -> bool:
        return "gone" in {row["table"] for row in client.query("SHOW TABLES").to_dicts()}

    eventually(lambda: not listed(), "no table in SHOW TABLES")
    assert "gone" not in {each.table for each in client.tables()}
    with pytest.raises(headrace.QueryError, match="there is no table"):
        rows(client)
    eventually(lambda: not list(cluster.directory.glob("n*/segments/*/db/gone/**/*.parquet")), "no files")
    with client.writer("db", "gone") as writer:
        writer.write([{"time": T0, "site": "s0", "v": 9}])
    assert 1 == rows(client)
    assert "gone" in {each.table for each in client.tables()}


DELETE = ("delete", "--database", "db", "--table", "gone")


def of(cluster: LocalCluster) -> tuple[str, ...]:
    """The options that name the cluster."""
    return ("--cluster", cluster.cluster, "--bootstrap", cluster.bootstrap)


def run(cluster: LocalCluster, *arguments: str) -> dict[str, Any]:
    """The JSON of a command that succeeds."""
    done = run_forked(*arguments, "--json", *of(cluster))
    assert 0 == done.returncode, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def counts(document: dict[str, Any]) -> tuple[int, int]:
    """Rows and files that would go."""
    return document["rows"], document["files"]


def rows(client: headrace.Client) -> int:
    """Rows of the table."""
    count: int = client.query("SELECT count(*) AS n FROM db.gone").to_dicts()[0]["n"]
    return count


def test_a_stopped_node_does_not_stop_the_client(cluster: LocalCluster) -> None:
    """The node that answered last is asked first. It is stopped, and accepts connections: another one answers."""
    with headrace.connect(cluster.bootstrap, cluster.cluster) as client:
        with client.writer("db", "t", ["host"]) as writer:
            writer.write([{"time": T0, "host": "h0", "v": 1}])
        assert 1 == len(client.query("SELECT * FROM db.t"))
        (first,) = (node for node in cluster.file.nodes if cluster.url(node.name) == client._nodes._answered)
        os.kill(first.pid, signal.SIGSTOP)
        try:
            for timeout_ms in (None, 60_000):
                client._nodes._answered = cluster.url(first.name)
                began_s = time.monotonic()
                assert 1 == len(client.query("SELECT * FROM db.t", timeout_ms=timeout_ms))
                assert time.monotonic() - began_s < WAIT_S / 2
        finally:
            os.kill(first.pid, signal.SIGCONT)
