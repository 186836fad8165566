"""Nodes whose log was trimmed, all in this process on a log in memory: files first, then the log."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from connectors.log.memory import MemoryLog
from connectors.log.topics import Topics
from consumers.membership.cluster import read_slot_table
from consumers.membership.quorum import StatusWatch
from consumers.membership.tables import TableLog
from consumers.membership.writer import Cluster, Writer
from consumers.node import Node, NodeSettings
from consumers.replay import replay
from consumers.replication import duties, progress, recoverer
from consumers.replication.limits import ReplicationLimits
from consumers.replication.progress import Recovery
from consumers.replication.transfer import Snapshot, Source, TransferStopped, Watcher, digest_of, fetch
from consumers.store import TableUnknown
from schemas.errors import HeadraceError

WAIT_S = 60.0
ROWS = 500


def eventually(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline, f"there was never: {what}"
        time.sleep(0.05)


class Nodes:
    """Nodes of one cluster in one process."""

    def __init__(self, directory: Path, names: tuple[str, ...], keep_records: int = 1) -> None:
        self.keep_records = keep_records
        self.directory = directory
        self.names = names
        self.log = MemoryLog(clock_ms=lambda: time.time_ns() // 1_000_000)
        self.topics = Topics("c")
        self.running: dict[str, Node] = {}
        self.written = 0

    def settings(self, name: str) -> NodeSettings:
        """What a node is started with."""
        return NodeSettings(
            "c",
            name,
            self.names,
            len(self.names),
            "memory",
            self.directory / name,
            slots=60,
            limits=ReplicationLimits(log_keep_records=self.keep_records),
        )

    def start(self, *names: str) -> None:
        """Start nodes, and wait for nothing."""
        for name in names:
            node = self.running[name] = Node(self.settings(name), self.log)
            node.start(lambda _line: None)
            node.serve("127.0.0.1", 0)

    def stop(self, *names: str) -> None:
        """Stop nodes."""
        for name in names:
            self.running.pop(name).stop()

    def wipe(self, name: str) -> None:
        """Stop a node and take its disk away."""
        self.stop(name)
        shutil.rmtree(self.directory / name)

    def seal(self) -> None:
        """Every group seals."""
        for name in self.names:
            eventually(lambda name=name: sealed_by_any(list(self.running.values()), name), f"a seal of group {name}")

    def fill(self, topic: str, records: int) -> None:
        """Records that no version could have written: counted, and nothing else."""
        appender = self.log.appender()
        for number in range(records):
            appender.append(topic, f"no message {number}".encode())
        appender.close()

    def ready(self) -> None:
        """Wait until all that run are ready."""
        for name, node in self.running.items():
            eventually(lambda node=node: node.ready()[0], f"node {name} ready; it says {node.ready()}")

    def write(self) -> None:
        """Some more rows in all groups."""
        tables = TableLog(self.log, self.topics)
        shared = Cluster(
            self.log,
            self.topics,
            read_slot_table(self.log, self.topics),
            tables,
            StatusWatch(self.log, self.topics),
            self.log.appender(),
        )
        numbers = range(self.written, self.written + ROWS)
        rows = pa.table(
            {
                "pump": [f"p{number % 50}" for number in numbers],
                "time": pa.array([number * 10**9 for number in numbers], pa.int64()),
                "flow": [float(number) for number in numbers],
            }
        )
        with Writer(shared, "plant", "pumps") as writer:
            writer.write(rows, ["pump"])
        self.written += ROWS
        tables.close()

    def seal_and_trim(self) -> None:
        """Everything written is sealed, and every log begins where its newest records are."""
        for name in self.names:
            topic = self.topics.forward(name)
            before = self.log.describe(topic).end

            eventually(lambda name=name: sealed_by_any(list(self.running.values()), name), f"a seal of group {name}")
            eventually(lambda topic=topic, before=before: self.log.describe(topic).begin >= before, "a trimmed log")

    def holds_everything(self, name: str) -> None:
        """A node has all rows, in files that have the digests of its catalogue."""
        node = self.running[name]
        eventually(lambda: node.ready()[0], f"node {name} ready; it says {node.ready()}")
        eventually(lambda: self.written == rows(node), f"{self.written} rows at node {name}")
        for group in node.groups.values():
            for entry in group.store.segments():
                assert entry.file_digest == digest_of(group.store.segments_directory / entry.name)


def rows(node: Node) -> int:
    """How many rows a node holds."""
    counted = 0
    for group in node.groups.values():
        with suppress(TableUnknown), group.store.scan("plant", "pumps") as scan:
            counted += scan.table.num_rows + sum(pq.read_metadata(path).num_rows for path in scan.files)
    return counted


@pytest.fixture
def three(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """Three nodes that trim eagerly."""
    yield from _running(tmp_path, monkeypatch, ("n1", "n2", "n3"))


@pytest.fixture
def one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Nodes]:
    """One node alone."""
    yield from _running(tmp_path, monkeypatch, ("n1",))


def _running(
    directory: Path, monkeypatch: pytest.MonkeyPatch, names: tuple[str, ...], keep_records: int = 1
) -> Iterator[Nodes]:
    monkeypatch.setattr(duties, "UPKEEP_INTERVAL_S", 0.1)
    nodes = Nodes(directory, names, keep_records)
    try:
        nodes.start(*names)
        nodes.ready()
        yield nodes
    finally:
        nodes.stop(*list(nodes.running))


def spoil(path: Path) -> None:
    """Another byte in the middle, the size as before."""
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 0xFF
    path.write_bytes(data)


def test_a_wiped_node_passes_over_a_source_whose_disk_has_rotted(three: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of equal size with other bytes are found by the catalogue's digests; another member sends good ones."""
    three.write()
    three.seal_and_trim()
    three.stop("n3")
    shutil.rmtree(three.directory / "n3")
    for path in (three.directory / "n1" / "segments").rglob("*.parquet"):
        spoil(path)
    asked: list[str] = []
    rotted = three.running["n1"]
    make_snapshot = rotted.make_snapshot

    def noted(group: str) -> Snapshot:
        asked.append(group)
        return make_snapshot(group)

    monkeypatch.setattr(rotted, "make_snapshot", noted)
    three.start("n3")
    three.holds_everything("n3")
    assert "n1" in asked
    assert (
        three.running["n2"].evidence("n1", 1, 10**9)["digests"]
        == three.running["n3"].evidence("n1", 1, 10**9)["digests"]
    )


