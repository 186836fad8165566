"""The snapshots that a node offers: of one instant, with listed files only, and removed in time."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
import xxhash
from starlette.applications import Starlette

from headrace.connectors import patient_socket
from headrace.consumers.node.requests import GroupRequests
from headrace.consumers.query.query_errors import SlotNotHeld
from headrace.consumers.recovery.file_copy import Snapshot, SourceFailed
from headrace.consumers.recovery.peer_source import PeerSource
from headrace.consumers.recovery.progress import TransferStopped
from headrace.consumers.replication.group_state import GroupState
from headrace.consumers.serve import snapshots
from headrace.consumers.serve.operations import snapshot_routes
from headrace.consumers.serve.server import Server
from headrace.consumers.serve.snapshots import SnapshotRefused, SnapshotRegistry, SnapshotUnknown
from headrace.consumers.store import SegmentEntry, Store, StoreSnapshot
from tests.unit.serve.part_of_node import PartOfNode
from tests.unit.store.builders import write

DATA = b"a segment"


def entry(name: str = "db/t/1.parquet", data: bytes = DATA) -> SegmentEntry:
    """An entry of the catalogue."""
    digest = xxhash.xxh3_128_hexdigest(data)
    return SegmentEntry(name, "db", "t", 0, 0, 1, 1, 1, 0, 1, 0, 0, len(data), "content", digest, 1, 0)


class FakeStore(Store):
    """Writes one segment and one file of the index; calls `on_snapshot` meanwhile."""

    state: bytes | None = None

    def __init__(self, on_snapshot: Callable[[FakeStore], None] = lambda _store: None) -> None:
        self.state = GroupState(version=5, offset=7).to_bytes()
        self.on_snapshot = on_snapshot

    def snapshot(self, directory: Path) -> StoreSnapshot:
        """See Store."""
        for path, data in (("segments/g/db/t/1.parquet", DATA), ("index/g/CURRENT", b"index")):
            (directory / path).parent.mkdir(parents=True)
            (directory / path).write_bytes(data)
        self.on_snapshot(self)
        return StoreSnapshot([entry()], self.state)


def read(registry: SnapshotRegistry, name: str, path: str, offset: int = 0) -> bytes:
    """The bytes of a file."""
    return b"".join(registry.open(name, path, offset)[1])


def test_a_listing_has_the_seal_and_the_digests_of_the_catalogue(tmp_path: Path) -> None:
    """Version and offset are the seal's; a segment's digest is the catalogue's; bytes are read from any offset."""
    registry = SnapshotRegistry(tmp_path)
    made = registry.make("g", "topic", 1, FakeStore())
    assert (5, 7, "g", "topic") == (made.version, made.offset, made.group, made.topic_id)
    assert {"segments/g/db/t/1.parquet", "index/g/CURRENT"} == {file.path for file in made.files}
    assert entry().file_digest == next(file.digest for file in made.files if "parquet" in file.path)
    assert DATA[2:] == read(registry, made.id, "segments/g/db/t/1.parquet", 2)
    assert b"" == read(registry, made.id, "segments/g/db/t/1.parquet", len(DATA))


@pytest.mark.parametrize("path", ["", "../../node.json", "segments/g/db/t/2.parquet", "/etc/passwd", "index/g"])
def test_only_listed_files_are_served(tmp_path: Path, path: str) -> None:
    """A path is looked up, never followed."""
    registry = SnapshotRegistry(tmp_path)
    made = registry.make("g", "topic", 1, FakeStore())
    with pytest.raises(SnapshotUnknown):
        registry.open(made.id, path, 0)


def test_a_group_that_seals_all_the_time_gives_a_snapshot(tmp_path: Path) -> None:
    """The listing is of the seal that the copy has, though another one commits before it is made."""

    class Sealing(Store):
        def snapshot(self, directory: Path) -> StoreSnapshot:
            """See Store."""
            copy = super().snapshot(directory)
            seal_row(self, self.frontier + 2)
            return copy

    def seal_row(store: Store, version: int) -> None:
        write(store, version - 1, [({"host": "a"}, version, {"busy": 1})])
        store.freeze(version, 1, GroupState(version=version, offset=version - 1).to_bytes()).run()

    store = Sealing.open(tmp_path, "g")
    seal_row(store, 2)
    made = SnapshotRegistry(tmp_path).make("g", "topic", 1, store)
    store.close()
    copy = Store.open(tmp_path / "snapshots" / made.id, "g")
    assert (2, 2, 1) == (made.version, copy.frontier, made.offset)
    assert [f"segments/g/{entry.name}" for entry in copy.segments()] == [
        file.path for file in made.files if file.path.startswith("segments/")
    ]
    copy.close()


def test_a_group_that_never_sealed_is_refused(tmp_path: Path) -> None:
    """The refused attempt leaves no file."""
    registry, empty = SnapshotRegistry(tmp_path), FakeStore()
    empty.state = None
    with pytest.raises(SnapshotRefused, match="nothing"):
        registry.make("g", "topic", 1, empty)
    assert [] == list(registry.directory.glob("*"))


