"""File copies: sources that fail at every byte or send other bytes, and a swap that crashes at every step."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import xxhash

from headrace.consumers.recovery import file_copy
from headrace.consumers.recovery.file_copy import (
    Snapshot,
    SnapshotFile,
    SourceCorrupt,
    SourceFailed,
    commit_copy,
    fetch,
    finish_swap,
    finish_swaps,
    is_committed,
)

CONTENT = {
    "segments/g/db/t/1.parquet": b"first segment",
    "segments/g/db/t/2.parquet": b"the second one",
    "segments/g/db/u/empty.parquet": b"",
    "index/g/000004.sst": b"index",
}
TOTAL = sum(len(data) for data in CONTENT.values())


def listing(content: dict[str, bytes], name: str = "s") -> Snapshot:
    """The listing of files with this content."""
    files = tuple(SnapshotFile(path, len(data), xxhash.xxh3_128_hexdigest(data)) for path, data in content.items())
    return Snapshot(name, "g", "topic", 7, 9, 1, "00", files)


@dataclass
class FakeSource:
    """Lists `snapshot` and sends `content` byte by byte; fails after `bytes_left` bytes."""

    snapshot: Snapshot
    content: dict[str, bytes]
    bytes_left: int = 1_000_000
    sent: list[str] = field(default_factory=list)
    released: list[str] = field(default_factory=list)

    def open(self) -> Snapshot:
        """See Source."""
        return self.snapshot

    def read(self, snapshot: Snapshot, path: str, offset: int) -> Iterator[bytes]:
        """See Source."""
        for value in self.content[path][offset:]:
            if self.bytes_left == 0:
                raise SourceFailed("the source died")
            self.bytes_left -= 1
            self.sent.append(path)
            yield bytes([value])

    def release(self, snapshot: Snapshot) -> None:
        """See Source."""
        self.released.append(snapshot.id)


@dataclass
class Counter:
    """Counts the calls of a CopyObserver."""

    files: int = 0
    total_bytes: int = 0
    done_bytes: int = 0

    def begin(self, files: int, total_bytes: int) -> None:
        """See CopyObserver."""
        self.files, self.total_bytes, self.done_bytes = 0, total_bytes, 0

    def kept(self, size_bytes: int) -> None:
        """See CopyObserver."""
        self.done_bytes += size_bytes

    received = kept

    def discarded(self, size_bytes: int) -> None:
        """See CopyObserver."""
        self.done_bytes -= size_bytes

    def file_done(self) -> None:
        """See CopyObserver."""
        self.files += 1


def found(directory: Path) -> dict[str, bytes]:
    """Content of every file below a directory."""
    return {
        str(path.relative_to(directory)): path.read_bytes() for path in sorted(directory.rglob("*")) if path.is_file()
    }


def good() -> FakeSource:
    """A source without faults."""
    return FakeSource(listing(CONTENT), CONTENT)


def test_a_copy_is_complete_and_counted(tmp_path: Path) -> None:
    """All files are there, all bytes were counted, and the snapshot was released."""
    source, counter = good(), Counter()
    assert source.snapshot == fetch(source, tmp_path / "copy", counter)
    assert found(tmp_path / "copy") == CONTENT
    assert (len(CONTENT), TOTAL, TOTAL) == (counter.files, counter.total_bytes, counter.done_bytes)
    assert ["s"] == source.released


@pytest.mark.parametrize("bytes_left", range(TOTAL))
def test_a_source_fails_at_any_byte_and_another_continues(tmp_path: Path, bytes_left: int) -> None:
    """Received bytes are not sent again: at file boundaries, and within a file."""
    failing_source, second, counter = replace(good(), bytes_left=bytes_left), good(), Counter()
    with pytest.raises(SourceFailed):
        fetch(failing_source, tmp_path, counter)
    assert ["s"] == failing_source.released
    fetch(second, tmp_path, counter)
    assert found(tmp_path) == CONTENT
    assert TOTAL - bytes_left == len(second.sent)
    assert TOTAL == counter.done_bytes


def test_an_answer_that_ends_early_without_an_error_is_noticed(tmp_path: Path) -> None:
    """A short file is a failure of its source, and its received bytes stay."""
    short = dict(CONTENT) | {"segments/g/db/t/1.parquet": b"first"}
    with pytest.raises(SourceFailed, match="byte 5 of 13"):
        fetch(FakeSource(listing(CONTENT), short), tmp_path, Counter())
    second = good()
    fetch(second, tmp_path, Counter())
    assert TOTAL - 5 == len(second.sent)


@pytest.mark.parametrize("path", [path for path in CONTENT if CONTENT[path]])
@pytest.mark.parametrize(
    "corrupted",
    [lambda data: data[:-1] + b"?", lambda data: b"?" + data[1:], lambda data: data + b"more"],
    ids=["last", "first", "long"],
)
def test_bytes_that_are_not_those_of_the_catalogue_are_refused(
    tmp_path: Path, path: str, corrupted: Callable[[bytes], bytes]
) -> None:
    """A wrong file of equal size, or a longer one, is found by its digest.

    Good files stay, and a good source completes them.
    """
    counter = Counter()
    with pytest.raises(SourceCorrupt, match=path):
        fetch(FakeSource(listing(CONTENT), CONTENT | {path: corrupted(CONTENT[path])}), tmp_path, counter)
    kept = found(tmp_path)
    assert all(CONTENT[name] == data for name, data in kept.items())
    assert path not in kept
    second = good()
    fetch(second, tmp_path, counter)
    assert CONTENT == found(tmp_path)
    assert TOTAL - sum(map(len, kept.values())) == len(second.sent)
    assert TOTAL == counter.done_bytes


def test_a_partial_file_of_another_source_does_not_blame_a_good_one(tmp_path: Path) -> None:
    """A partial file with the wrong digest is fetched again from its first byte, from the same source."""
    path = "segments/g/db/t/1.parquet"
    (tmp_path / path).parent.mkdir(parents=True)
    (tmp_path / f"{path}.partial").write_bytes(b"other")
    fetch(good(), tmp_path, Counter())
    assert found(tmp_path) == CONTENT


def test_a_file_that_was_complete_and_rotted_is_fetched_again(tmp_path: Path) -> None:
    """A file in the directory is trusted only if its digest matches."""
    fetch(good(), tmp_path, Counter())
    path = "segments/g/db/t/2.parquet"
    (tmp_path / path).write_bytes(b"The second one")
    second = good()
    fetch(second, tmp_path, Counter())
    assert {path} == set(second.sent)
    assert found(tmp_path) == CONTENT


def test_a_snapshot_of_another_instant_keeps_what_both_have(tmp_path: Path) -> None:
    """Files that the new snapshot lacks are deleted; those with the same digest stay."""
    fetch(good(), tmp_path, Counter())
    later = {name: data for name, data in CONTENT.items() if "t/1" not in name} | {"segments/g/db/t/3.parquet": b"new"}
    second = FakeSource(listing(later), later)
    fetch(second, tmp_path, Counter())
    assert later == found(tmp_path)
    assert {"segments/g/db/t/3.parquet"} == set(second.sent)


@pytest.mark.parametrize("failing", range(len(CONTENT)))
def test_a_file_that_cannot_be_synced_is_not_taken_for_complete(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    """Files are synced while the next one is received.

    Any error of a sync ends the copy, and a later copy is complete.
    """
    synced: list[Path] = []

    def fail_once(path: Path) -> None:
        synced.append(path)
        if len(synced) == failing + 1:
            raise OSError("the disk is full")

    monkeypatch.setattr(file_copy, "fsync_file", fail_once)
    counter = Counter()
    with pytest.raises(OSError, match="the disk is full"):
        fetch(good(), tmp_path, counter)
    assert not synced[failing].with_suffix("").exists()
    assert failing == counter.files
    fetch(good(), tmp_path, counter)
    assert CONTENT == found(tmp_path)
    assert len(CONTENT) == counter.files


@pytest.mark.parametrize("path", ["../x", "/etc/x", "segments/../../x", "journal/x", "segments//x", "", "segments/./x"])
def test_a_listing_cannot_name_a_path_outside(path: str) -> None:
    """Any path that is not directly below segments or index is refused before a file is written."""
    document = listing({path: b"x"}).document()
    with pytest.raises(SourceCorrupt):
        Snapshot.parse(document)


def test_a_listing_survives_a_round_trip() -> None:
    """The parsed listing equals the written one; a listing without one of its keys is refused."""
    document = listing(CONTENT).document()
    assert listing(CONTENT) == Snapshot.parse(document)
    del document["offset"]
    with pytest.raises(SourceCorrupt):
        Snapshot.parse(document)


# The swap.

OLD = {"segments/g/old.parquet": b"old", "index/g/old.sst": b"old"}


class Crash(Exception):
    """The process ends here."""


def write_files(directory: Path, content: dict[str, bytes]) -> None:
    """Write files."""
    for path, data in content.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).write_bytes(data)


def prepared(data: Path) -> None:
    """A store with old files, one of another group, and a complete copy."""
    write_files(data, OLD | {"segments/other/x": b"x", "index/other/y": b"y"})
    write_files(data / file_copy.RECOVERING / "g", CONTENT)


def of_group(data: Path) -> dict[str, bytes]:
    """The files that a store of the group would open."""
    return {
        path: content
        for path, content in found(data).items()
        if path.split("/")[:2] in (["segments", "g"], ["index", "g"])
    }


@pytest.mark.parametrize("steps", range(20))
def test_a_crash_at_any_step_of_the_swap_leaves_the_old_or_the_new_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int
) -> None:
    """After a crash at any rename or deletion the next start finds the old store or completes the swap, without a mixture."""
    prepared(tmp_path)
    left = [steps]

    def counted(call: Callable[..., None]) -> Callable[..., None]:
        def step(*arguments: object, **options: object) -> None:
            if left[0] == 0:
                raise Crash
            left[0] -= 1
            call(*arguments, **options)

        return step

    with monkeypatch.context() as patched:
        patched.setattr(os, "rename", counted(os.rename))
        patched.setattr(shutil, "rmtree", counted(shutil.rmtree))
        try:
            commit_copy(tmp_path, "g")
            finish_swap(tmp_path, "g")
        except Crash:
            assert OLD == of_group(tmp_path) or is_committed(tmp_path, "g") or CONTENT == of_group(tmp_path)
            kept = found(tmp_path)
            assert set(CONTENT.values()) <= set(kept.values()), "the copy is somewhere"
    committed = is_committed(tmp_path, "g")
    finish_swaps(tmp_path)
    finish_swaps(tmp_path)
    expected = OLD if steps == 0 else CONTENT
    assert expected == of_group(tmp_path)
    assert b"x" == (tmp_path / "segments/other/x").read_bytes()
    assert not committed or steps > 0
    assert not list((tmp_path / file_copy.REPLACED).glob("*"))


def test_the_old_store_stays_until_the_new_one_is_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of the old store is deleted while a part of the new one is not in place."""
    prepared(tmp_path)
    real = shutil.rmtree

    def watched(path: Path, **options: Any) -> None:
        if any(old in found(Path(path)).values() for old in OLD.values()):
            assert CONTENT == of_group(tmp_path)
        real(path, **options)

    monkeypatch.setattr(shutil, "rmtree", watched)
    commit_copy(tmp_path, "g")
    assert OLD == of_group(tmp_path)
    finish_swap(tmp_path, "g")
    assert CONTENT == of_group(tmp_path)
    assert b"old" not in found(tmp_path).values()


def test_leftovers_of_an_earlier_swap_are_tolerated(tmp_path: Path) -> None:
    """A swap succeeds although an earlier one could not delete its files."""
    prepared(tmp_path)
    write_files(tmp_path / file_copy.REPLACED / "g", {"segments/older.parquet": b"older", "index/older.sst": b"older"})
    commit_copy(tmp_path, "g")
    finish_swap(tmp_path, "g")
    assert CONTENT == of_group(tmp_path)


def test_an_empty_directory_gets_its_first_store(tmp_path: Path) -> None:
    """A node that lost its disk has nothing to move aside."""
    write_files(tmp_path / file_copy.RECOVERING / "g", CONTENT)
    commit_copy(tmp_path, "g")
    assert ["g"] == finish_swaps(tmp_path)
    assert CONTENT == of_group(tmp_path)
