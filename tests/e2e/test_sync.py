"""Edges to a centre with real processes: the line is cut, receivers, senders and members end, users delete and write.

At the end the centre has exactly what the edges have, each file came once, and every comparison is clean.
"""

from __future__ import annotations

import json
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.connectors.http import call_node
from headrace.connectors.kafka.broker import BrokerInfo, EmbeddedBroker
from headrace.connectors.kafka.broker_process import free_port
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.kafka_group import read_partitions
from headrace.connectors.log.topics import Topics
from headrace.consumers.sync.topics import ensure_sync_topics
from headrace.local_cluster import LocalCluster
from headrace.node_client import NodeClient
from headrace.schemas.series import bucket_of
from headrace.schemas.sync_records import decode_chunk
from headrace.workload.checksum import checksums, compare, total
from tests.e2e.actions import kill_all, local_cluster, query, verify
from tests.e2e.proxy import Proxy, running_proxies
from tests.e2e.sync_site import DAY_S, SyncSite
from tests.e2e.test_sync_receive import Receivers, centre
from tests.forked import run_forked
from tests.waiting import eventually

CENTRE = "central"
ROWS = "SELECT * FROM plant.m"
TAGS = ("site", "dev")
MEMBERS = ("n1", "n2", "n3")
PARTITIONS = 3


@dataclass(frozen=True)
class Plan:
    """The size of a run. Each edge writes `rounds` times `rows` rows of `text_bytes`; each round makes some files.

    Every `large_every`-th round is `LARGER` times as large. `files_least`: files of an edge that must have arrived.
    """

    edges: int
    rounds: int
    rows: int
    text_bytes: int
    cut_s: float
    files_max: int
    rate_bytes: int
    timeout_s: float
    devices: int = 4
    fault_every: int = 1
    large_every: int = 1_000_000
    files_least: int = 1

    def rows_of(self, number: int) -> int:
        """How many rows an edge writes in a round."""
        return self.rows * (LARGER if number % self.large_every == self.large_every - 1 else 1)


LARGER = 16
SHORT = Plan(edges=2, rounds=6, rows=450, text_bytes=3_000, cut_s=1.5, files_max=2, rate_bytes=1 << 20, timeout_s=90)
# A round seals about five files of an edge, of 60 KB and up to 10 MB.
LONG = Plan(
    edges=3,
    rounds=250,
    rows=100,
    text_bytes=3_000,
    cut_s=6.0,
    files_max=4,
    rate_bytes=4 << 20,
    timeout_s=1_200,
    devices=8,
    fault_every=5,
    large_every=10,
    files_least=1_000,
)


class Faults:
    """One fault a round, in turn."""

    def __init__(self, plan: Plan, proxy: Proxy, receivers: Receivers, cluster: LocalCluster) -> None:
        self.cuts = self.sender_kills = self.receiver_kills = 0
        self._plan, self._proxy, self._receivers, self._cluster = plan, proxy, receivers, cluster
        self._names = ["r1", "r2"]
        self._member_is_down = False

    def inject(self, number: int, sites: list[SyncSite]) -> None:
        """The fault of a round."""
        site = sites[number % len(sites)]
        match number % 6:
            case 0 | 3:
                self._cut(site)
            case 1:
                self._kill_receiver()
            case 2:
                self._set_member(down=True)
                self._cut(site)
            case 4:
                self._kill_sender(site)
            case 5:
                self._set_member(down=False)
                self._cut(site)

    def heal(self) -> None:
        """Everything runs again."""
        self._set_member(down=False)

    def _cut(self, site: SyncSite) -> None:
        await_mid_file(site)
        self._proxy.cut("both")
        time.sleep(self._plan.cut_s)
        self._proxy.heal()
        self.cuts += 1

    def _kill_receiver(self) -> None:
        first, other = self._names
        self._receivers.end(first, signal.SIGKILL)
        joined = f"r{self.receiver_kills + 3}"
        self._receivers.start(joined)
        self._names = [other, joined]
        self.receiver_kills += 1

    def _kill_sender(self, site: SyncSite) -> None:
        await_mid_file(site)
        site.end_sender(signal.SIGKILL)
        self.sender_kills += 1
        start_sender(site, self._plan)

    def _set_member(self, *, down: bool) -> None:
        if down and not self._member_is_down:
            self._cluster.kill("n3")
        if not down and self._member_is_down:
            self._cluster.start_node("n3")
        self._member_is_down = down


