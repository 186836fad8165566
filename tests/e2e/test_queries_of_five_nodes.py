"""Every query of TSBS at every node of five with three replicas: the answer of DuckDB, whatever happens below it."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from headrace.client import Client, connect
from headrace.connectors.kafka.broker import BrokerInfo
from headrace.local_cluster import LocalCluster
from headrace.node_client import NodeClient
from headrace.node_process import NodeProcess
from tests.e2e.actions import running_cluster, seal
from tests.e2e.query_truth import QueryLoad, Truth, running, write_all
from tests.forked import run_forked
from tests.waiting import eventually

pytestmark = [pytest.mark.broker]
NODES = ("n1", "n2", "n3", "n4", "n5")
CHANGE_TIMEOUT_S = 240
RESTART_S = 240.0
"""Nodes that are killed again and again serve within this, also on a busy machine."""
LOST = {"ReplicaLost", "GroupUnavailable", "NotReady"}
"""The errors of a query whose members are gone: by whether it, or the end of their heartbeats, came first."""
SETTINGS: dict[str, Any] = {"store_seal_age_ms": "4000"}


class Scene:
    """A cluster with all rows, and those who ask it."""

    def __init__(self, cluster: LocalCluster, client: Client, *, pause_s: float) -> None:
        self.cluster = cluster
        self.truth = Truth()
        write_all(client, self.truth, between=lambda: seal(cluster))
        rows = self.truth.finish()
        self.load = QueryLoad(self.truth, client.flush(), self.urls, pause_s)
        self._client, self._rows = client, rows

    def urls(self) -> dict[str, str]:
        """The nodes by name."""
        return {node.name: self.cluster.url(node.name) for node in self.cluster.file.nodes}

    def rewrite(self, pause_s: float) -> None:
        """Begin to write what is there already, so that groups seal and merge all the time."""
        self.load.rewrite(self._client, self._rows, pause_s)

    def change(self, *words: str) -> None:
        """Run `headrace cluster …` to the end of the change."""
        done = run_forked(
            *("cluster", *words, "--timeout", str(CHANGE_TIMEOUT_S), "--json"),
            *("--cluster", self.cluster.cluster, "--bootstrap", self.cluster.bootstrap),
            timeout_s=CHANGE_TIMEOUT_S + 60,
        )
        assert 0 == done.returncode, f"{words}: {done.stdout}{done.stderr}"

    def add(self, name: str) -> None:
        """A node joins."""
        self.cluster.file.nodes.append(NodeProcess(name, ""))
        self.cluster.start_node(name)
        self.cluster.wait_ready([name])
        self.change("add", name)
        self.load.ask(name)

    def kill_one_each_second(self, names: tuple[str, ...], seconds: int, seed: int) -> None:
        """Each second another node is killed, and starts again at once."""
        chance, last = random.Random(seed), ""
        for _ in range(seconds):
            began_s = time.monotonic()
            last = chance.choice([name for name in names if name != last])
            self.cluster.kill(last)
            self.cluster.start_node(last)
            time.sleep(max(0.0, 1.0 - (time.monotonic() - began_s)))

    def check(self) -> None:
        """No answer was wrong, and no error was one that may not be retried."""
        assert [] == self.load.faults, f"{len(self.load.faults)} faults"


def run_scene(
    directory: Path, broker: BrokerInfo, name: str, play: Callable[[Scene], None], *, pause_s: float = 0.05
) -> None:
    """Play on a cluster of five nodes with three replicas that has all rows, half of them sealed."""
    with (
        running_cluster(directory, broker.bootstrap, name, 5, replication=3, **SETTINGS) as cluster,
        connect(bootstrap=cluster.bootstrap, cluster=cluster.cluster) as client,
    ):
        scene = Scene(cluster, client, pause_s=pause_s)
        with running(scene.load):
            play(scene)
        scene.check()


def lose_all_members(scene: Scene) -> None:
    """The members of a group die together: the command says so, and shows no part of the rows."""
    cluster = scene.cluster
    shown = NodeClient(cluster.url("n1")).cluster()
    members = {group["group"]: group["members"] for group in shown["groups"]}
    asked = sorted(members)[0]
    lost = next(found for found in members.values() if asked not in found)
    killers = [threading.Thread(target=cluster.kill, args=(each,)) for each in lost]
    for thread in killers:
        thread.start()
    for thread in killers:
        thread.join()
    done = run_forked("query", "SELECT * FROM tsbs.cpu", "--json", "--node", cluster.url(asked))
    assert (1, "") == (done.returncode, done.stdout)
    error = json.loads(done.stderr.splitlines()[-1])["error"]
    assert error["type"] in LOST, error
    assert (True, False) == (error["retriable"], error["state_unknown"])


@pytest.mark.slow(150)
@pytest.mark.timeout(900)
def test_every_query_at_every_node_is_that_of_duckdb(broker: BrokerInfo, tmp_path: Path, cluster_name: str) -> None:
    """Half sealed; while groups seal and merge; while a node joins; while one is killed each second.

    Behind that every node answers everything. Once the members of a group are all gone the command has a typed error.
    """

    def play(scene: Scene) -> None:
        # Which node is asked what: all of it, the soak test does.
        for place, name in enumerate(NODES):
            scene.load.check_all(name, place, len(NODES))
        scene.check()
        scene.load.ask(*NODES)
        scene.rewrite(1.0)
        scene.add("n6")
        scene.kill_one_each_second((*NODES, "n6"), 4, seed=1)
        answered = sum(scene.load.answers.values())
        eventually(lambda: sum(scene.load.answers.values()) > answered + 12, "answers behind the kills", RESTART_S)
        scene.load.stop()
        scene.cluster.wait_ready(timeout_s=RESTART_S)
        for name in ("n1", "n6"):
            scene.load.check_all(name)
        lose_all_members(scene)

    # Six askers without rest would be most of what a small machine does; the kills are what it is about.
    run_scene(tmp_path, broker, cluster_name, play, pause_s=1.8)


@pytest.mark.soak
@pytest.mark.slow(400)
@pytest.mark.timeout(3_600)
def test_every_query_through_changes_and_kills(broker: BrokerInfo, tmp_path: Path, cluster_name: str) -> None:
    """The same for minutes: a node joins and another leaves under kills, several times."""
    seed = int(os.environ.get("HEADRACE_FAULT_SEED", "1"))

    def play(scene: Scene) -> None:
        for name in NODES:
            scene.load.check_all(name)
        scene.load.ask(*NODES)
        scene.rewrite(0.1)
        scene.add("n6")
        scene.kill_one_each_second((*NODES, "n6"), 60, seed)
        scene.cluster.wait_ready(timeout_s=RESTART_S)
        scene.load.ask_no_more("n3")
        scene.change("remove", "n3")
        eventually(lambda: not scene.cluster.node("n3").running, "the removed node ends")
        stay = ("n1", "n2", "n4", "n5", "n6")
        scene.kill_one_each_second(stay, 60, seed + 1)
        scene.load.stop()
        scene.cluster.wait_ready(timeout_s=RESTART_S)
        for name in stay:
            scene.load.check_all(name)

    run_scene(tmp_path, broker, cluster_name, play)
