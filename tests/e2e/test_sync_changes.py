"""An edge sends files and deletes while nodes of the centre come and go, and receivers are killed."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from headrace.connectors.kafka.broker import BrokerInfo
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.sync.topics import ensure_sync_topics
from headrace.node_process import NodeProcess
from tests.e2e.actions import running_cluster, verify
from tests.e2e.sync_site import SyncSite
from tests.e2e.test_cluster_changes import change
from tests.e2e.test_sync import check_rows
from tests.e2e.test_sync_receive import PARTITIONS, Receivers
from tests.waiting import eventually

ROWS, DAYS, DAY_ROWS = 40, 6, 86_400
"""A round writes some rows of each of so many days, so that they fall into all groups."""
SETTLED_S = 60.0


class Edge:
    """Writes, late writes and deletes of one edge, on a thread, until it is stopped."""

    def __init__(self, site: SyncSite) -> None:
        self._site = site
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.rounds = 0
        self.failure: BaseException | None = None

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def stop(self) -> None:
        """End the round, and begin no other. Raises what ended the thread."""
        self._stopping.set()
        self._thread.join(SETTLED_S)
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        try:
            while not self._stopping.wait(0.3):
                self._round(self.rounds)
                self.rounds += 1
        except BaseException as error:
            self.failure = error

    def _round(self, number: int) -> None:
        day = number % DAYS * DAY_ROWS
        begin = day + number // DAYS * ROWS
        self._site.write(ROWS, 100, begin)
        if number % 4 == 3:
            # Rows of this day and of others, some of which are written again.
            self._site.delete("d1", begin - 20, begin + 20)
            self._site.write(20, 100, max(0, begin - 10))


@pytest.mark.slow(60)
@pytest.mark.timeout(400)
def test_an_edge_arrives_whole_while_nodes_come_and_go(broker: BrokerInfo, tmp_path: Path, cluster_name: str) -> None:
    """A node joins and another leaves under files and deletes; the receiver is killed in both. All rows are equal."""
    with (
        running_cluster(
            tmp_path / "centre", broker.bootstrap, cluster_name, 3, replication=2, cluster_ended_log_kept_s="1"
        ) as cluster,
        ExitStack() as stack,
    ):
        with closing(KafkaLog(broker.bootstrap)) as log:
            ensure_sync_topics(log, Topics(cluster_name), PARTITIONS)
        receivers = Receivers(cluster, tmp_path)
        stack.callback(receivers.end_all)
        site = SyncSite(tmp_path / "edge", "edge", broker.bootstrap, cluster_name, 1)
        stack.callback(site.kill)
        site.start()
        receivers.start("r1")
        edge = Edge(site)
        edge.start()
        site.start_sender("--interval-s", "0.5")
        eventually(lambda: site.document().get("accepted", 0) >= 5, "files before the change", SETTLED_S)

        def restart() -> None:
            receivers.end("r1")
            receivers.start("r1")

        cluster.file.nodes.append(NodeProcess("n4", ""))
        cluster.start_node("n4")
        cluster.wait_ready(["n1", "n2", "n3"])
        during(restart, lambda: change(cluster, "add", "n4"))
        accepted = site.document()["accepted"]
        eventually(lambda: site.document()["accepted"] >= accepted + 5, "files between the changes", SETTLED_S)
        during(restart, lambda: change(cluster, "remove", "n2"))
        eventually(lambda: not cluster.node("n2").running, "the removed node ends", SETTLED_S)
        edge.stop()
        eventually(lambda: site.verify(cluster)[0] != 2, "all of the edge", SETTLED_S)
        check_rows(cluster, [site], ("n1", "n3", "n4"))
        code, document = site.verify(cluster)
        assert (0, True) == (code, document["ok"]), document
        assert edge.rounds >= 20
        assert 0 == site.end_sender()
        assert 3 == len(verify(cluster))


def during(fault: Callable[[], None], work: Callable[[], object]) -> None:
    """Do something, with a fault in the middle. Raises what ended either."""
    timer = threading.Timer(1.0, fault)
    timer.start()
    try:
        work()
    finally:
        timer.join()
