"""A centre that sends to another one: files, late files and deletes of an edge pass it, and no loop is entered."""

from __future__ import annotations

import json
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest

from headrace.connectors.kafka.broker import BrokerInfo
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.sync.topics import ensure_sync_topics
from headrace.local_cluster import LocalCluster
from tests.e2e.actions import query, running_cluster
from tests.e2e.sync_site import DAY_S, SyncSite
from tests.e2e.test_sync_receive import Receivers
from tests.forked import run_forked
from tests.waiting import eventually

SQL = "SELECT dev, epoch(time)::BIGINT AS s, v FROM plant.m"


class Relay:
    """The sender of one centre to another one."""

    def __init__(self, source: LocalCluster, target: LocalCluster, state: Path) -> None:
        self._arguments = ["sync", "send", "--node", source.url("n1"), "--to-bootstrap", target.bootstrap]
        self._arguments += ["--to-cluster", target.cluster, "--data-dir", str(state), "--seal-age-s", "0"]
        self._arguments += ["--once", "--json"]

    def send(self, code: int = 0) -> dict[str, Any]:
        """One round; its counts."""
        done = run_forked(*self._arguments)
        assert code == done.returncode, done.stdout + done.stderr
        return dict(json.loads(done.stdout))


def assert_values(cluster: LocalCluster, site: SyncSite) -> None:
    """A centre has exactly the rows of the edge."""

    def found() -> dict[tuple[str, int], int]:
        return {(row["dev"], row["s"]): row["v"] for row in query(cluster.url("n1"), SQL).to_pylist()}

    eventually(lambda: found() == site.values, f"{len(site.values)} rows at {cluster.cluster}; it has {len(found())}")


@pytest.mark.slow(40)
def test_what_an_edge_writes_and_deletes_passes_a_centre(broker: BrokerInfo, tmp_path: Path, cluster_name: str) -> None:
    """Both centres have its rows after each round, deletes included; sent back they are refused, as a loop."""
    with ExitStack() as stack:
        centres = []
        for name in (f"{cluster_name}one", f"{cluster_name}two"):
            cluster = stack.enter_context(running_cluster(tmp_path / name, broker.bootstrap, name, 1, replication=1))
            with closing(KafkaLog(broker.bootstrap)) as log:
                ensure_sync_topics(log, Topics(name), 1)
            receivers = Receivers(cluster, tmp_path / name)
            stack.callback(receivers.end_all)
            receivers.start("r1")
            centres.append(cluster)
        first, second = centres
        site = SyncSite(tmp_path / "edge", "edge", broker.bootstrap, first.cluster, 1)
        stack.callback(site.kill)
        site.start()
        relay = Relay(first, second, tmp_path / "relay")

        def pass_on() -> None:
            assert 0 == site.send_once()["rejected"]
            relay.send()
            for cluster in (first, second):
                assert_values(cluster, site)

        site.write(40, 20, 0)
        site.write(40, 20, DAY_S)
        pass_on()
        site.delete("d1", 0, 20)
        site.write(4, 20, 8)
        pass_on()
        # Alone, and without any file behind it.
        site.delete("d2", DAY_S, DAY_S + 40)
        pass_on()
        back = Relay(second, first, tmp_path / "back").send(code=3)
        assert (0, True) == (back["accepted"], back["rejected"] > 0)
        assert_values(first, site)