def test_snapshots_are_removed_when_released_idle_or_of_an_earlier_process(tmp_path: Path) -> None:
    """No directory stays, and a second release has no effect."""
    registry = SnapshotRegistry(tmp_path, idle_timeout_s=-1.0)
    made = registry.make("g", "topic", 1, FakeStore())
    registry.expire()
    with pytest.raises(SnapshotUnknown):
        registry.open(made.id, "index/g/CURRENT", 0)
    registry = SnapshotRegistry(tmp_path)
    made = registry.make("g", "topic", 1, FakeStore())
    registry.release(made.id)
    registry.release(made.id)
    assert [] == list(registry.directory.glob("*"))
    registry.make("g", "topic", 1, FakeStore())
    SnapshotRegistry(tmp_path)
    assert not registry.directory.exists()


def test_a_snapshot_that_is_being_made_is_not_idle(tmp_path: Path) -> None:
    """Another request arrives meanwhile, and removes those that are idle."""
    registry = SnapshotRegistry(tmp_path, idle_timeout_s=-1.0)
    made = registry.make("g", "topic", 1, FakeStore(lambda _store: registry.expire()))
    assert DATA == read(registry, made.id, "segments/g/db/t/1.parquet")


def test_the_number_of_snapshots_is_bounded(tmp_path: Path) -> None:
    """One more is refused until one is released."""
    registry = SnapshotRegistry(tmp_path)
    made = [registry.make("g", "topic", 1, FakeStore()) for _ in range(snapshots.SNAPSHOTS_MAX)]
    with pytest.raises(SnapshotRefused, match="out already"):
        registry.make("g", "topic", 1, FakeStore())
    registry.release(made[0].id)
    registry.make("g", "topic", 1, FakeStore())


class FakeNode(PartOfNode):
    """A node with one group `g`."""

    snapshots: SnapshotRegistry

    def __init__(self, directory: Path) -> None:
        self.snapshots = SnapshotRegistry(directory)

    def make_snapshot(self, group_name: str) -> Snapshot:
        """See Node."""
        if group_name != "g":
            raise SnapshotRefused(f"group {group_name!r} is not here")
        return self.snapshots.make("g", "topic", 1, FakeStore())


def test_a_receiver_reads_snapshots_over_http(tmp_path: Path) -> None:
    """A listing, bytes from an offset, an end; every refusal and a node that is gone are failures of the source."""
    server = Server(Starlette(routes=snapshot_routes(FakeNode(tmp_path))))
    source = PeerSource(server.start(), "g")
    try:
        made = source.open()
        assert DATA[3:] == b"".join(source.read(made, "segments/g/db/t/1.parquet", 3))
        for path, offset in (("segments/g/db/t/1.parquet", 99), ("../../node.json", 0), ("index/g/CURRENT", -1)):
            with pytest.raises(SourceFailed):
                list(source.read(made, path, offset))
        source.release(made)
        with pytest.raises(SourceFailed, match="404"):
            list(source.read(made, "index/g/CURRENT", 0))
        with pytest.raises(SourceFailed, match="is not here"):
            PeerSource(server.url, "h").open()
    finally:
        server.stop()
    with pytest.raises(SourceFailed):
        source.open()
    with pytest.raises(SourceFailed):
        list(source.read(made, "index/g/CURRENT", 0))
    source.release(made)


def test_a_receiver_that_stops_waits_for_no_silent_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that hangs, or whose host drops packets, held the end of the receiver for a minute."""
    monkeypatch.setattr(patient_socket, "SILENCE_S", 0.01)
    asked = list[float]()

    def stop(left_s: float) -> None:
        asked.append(left_s)
        raise TransferStopped("the node is stopping")

    with socket.create_server(("127.0.0.1", 0)) as silent:
        source = PeerSource(f"http://127.0.0.1:{silent.getsockname()[1]}", "g", stop)
        with pytest.raises(TransferStopped):
            source.open()
        with pytest.raises(TransferStopped):
            list(source.read(Snapshot("s", "g", "t", 1, 1, 1, "", ()), "index/g/CURRENT", 0))
    assert 2 == len(asked)


def test_a_group_that_goes_meanwhile_is_no_fault_of_the_node(tmp_path: Path) -> None:
    """What is known of its log goes with it, and the receiver asks another member."""
    group = SimpleNamespace(name="g", sealed_for_others=(1, 1), era=1, store=FakeStore())
    node = MagicMock(groups={"c.forward.g": group}, snapshots=SnapshotRegistry(tmp_path))
    node.readiness.reason.return_value = ""
    node.identity.topics = {"c.forward.g": "t"}
    requests = GroupRequests(node)
    assert "t" == requests.make_snapshot("g").topic_id
    node.identity.topics.clear()
    with pytest.raises(SlotNotHeld):
        requests.make_snapshot("g")