def test_a_node_that_was_away_for_too_long_gets_new_files_in_place_of_its_old_ones(three: Nodes) -> None:
    """Old segments and journal give way; what is written later comes from the log, and a restart finds one whole store."""
    three.write()
    three.seal_and_trim()
    three.write()
    three.stop("n3")
    three.seal_and_trim()
    three.write()
    three.seal_and_trim()
    three.write()
    three.start("n3")
    three.holds_everything("n3")
    three.write()
    three.stop("n3")
    three.start("n3")
    three.holds_everything("n3")
    assert not list((three.directory / "n3" / "replaced").glob("*"))


def test_a_log_trimmed_right_behind_the_newest_record_is_read_on(one: Nodes) -> None:
    """Nothing is missing, so nothing is copied; the record that would be compared is just not there."""
    one.write()
    one.seal_and_trim()
    one.stop("n1")
    topic = one.topics.forward("n1")
    one.log.trim(topic, one.log.describe(topic).end)
    one.start("n1")
    one.write()
    one.holds_everything("n1")


def test_a_log_trimmed_beyond_every_member_stops_the_group_with_choices(one: Nodes) -> None:
    """The node says what is missing and what can be done, serves nothing and keeps its data; replay refuses for the same reason."""
    one.write()
    one.seal_and_trim()
    one.write()
    eventually(lambda: one.running["n1"].end(one.topics.forward("n1")) > 0, "an end")
    one.stop("n1")
    kept = sorted((one.directory / "n1").rglob("*.parquet"))
    topic = one.topics.forward("n1")
    one.log.gap(topic, 5)
    one.log.trim(topic, one.log.describe(topic).end)
    one.start("n1")
    node = one.running["n1"]
    eventually(lambda: "no member in sync has the files" in node.reason(topic), "a reason")
    assert "the data is kept" in node.reason(topic)
    assert not node.ready()[0]
    assert kept == sorted((one.directory / "n1").rglob("*.parquet"))
    one.stop("n1")
    with pytest.raises(HeadraceError, match="recovers from the files of another member"):
        replay(one.settings("n1"), may_replace=True, on_progress=lambda _done, _total: None, log=one.log)
    assert kept == sorted((one.directory / "n1").rglob("*.parquet"))