def await_mid_file(site: SyncSite) -> None:
    """Wait a little for a file in its middle: a sender shows what it does once a second, and may be between two."""
    with suppress(AssertionError):
        eventually(site.is_sending, f"a file of {site.name} in its middle", timeout_s=3, briefly=True)


def start_sender(site: SyncSite, plan: Plan) -> None:
    """A sender that begins a round every half second."""
    limits = ("--interval-s", "0.5", "--rate-limit", str(plan.rate_bytes))
    site.start_sender(*limits, send_files_max=str(plan.files_max))


@contextmanager
def scene(directory: Path, plan: Plan) -> Iterator[tuple[LocalCluster, Proxy, Receivers, list[SyncSite]]]:
    """A centre, a line to its Kafka, receivers that run, and edges without senders."""
    port = free_port()
    broker = EmbeddedBroker(directory / "broker", advertise=[port])
    with ExitStack() as stack:
        stack.callback(broker.stop)
        info = broker.start()
        proxy = stack.enter_context(running_proxies(info.proxied))[port]
        cluster = local_cluster(directory / "centre", info.bootstrap, CENTRE)
        stack.callback(kill_all, cluster)
        cluster.start()
        log = KafkaLog(info.bootstrap)
        ensure_sync_topics(log, Topics(CENTRE), PARTITIONS)
        log.close()
        receivers = Receivers(cluster, directory)
        stack.callback(receivers.end_all)
        sites = [
            SyncSite(directory / f"edge{number}", f"edge{number}", f"127.0.0.1:{port}", CENTRE, number)
            for number in range(plan.edges)
        ]
        for site in sites:
            stack.callback(site.kill)
            site.start()
        yield cluster, proxy, receivers, sites


@pytest.mark.slow(70)
def test_edges_arrive_whole_and_once_through_failures(tmp_path: Path) -> None:
    """Cuts, kills of receiver, sender and member, deletes and late rows: the centre has what the edges have."""
    run(tmp_path, SHORT)


@pytest.mark.soak
@pytest.mark.parametrize("plan", [LONG])
def test_three_edges_of_a_thousand_segments(tmp_path: Path, plan: Plan) -> None:
    """The same with 3 edges and 1,000 segments each."""
    run(tmp_path, plan)


