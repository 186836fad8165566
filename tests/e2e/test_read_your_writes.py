"""A write, then a read at another node that has every acknowledged row: over HTTP, Arrow Flight and the commands."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

import pyarrow.flight as flight
import pytest

import headrace
from headrace.connectors.kafka.broker import BrokerInfo
from headrace.local_cluster import LocalCluster
from headrace.node_client import NodeClient
from tests.e2e.actions import query, running_cluster
from tests.forked import run_forked
from tests.waiting import eventually

NODES = ("n1", "n2", "n3")
PUMPS = 7
SQL = "SELECT max(level) AS level FROM plant.pumps WHERE pump = '{pump}'"
MOMENT = datetime(2026, 1, 1, tzinfo=UTC)


def over_http(cluster: LocalCluster, node: str, sql: str, after: Mapping[str, int]) -> list[dict[str, object]]:
    return list(query(cluster.url(node), sql, after).to_pylist())


def over_flight(cluster: LocalCluster, node: str, sql: str, after: Mapping[str, int]) -> list[dict[str, object]]:
    options = flight.FlightCallOptions(headers=[(b"after", json.dumps(dict(after)).encode())])
    answers: list[list[dict[str, object]]] = []

    def answered() -> bool:
        # As `query` does: a machine that is busy with other tests may fence a node for a moment.
        with suppress(flight.FlightUnavailableError, flight.FlightTimedOutError):
            answers.append(client.do_get(flight.Ticket(sql), options).read_all().to_pylist())
        return bool(answers)

    with flight.connect(NodeClient(cluster.url(node)).status()["flight"]) as client:
        eventually(answered, f"an answer of {node}")
    return answers[0]


def write_and_read(cluster: LocalCluster, rounds: int) -> None:
    """Write one row with a quorum of 1, then read it at the next node, by the next surface; so many times."""
    ways: tuple[Callable[..., list[dict[str, object]]], ...] = (over_http, over_flight)
    with headrace.connect(cluster.bootstrap, cluster.cluster) as client:
        writer = client.writer("plant", "pumps", tags=["pump"], quorum=1)
        for level in range(rounds):
            pump = f"p{level % PUMPS}"
            # The same time again: an answer that lacks the write has the level of an earlier one.
            writer.write([{"time": MOMENT, "pump": pump, "level": level}])
            # Of the writer and not of the client: the newest offset in each log that this writer has used.
            after = writer.flush()
            node, ask = NODES[level % len(NODES)], ways[level // len(NODES) % 2]
            assert [{"level": level}] == ask(cluster, node, SQL.format(pump=pump), after), f"round {level} at {node}"


def test_a_write_is_read_at_every_other_node(broker: BrokerInfo, tmp_path: Path, cluster_name: str) -> None:
    """With two copies on three nodes, some groups are always read from other nodes."""
    with running_cluster(tmp_path, broker.bootstrap, cluster_name, 3, replication=2) as cluster:
        write_and_read(cluster, 60)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_a_thousand_writes_are_read_at_other_nodes(broker: BrokerInfo, tmp_path: Path, cluster_name: str) -> None:
    """The same a thousand times, while groups seal every two seconds."""
    with running_cluster(
        tmp_path, broker.bootstrap, cluster_name, 3, replication=2, store_seal_age_ms="2000"
    ) as cluster:
        write_and_read(cluster, 1_000)


def test_the_commands_pass_offsets_on(broker: BrokerInfo, tmp_path: Path, cluster_name: str) -> None:
    """`write --json` shows the newest offset of each log, `query --after` takes them; bad ones are typed errors."""
    with running_cluster(tmp_path, broker.bootstrap, cluster_name, 3, replication=2) as cluster:
        names = ("--bootstrap", cluster.bootstrap, "--cluster", cluster.cluster)
        lines = "".join(f"pumps,pump=p{number} level={number}i {number}000000000\n" for number in range(200))
        (tmp_path / "pumps.lp").write_text(lines)
        database = ("--database", "plant", "--any-time")
        written = run_forked("write", str(tmp_path / "pumps.lp"), *database, "--json", *names)
        offsets = json.loads(written.stdout)["offsets"]
        assert set(offsets) <= {f"{cluster.cluster}.forward.{node}.1" for node in NODES}
        assert offsets

        def ask(after: str, *more: str) -> tuple[int, str, str]:
            sql = "SELECT count(*) AS n FROM plant.pumps"
            done = run_forked("query", sql, "--json", "--node", cluster.url("n2"), "--after", after, *more)
            return done.returncode, done.stdout, done.stderr

        code, out, _ = ask(json.dumps(offsets))
        assert (0, [{"n": 200}]) == (code, json.loads(out))
        code, _, errors = ask(f'{{"{cluster.cluster}.forward.n9.1": 1}}')
        assert (1, "UnknownLog") == (code, kind(errors))
        for topic, offset in offsets.items():
            code, _, errors = ask(json.dumps({topic: offset + 1_000}), "--timeout", "1")
            assert (1, "NotCaughtUp") == (code, kind(errors))


def kind(errors: str) -> object:
    """The type of the error that a command shows with --json."""
    return json.loads(errors.splitlines()[-1])["error"]["type"]
