"""Receivers at a real cluster: files of two senders arrive whole, once, and at every member."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.connectors.kafka.broker import BrokerInfo
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.sync.topics import cluster_identity, ensure_sync_topics
from headrace.local_cluster import LocalCluster
from headrace.schemas.sync_records import SyncDelete, SyncDeletes, Verdict
from tests.e2e.actions import query, running_cluster, verify
from tests.forked import Forked, parent, run_forked
from tests.sync_sender import DAY_NS, GROUP, SECOND_NS, FakeSender, sealed_file
from tests.waiting import eventually

PARTITIONS = 2
SUMS = "SELECT pump, count(*) AS c, sum(flow) AS f FROM plant.pumps GROUP BY pump ORDER BY pump"
MEMBERS = ("n1", "n2", "n3")


class Receivers:
    """Processes of `headrace sync receive`."""

    def __init__(self, cluster: LocalCluster, directory: Path) -> None:
        self._cluster = cluster
        self._directory = directory
        self._running: dict[str, Forked] = {}

    def start(self, name: str) -> None:
        """Start one."""
        arguments = ["sync", "receive", "--cluster", self._cluster.cluster, "--bootstrap", self._cluster.bootstrap]
        arguments += ["--data-dir", str(self._directory / name), "--id", name, "-X", "session.timeout.ms=6000"]
        with Path(os.devnull).open("rb") as nothing, (self._directory / f"{name}.log").open("ab") as log:
            self._running[name] = parent().fork(arguments, [nothing, log, log], self._cluster.node_environment())

    def log(self, name: str) -> str:
        """What it has logged."""
        return (self._directory / f"{name}.log").read_text(errors="replace")

    def end(self, name: str, number: int = signal.SIGKILL) -> int:
        """Send a signal, and wait for the end; the exit code."""
        process = self._running.pop(name)
        os.kill(process.pid, number)
        return process.wait(60.0)

    def end_all(self) -> None:
        """Kill what runs."""
        for name in list(self._running):
            self.end(name)


@contextmanager
def centre(directory: Path, broker: BrokerInfo, name: str) -> Iterator[tuple[LocalCluster, Receivers]]:
    """A cluster of three nodes with topics for senders, and its receivers, none of which runs."""
    with running_cluster(directory, broker.bootstrap, name) as cluster:
        log = KafkaLog(cluster.bootstrap)
        ensure_sync_topics(log, Topics(name), PARTITIONS)
        log.close()
        receivers = Receivers(cluster, directory)
        try:
            yield cluster, receivers
        finally:
            receivers.end_all()


def readings(pump: str, start_s: int, count: int, value: float) -> Mapping[str, list[tuple[int, float]]]:
    """Readings of one pump, one a second."""
    return {pump: [((start_s + number) * SECOND_NS, value) for number in range(count)]}


def assert_rows(
    cluster: LocalCluster, expected: list[tuple[str, int, float]], names: tuple[str, ...] = MEMBERS
) -> None:
    """Each node has exactly these rows: (pump, rows, sum of values)."""
    for name in names:

        def found(name: str = name) -> list[tuple[str, int, float]]:
            rows = query(cluster.url(name), SUMS).to_pylist()
            return [(row["pump"], row["c"], row["f"]) for row in rows]

        eventually(lambda found=found: found() == expected, f"{expected} at {name}; it has {found()}")


@pytest.mark.slow(20)
def test_files_of_senders_arrive_once_through_failures(broker: BrokerInfo, tmp_path: Path) -> None:
    """Files are loaded once, through a killed receiver, a member that is down, and damage; a conflict costs one file.

    The two values of one (series, time) come in the wrong order: that of the later file wins.
    """
    with centre(tmp_path, broker, "syncc") as (cluster, receivers):
        first = FakeSender(cluster.bootstrap, "syncc", PARTITIONS, name="north")
        second = FakeSender(cluster.bootstrap, "syncc", PARTITIONS, name="south", store="other-store")
        receivers.start("r1")
        receivers.start("r2")
        # The later file is loaded before the earlier one.
        late = sealed_file(readings("d1", 0, 50, 2.0), version=20, md5=True)
        early = sealed_file(readings("d1", 0, 100, 1.0), version=10)
        assert Verdict.ACCEPTED is first.verdict(first.send(late)).state
        assert Verdict.ACCEPTED is first.verdict(first.send(early)).state
        assert_rows(cluster, [("d1", 100, 150.0)])

        # Sender B's file with {d1, d2} is rejected, d2 stays free, and its other files are loaded.
        both = sealed_file({**readings("d1", 0, 5, 9.0), **readings("d2", 0, 5, 9.0)}, version=5, store="other-store")
        refused = second.verdict(second.send(both))
        assert (Verdict.REJECTED, "DeviceOwned") == (refused.state, refused.kind)
        assert "plant/pumps,pump=d1" in refused.message
        assert first.sender in refused.message
        assert "north" in refused.message
        assert Verdict.ACCEPTED is first.verdict(first.send(sealed_file(readings("d2", 0, 5, 1.0), version=30))).state
        other = sealed_file(readings("d3", DAY_NS // SECOND_NS, 7, 3.0), version=6, store="other-store")
        assert Verdict.ACCEPTED is second.verdict(second.send(other)).state

        # Chunks of which the second arrives damaged: they are asked for again from there.
        hurt = sealed_file(readings("d1", 200, 40, 5.0), version=40)
        manifest = first.announce(hurt.body)
        for number in range(hurt.body.chunks):
            if number != 1:
                first.chunk(manifest, number, hurt.chunk(number))
        first.flush()
        eventually(lambda: asked_again(first, manifest.number) == 1, "chunk 1 asked for again")
        assert 0 != receivers.end("r1")
        for number in range(1, hurt.body.chunks):
            first.chunk(manifest, number, hurt.chunk(number))
        first.flush()
        assert Verdict.ACCEPTED is first.verdict(manifest).state

        # A member that is down gets the file once it is back, and the wiped one too.
        cluster.kill("n3")
        away = sealed_file(readings("d2", 500, 11, 4.0), version=50)
        assert Verdict.ACCEPTED is first.verdict(first.send(away)).state
        assert Verdict.ACCEPTED is first.verdict(first.send(away)).state
        cluster.wipe("n3")
        cluster.start_node("n3")
        cluster.wait_ready()
        expected = [("d1", 140, 350.0), ("d2", 16, 49.0), ("d3", 7, 21.0)]
        assert_rows(cluster, expected)
        assert 3 == len(verify(cluster))

        # Deletes concern devices of their sender alone.
        gone = SyncDelete(1, 60, "plant", "pumps", {}, 0, None)
        deletes = first.announce(SyncDeletes(GROUP, (gone,)))
        assert Verdict.ACCEPTED is first.verdict(deletes).state
        assert_rows(cluster, [("d3", 7, 21.0)])
        assert 0 == receivers.end("r2", signal.SIGTERM)
        listed = run_forked("sync", "status", "--cluster", "syncc", "--bootstrap", cluster.bootstrap, "--json")
        assert 0 == listed.returncode, listed.stderr
        senders = {each["name"]: each for each in json.loads(listed.stdout)["senders"]}
        assert (6, 0, 0) == tuple(senders["north"][name] for name in ("accepted", "rejected", "waiting"))
        assert [("rejected", refused.message)] == [(each["state"], each["error"]) for each in senders["south"]["files"]]
        shown = run_forked("sync", "owners", "--cluster", "syncc", "--bootstrap", cluster.bootstrap, "--json")
        assert 0 == shown.returncode, shown.stderr
        assert '"device": "pumps,pump=d3"' in shown.stdout


def asked_again(sender: FakeSender, number: int) -> int:
    """The newest chunk that was asked for of a manifest, -1 for none."""
    found = [each.chunk for each in sender.verdicts() if each.number == number and each.state is Verdict.RESEND]
    return found[-1] if found else -1


@pytest.mark.slow(25)
def test_files_that_are_not_what_they_claim_are_rejected(broker: BrokerInfo, tmp_path: Path) -> None:
    """Each lie of a manifest is rejected by its kind; a clone and a loop too. The files behind them are loaded."""
    with centre(tmp_path, broker, "syncl") as (cluster, receivers):
        log = KafkaLog(cluster.bootstrap)
        identity = cluster_identity(log, Topics("syncl"))
        log.close()
        receivers.start("r1")
        sender = FakeSender(cluster.bootstrap, "syncl", PARTITIONS)
        good = sealed_file(readings("d1", 0, 30, 1.0), version=1)
        assert Verdict.ACCEPTED is sender.verdict(sender.send(good)).state
        lies = {
            "rows": replace(good.body, rows=31, file="e1/1/rows"),
            "path": replace(good.body, file="e1/../../../etc/passwd"),
            "tags": replace(good.body, tags=("pump", "site"), file="e1/1/tags"),
            "fields": replace(good.body, fields=(("flow", "int64"),), file="e1/1/fields"),
            "table": replace(good.body, table="tanks", file="e1/1/table"),
        }
        for what, body in lies.items():
            verdict = sender.verdict(sender.send(replace(good, body=body)))
            assert (Verdict.REJECTED, "ManifestInvalid") == (verdict.state, verdict.kind), what
        loop = sender.verdict(sender.send(replace(good, body=replace(good.body, stores=(identity,), file="e1/1/loop"))))
        assert (Verdict.REJECTED, "SyncLoop") == (loop.state, loop.kind)
        cloned = sender.verdict(sender.send(sealed_file(readings("d1", 50, 5, 1.0), version=2), store="a-copy"))
        assert (Verdict.REJECTED, "SenderCloned") == (cloned.state, cloned.kind)
        wider = sealed_file(readings("d1", 60, 5, 1.0), version=3, buckets=4)
        assert "buckets" in sender.verdict(sender.send(wider)).message
        # int64 of a file fits the float64 of the table.
        whole = sealed_file(readings("d1", 100, 10, 2.0), version=4, integers=True)
        assert Verdict.ACCEPTED is sender.verdict(sender.send(whole)).state
        assert_rows(cluster, [("d1", 40, 50.0)])
        assert 0 == receivers.end("r1", signal.SIGTERM)