def run(directory: Path, plan: Plan) -> None:
    """One run, and all comparisons at its end."""
    with scene(directory, plan) as (cluster, proxy, receivers, sites):
        for name in ("r1", "r2"):
            receivers.start(name)
        faults = Faults(plan, proxy, receivers, cluster)
        for number in range(plan.rounds):
            for site in sites:
                change(site, plan, number)
                if number == 0:
                    start_sender(site, plan)
            if number % plan.fault_every == 0:
                faults.inject(number // plan.fault_every, sites)
        faults.heal()
        cluster.wait_ready()
        for site in sites:
            eventually(lambda site=site: site.verify(cluster)[0] != 2, f"all of {site.name}", plan.timeout_s)
        check_rows(cluster, sites)
        for site in sites:
            code, document = site.verify(cluster)
            assert (0, True) == (code, document["ok"]), document
            assert sum(each["edge_rows"] for each in document["tables"]) == len(site.values)
            assert 0 == site.end_sender()
            assert site.document()["accepted"] >= plan.files_least
        assert 3 == len(verify(cluster))
        again = chunks_sent_again(cluster.bootstrap)
        interruptions = faults.cuts + faults.sender_kills
        print(f"{faults.cuts} cuts, {faults.receiver_kills} receivers killed, {again} chunks sent again")
        assert again <= interruptions * plan.files_max * plan.edges


@pytest.mark.slow(20)
def test_owners_survive_restarts_and_are_moved(broker: BrokerInfo, tmp_path: Path) -> None:
    """A conflict costs one file and frees no device. Owners survive restarts of everything, and a move ends it.

    `sync verify` of the second sender shows the conflict until then.
    """
    with centre(tmp_path, broker, "syncowners") as (cluster, receivers), ExitStack() as stack:
        first, second = (SyncSite(tmp_path / each, each, broker.bootstrap, "syncowners", 1) for each in ("a", "b"))
        receivers.start("r1")
        for site in (first, second):
            site.tag = "plant"
            stack.callback(site.kill)
            site.start()
        first.write_devices(["d1"], 0, 30)
        assert 1 == first.send_once()["accepted"]
        free = neighbour(first, "d1")
        # One file with d1 and a device that is free, and one of another day with d3.
        second.write_devices(["d1", free], 0, 30)
        second.write_devices(["d3"], DAY_S, 30)
        counts = second.send_once(code=3)
        assert (1, 1) == (counts["accepted"], counts["rejected"])
        [rejected] = [each for each in second.document()["files"] if each["state"] == "rejected"]
        assert "plant/m,dev=d1,site=plant is that of sender a" in rejected["error"]
        code, document = second.verify(cluster)
        different = {each["day"]: each["differences"] for each in document["tables"] if not each["equal"]}
        assert 1 == code
        assert [f"m,dev=d1,site=plant: 30 rows at the edge, and the device is that of sender {first.sender}"] == [
            lines[0] for lines in different.values()
        ]
        assert {"m,dev=d1,site=plant", "m,dev=d3,site=plant"} == set(owners(cluster))

        restart_everything(cluster, receivers, tmp_path, [first, second])
        assert first.sender == owners(cluster)["m,dev=d1,site=plant"]
        second.write_devices(["d1"], 100, 10)
        second.write_devices(["d3"], DAY_S + 100, 10)
        counts = second.send_once(code=3)
        assert (1, 1) == (counts["accepted"], counts["rejected"])

        where = ("--cluster", cluster.cluster, "--bootstrap", cluster.bootstrap)
        to = ("--to", second.sender)
        moved = run_forked("sync", "owners", "move", "--device", "plant/m,dev=d1,site=plant", *to, *where, "--json")
        assert (0, 1) == (moved.returncode, json.loads(moved.stdout)["moved"]), moved.stderr
        again = run_forked("sync", "resend", "--sender", second.sender, "--data-dir", str(second.state))
        assert 0 == again.returncode, again.stderr
        assert 0 == second.send_once()["rejected"]
        assert (0, True) == (second.verify(cluster)[0], second.verify(cluster)[1]["ok"])
        code, refused = second.verify(cluster, "--databases", "plant,nope")
        assert (1, "DatabaseNotHere") == (code, refused["error"]["type"])
        # What such a sender leaves out would count as decided.
        sent = run_forked(*second.send_command("--once", "--databases", "plant,nope"))
        assert (1, "DatabaseNotHere") == (sent.returncode, json.loads(sent.stderr)["error"]["type"])
        assert {second.sender} == set(owners(cluster).values())
        assert 1 == first.verify(cluster)[0]


@pytest.mark.slow(15)
def test_a_table_that_was_dropped_and_written_again_is_compared(broker: BrokerInfo, tmp_path: Path) -> None:
    """At either end. Neither is left out and found equal, nor taken for one without rows."""
    with centre(tmp_path, broker, "syncdropped") as (cluster, receivers), ExitStack() as stack:
        site = SyncSite(tmp_path / "a", "a", broker.bootstrap, "syncdropped", 1)
        receivers.start("r1")
        stack.callback(site.kill)
        site.start()
        days = [days_of(site, cluster, 0, 10)]
        site.post("/api/v1/drop", json.dumps({"database": "plant", "table": "m"}), "application/json")
        days.append(days_of(site, cluster, DAY_S, 20))
        where = ("--cluster", cluster.cluster, "--bootstrap", cluster.bootstrap)
        dropped = run_forked("table", "drop", "plant.m", "--yes", *where)
        assert 0 == dropped.returncode, dropped.stderr
        days.append(days_of(site, cluster, 2 * DAY_S, 5))
    assert [[(10, 10)], [(20, 20)], [(20, 0), (5, 5)]] == days


def days_of(site: SyncSite, cluster: LocalCluster, first: int, rows: int) -> list[tuple[int, int]]:
    """The rows of each day at the edge and at the centre, by `sync verify`, behind rows that were sent."""
    site.write_devices(["d1"], first, rows)
    assert 0 == site.send_once()["waiting"]
    _, document = site.verify(cluster)
    return [(each["edge_rows"], each["centre_rows"]) for each in document["tables"]]


def neighbour(site: SyncSite, device: str) -> str:
    """A device whose rows are in the same files as those of another one."""
    [database] = NodeClient(site.url).schemas()["databases"]

    def bucket(name: str) -> int:
        return bucket_of(f"m,dev={name},site={site.tag}", database["buckets"])

    return next(name for name in (f"x{number}" for number in range(1_000)) if bucket(name) == bucket(device))


def restart_everything(cluster: LocalCluster, receivers: Receivers, directory: Path, sites: list[SyncSite]) -> None:
    """Kill all, and start all; the receiver has lost its directory."""
    receivers.end_all()
    shutil.rmtree(directory / "r1")
    kill_all(cluster)
    for site in sites:
        site.end_node(signal.SIGKILL)
        site.start()
    for name in MEMBERS:
        cluster.start_node(name)
    cluster.wait_ready()
    receivers.start("r1")


def owners(cluster: LocalCluster) -> dict[str, str]:
    """The owner of each device."""
    done = run_forked("sync", "owners", "--cluster", cluster.cluster, "--bootstrap", cluster.bootstrap, "--json")
    assert 0 == done.returncode, done.stderr
    return {each["device"]: each["sender"] for each in json.loads(done.stdout)["devices"]}


def change(site: SyncSite, plan: Plan, number: int) -> None:
    """What a round writes: new rows, some late ones over those of the round before, and a delete."""
    begin, rows = site.rows_written, plan.rows_of(number)
    site.write(rows, plan.text_bytes, begin, plan.devices)
    site.rows_written += rows
    if plan.fault_every > 1:
        # Else a sender would seal what several rounds have written into one file.
        call_node(f"{site.url}/api/v1/seal?group=e1", method="POST")
    if number % 2:
        site.write(40, 20, begin - 60, plan.devices)
        site.delete("d1", begin - 20, begin + 20)


def check_rows(cluster: LocalCluster, sites: list[SyncSite], names: Sequence[str] = MEMBERS) -> None:
    """Each member of the centre has the union of the edges, which have what was written to them."""
    parts: list[pa.Table] = []
    for site in sites:
        rows = query(site.url, ROWS)
        seconds = rows["time"].cast(pa.int64()).to_numpy() // 10**9
        found = dict(
            zip(zip(rows["dev"].to_pylist(), seconds.tolist(), strict=True), rows["v"].to_pylist(), strict=True)
        )
        assert found == site.values, site.name
        parts.append(checksums(rows, TAGS))
    for name in names:
        assert [] == compare(total(parts), checksums(query(cluster.url(name), ROWS), TAGS)), name


def chunks_sent_again(bootstrap: str) -> int:
    """Chunks that are in the topic more than once."""
    found: Counter[tuple[str, int, int]] = Counter()
    for record in read_partitions(bootstrap, Topics(CENTRE).sync_chunk, {}):
        chunk = decode_chunk(record.value)
        found[chunk.sender, chunk.number, chunk.chunk] += 1
    return found.total() - len(found)