def test_a_copy_that_the_log_no_longer_joins_on_is_not_taken(three: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trimmed past the copy while it was made, as for a receiver that was silent: it plans again and takes a newer one."""
    three.write()
    three.seal_and_trim()
    three.stop("n3")
    shutil.rmtree(three.directory / "n3")
    copies: list[int] = []

    def fetch_late(source: Source, directory: Path, watcher: Watcher, own: Path) -> Snapshot:
        snapshot = fetch(source, directory, watcher, own)
        if snapshot.group == "n1":
            copies.append(snapshot.offset)
            if len(copies) == 1:
                three.write()
                trim_past(three, "n1")
        return snapshot

    monkeypatch.setattr(recoverer, "fetch", fetch_late)
    three.start("n3")
    three.holds_everything("n3")
    assert len(copies) > 1
    assert copies[-1] > copies[0]


def trim_past(nodes: Nodes, group: str) -> None:
    """Seal a group and trim its log to there, whoever holds it back."""
    members = [nodes.running[name] for name in ("n1", "n2")]
    topic = nodes.topics.forward(group)
    before = [node.groups[topic].files.sealed_offset for node in members]
    eventually(lambda: sealed_by_any(members, group), "a seal")
    eventually(
        lambda: all(node.groups[topic].files.sealed_offset > old for node, old in zip(members, before, strict=True)),
        "files",
    )
    nodes.log.trim(topic, min(node.groups[topic].files.sealed_offset for node in members) + 1)


def sealed_by_any(members: Sequence[Node], group: str) -> bool:
    """Whether the leader is among the members, and has sealed."""
    for node in members:
        with suppress(HeadraceError):
            node.seal(group)
            return True
    return False


def test_the_reason_tells_progress_and_names_what_holds_it_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files, bytes, rate and time left while bytes come; after a time without any, the cause."""
    recovery = Recovery("the log begins at offset 10, 3 is needed", False, threading.Event(), 0)
    assert "begins at offset 10, 3 is needed" in recovery.reason
    recovery.copies_from("n2")
    recovery.begin(4, 8_000_000)
    recovery.have(1_000_000)
    recovery.received(1_000_000)
    recovery.file_done()
    assert "recovering files from n2: 1 of 4 files, 2.0 of 8.0 MB" in recovery.reason
    assert (2_000_000, 8_000_000) == (recovery.bytes_done, recovery.bytes_total)
    monkeypatch.setattr(progress, "STALL_S", 0.0)
    assert "n2 sends nothing" in recovery.reason
    recovery.failed("n2: no route to host")
    assert recovery.reason.startswith("no progress for")
    assert "no route to host" in recovery.reason


def test_a_copy_ends_when_the_node_stops() -> None:
    """The next byte is one too many; what has come stays for the next start."""
    stopping = threading.Event()
    recovery = Recovery("why", False, stopping, 1)
    stopping.set()
    with pytest.raises(TransferStopped):
        recovery.received(1_000_000)
