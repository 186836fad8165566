"""The snapshots a node hands out: one instant, only listed files, and none that stays for ever."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import xxhash
from starlette.applications import Starlette

from consumers.replication.sources import HttpSource
from consumers.replication.state import GroupState
from consumers.replication.transfer import Snapshot, SourceFailed
from consumers.serve import snapshots
from consumers.serve.server import Server
from consumers.serve.snapshots import SnapshotRefused, SnapshotShelf, SnapshotUnknown, snapshot_routes
from consumers.store import SegmentEntry

DATA = b"a segment"


def entry(name: str = "db/t/1.parquet", data: bytes = DATA) -> SegmentEntry:
    """An entry of the catalogue."""
    digest = xxhash.xxh3_128_hexdigest(data)
    return SegmentEntry(name, "db", "t", 0, 0, 1, 1, 1, 0, 1, 0, 0, len(data), "content", digest, 1, 0)


class FakeStore:
    """Writes one segment and one file of the index; `on_snapshot` happens while it does."""

    def __init__(self, on_snapshot: Callable[[FakeStore], None] = lambda _store: None) -> None:
        self.state: bytes | None = GroupState(version=5, offset=7).to_bytes()
        self.on_snapshot = on_snapshot
        self.taken = 0

    def snapshot(self, directory: Path) -> list[SegmentEntry]:
        """See Store."""
        self.taken += 1
        for path, data in (("segments/g/db/t/1.parquet", DATA), ("index/g/CURRENT", b"index")):
            (directory / path).parent.mkdir(parents=True)
            (directory / path).write_bytes(data)
        self.on_snapshot(self)
        return [entry()]


def read(shelf: SnapshotShelf, name: str, path: str, offset: int = 0) -> bytes:
    """The bytes of a file."""
    return b"".join(shelf.open(name, path, offset)[1])


def test_a_listing_says_where_it_stands_and_what_the_catalogue_says_of_each_file(tmp_path: Path) -> None:
    """Version and offset are the seal's; a segment's digest is the catalogue's; bytes come from any offset."""
    shelf = SnapshotShelf(tmp_path)
    made = shelf.make("g", "topic", 1, FakeStore())
    assert (5, 7, "g", "topic") == (made.version, made.offset, made.group, made.topic_id)
    assert {"segments/g/db/t/1.parquet", "index/g/CURRENT"} == {file.path for file in made.files}
    assert entry().file_digest == next(file.digest for file in made.files if "parquet" in file.path)
    assert DATA[2:] == read(shelf, made.id, "segments/g/db/t/1.parquet", 2)
    assert b"" == read(shelf, made.id, "segments/g/db/t/1.parquet", len(DATA))


@pytest.mark.parametrize("path", ["", "../../node.json", "segments/g/db/t/2.parquet", "/etc/passwd", "index/g"])
def test_only_listed_files_are_handed_out(tmp_path: Path, path: str) -> None:
    """A path is looked up, never followed."""
    shelf = SnapshotShelf(tmp_path)
    made = shelf.make("g", "topic", 1, FakeStore())
    with pytest.raises(SnapshotUnknown):
        shelf.open(made.id, path, 0)


def test_a_seal_while_the_copy_is_made_makes_it_anew(tmp_path: Path) -> None:
    """State and files are of one instant: the listing is of the later seal."""

    def seal_once(store: FakeStore) -> None:
        store.state = GroupState(version=9, offset=11).to_bytes()

    store = FakeStore(seal_once)
    made = SnapshotShelf(tmp_path).make("g", "topic", 1, store)
    assert (2, 9, 11) == (store.taken, made.version, made.offset)


def test_a_group_that_never_stands_still_or_never_sealed_is_refused(tmp_path: Path) -> None:
    """Then nothing is left of the attempt."""
    shelf = SnapshotShelf(tmp_path)
    versions = iter(range(100))
    busy = FakeStore(lambda store: setattr(store, "state", GroupState(version=next(versions)).to_bytes()))
    with pytest.raises(SnapshotRefused, match="too often"):
        shelf.make("g", "topic", 1, busy)
    empty = FakeStore()
    empty.state = None
    with pytest.raises(SnapshotRefused, match="nothing"):
        shelf.make("g", "topic", 1, empty)
    assert [] == list(shelf.directory.glob("*"))


def test_snapshots_go_when_released_idle_or_left_by_an_earlier_process(tmp_path: Path) -> None:
    """None of them stays, and a second release is fine."""
    shelf = SnapshotShelf(tmp_path, idle_s=-1.0)
    made = shelf.make("g", "topic", 1, FakeStore())
    shelf.expire()
    with pytest.raises(SnapshotUnknown):
        shelf.open(made.id, "index/g/CURRENT", 0)
    shelf = SnapshotShelf(tmp_path)
    made = shelf.make("g", "topic", 1, FakeStore())
    shelf.release(made.id)
    shelf.release(made.id)
    assert [] == list(shelf.directory.glob("*"))
    shelf.make("g", "topic", 1, FakeStore())
    SnapshotShelf(tmp_path)
    assert not shelf.directory.exists()


def test_there_are_only_so_many(tmp_path: Path) -> None:
    """One more is refused until one is given up."""
    shelf = SnapshotShelf(tmp_path)
    made = [shelf.make("g", "topic", 1, FakeStore()) for _ in range(snapshots.SNAPSHOTS_MAX)]
    with pytest.raises(SnapshotRefused, match="out already"):
        shelf.make("g", "topic", 1, FakeStore())
    shelf.release(made[0].id)
    shelf.make("g", "topic", 1, FakeStore())


class FakeNode:
    """A node with one group `g`."""

    def __init__(self, directory: Path) -> None:
        self.shelf = SnapshotShelf(directory)

    def make_snapshot(self, group_name: str) -> Snapshot:
        """See Node."""
        if group_name != "g":
            raise SnapshotRefused(f"group {group_name!r} is not here")
        return self.shelf.make("g", "topic", 1, FakeStore())


def test_a_receiver_gets_what_it_asks_for_over_http(tmp_path: Path) -> None:
    """A listing, bytes from an offset, an end; every refusal and a node that is gone are failures of the source."""
    server = Server(Starlette(routes=snapshot_routes(FakeNode(tmp_path))))
    source = HttpSource(server.start(), "g")
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
            HttpSource(server.url, "h").open()
    finally:
        server.stop()
    with pytest.raises(SourceFailed):
        source.open()
    with pytest.raises(SourceFailed):
        list(source.read(made, "index/g/CURRENT", 0))
    source.release(made)
