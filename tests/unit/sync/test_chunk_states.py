"""Chunks of a partition: whatever Kafka drops, repeats or hands to another receiver, each file is whole in the end."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headrace.consumers.sync.chunk_states import STEPS, ChunkAction, ChunkEvent, FileState
from headrace.consumers.sync.partition_files import PartitionFiles
from headrace.schemas.sync_records import SyncChunk, SyncDeletes, SyncFile, SyncManifest

SENDER = "00000000-0000-0000-0000-000000000001"
CHUNK = 4


def manifest_of(number: int, size: int = 10, file: str = "", session: int = 1) -> SyncManifest:
    """The manifest of a file of so many bytes."""
    body = SyncFile(
        file=file or f"e/1/{number}",
        stores=("s",),
        database="d",
        table="t",
        slice_ns=1,
        buckets=1,
        slice_number=0,
        bucket=0,
        era=1,
        first_version=1,
        last_version=1,
        generation=0,
        order="1",
        rows=1,
        min_time_ns=0,
        max_time_ns=0,
        tags=(),
        fields=(),
        resolution="us",
        content_digest=bytes(16),
        segment_bytes=size - 1,
        segment_digest=bytes(16),
        segment_md5=b"",
        series_bytes=1,
        series_digest=bytes(16),
        chunk_bytes=CHUNK,
        chunks=-(-size // CHUNK),
    )
    return SyncManifest(SENDER, "s", "", session, number, 1, body)


def chunks_of(manifest: SyncManifest, start: int = 0, session: int = 1) -> Iterator[SyncChunk]:
    """The chunks of a manifest, each byte its place."""
    body = manifest.body
    assert isinstance(body, SyncFile)
    data = bytes(range(body.segment_bytes + body.series_bytes))
    for number in range(start, body.chunks):
        yield SyncChunk(SENDER, session, manifest.number, number, data[number * CHUNK : (number + 1) * CHUNK])


def test_every_event_has_a_step_in_every_state() -> None:
    """The table is whole: no event of any file is unexpected."""
    assert set(FileState) == set(STEPS)
    assert all(set(ChunkEvent) == set(steps) for steps in STEPS.values())


def test_what_is_decided_stays_so() -> None:
    """No chunk changes a file that has its verdict, and a whole one waits for it alone."""
    assert {(FileState.DECIDED, ChunkAction.NOTHING)} == set(STEPS[FileState.DECIDED].values())
    kept = {event for event, (state, _) in STEPS[FileState.COMPLETE].items() if state is FileState.COMPLETE}
    assert set(ChunkEvent) - {ChunkEvent.DECIDE} == kept


class _Disk:
    """A receiver's files: what is written, and which are whole."""

    def __init__(self) -> None:
        self.files = PartitionFiles(30.0)
        self.written: dict[int, bytes] = {}
        self.whole: dict[int, bytes] = {}
        self.resends: list[tuple[int, int]] = []

    def chunk(self, offset: int, chunk: SyncChunk) -> None:
        """A record of the chunk partition."""
        decision = self.files.take_chunk(offset, chunk, 0.0)
        if decision.action is ChunkAction.WRITE:
            self.written[chunk.number] = self.written.get(chunk.number, b"") + chunk.data
        elif decision.action is ChunkAction.RESEND and decision.file is not None:
            self.resends.append((chunk.number, decision.file.next_chunk))
        if decision.complete:
            self.whole[chunk.number] = self.written[chunk.number]


@settings(max_examples=200)
@given(st.lists(st.integers(2, 30), min_size=1, max_size=4), st.integers(0, 2**32))
def test_files_become_whole_whatever_is_dropped_repeated_or_read_again(sizes: list[int], seed: int) -> None:
    """A log of chunks of some files, with losses and repeats; the sender answers each RESEND, receivers change.

    In the end each file is whole, with exactly its bytes, and what was committed was never needed again.
    """
    chance = Random(seed)
    manifests = [manifest_of(number + 1, size) for number, size in enumerate(sizes)]
    log = [chunk for each in manifests for chunk in chunks_of(each)]
    chance.shuffle(log)
    log = log if chance.random() < 0.2 else _in_order(log)
    log = [chunk for chunk in log if chance.random() < 0.9]
    log += chance.choices(log, k=chance.randrange(4)) if log else []
    disk, committed, position, handed_over = _open(manifests), 0, 0, 0
    whole: dict[int, bytes] = {}
    for _ in range(20_000):
        if position < len(log):
            disk.chunk(position, log[position])
            position += 1
        elif len(whole) == len(manifests):
            break
        else:
            disk.resends += [(file.manifest.number, file.next_chunk) for file in disk.files.silent(1e9)]
            for number, chunk in dict(disk.resends).items():
                log += chunks_of(manifests[number - 1], chunk)
            disk.resends.clear()
        for number in list(disk.whole):
            whole[number] = disk.whole.pop(number)
            disk.files.decide((SENDER, number))
        committed = max(committed, disk.files.chunks_from(position))
        if handed_over < 3 and chance.random() < 0.03:
            # Another receiver begins at the committed offset; what is decided is known to it.
            handed_over += 1
            disk, position = _open([each for each in manifests if each.number not in whole]), committed
    assert {each.number: bytes(range(size)) for each, size in zip(manifests, sizes, strict=True)} == whole


def _in_order(log: list[SyncChunk]) -> list[SyncChunk]:
    """Chunks of the files in any order, those of one file in theirs."""
    left = {number: [each for each in log if each.number == number] for number in {each.number for each in log}}
    for each in left.values():
        each.sort(key=lambda chunk: chunk.chunk)
    return [left[chunk.number].pop(0) for chunk in log]


def _open(manifests: list[SyncManifest]) -> _Disk:
    disk = _Disk()
    for offset, each in enumerate(manifests):
        disk.files.take_manifest(offset, each, 0.0)
    return disk


def test_a_gap_is_asked_for_once_and_again_after_silence() -> None:
    """Chunks behind a gap are ignored; only silence asks again, each time after twice the pause."""
    disk, manifest = _open([manifest_of(1, 20)]), manifest_of(1, 20)
    sent = list(chunks_of(manifest))
    for offset, number in enumerate((0, 2, 3, 4)):
        disk.chunk(offset, sent[number])
    assert [(1, 1)] == disk.resends
    assert [] == list(disk.files.silent(29.0))
    assert 1 == len(list(disk.files.silent(31.0)))
    assert [] == list(disk.files.silent(31.0 + 59.0))
    assert 1 == len(list(disk.files.silent(31.0 + 61.0)))


def test_a_chunk_of_an_older_session_is_ignored() -> None:
    """A sender that was started again sends on; what its former run still appends counts no more."""
    disk, manifest = _open([manifest_of(1, 12)]), manifest_of(1, 12)
    sent = list(chunks_of(manifest))
    disk.chunk(0, sent[0])
    disk.chunk(1, next(chunks_of(manifest, 1, session=2)))
    disk.chunk(2, sent[2])
    assert {} == disk.whole
    disk.chunk(3, next(chunks_of(manifest, 2, session=2)))
    assert bytes(range(12)) == disk.whole[1]


@pytest.mark.parametrize("data", [b"", b"12345", b"123"])
def test_a_chunk_of_another_size_rejects_its_file(data: bytes) -> None:
    """All chunks but the last have the size of the manifest: else the manifest is not true."""
    files, manifest = PartitionFiles(30.0), manifest_of(1, 12)
    files.take_manifest(0, manifest, 0.0)
    assert ChunkAction.REJECT is files.take_chunk(0, SyncChunk(SENDER, 1, 1, 0, data), 0.0).action


def test_a_newer_manifest_of_a_file_ends_the_older_one() -> None:
    """The sender begins a file anew: the older manifest holds back no offset, and an older one that follows is nothing."""
    files = PartitionFiles(30.0)
    files.take_manifest(5, manifest_of(1, file="e/1/a"), 0.0)
    newer = files.take_manifest(9, manifest_of(2, file="e/1/a"), 0.0)
    assert [1] == [each.manifest.number for each in newer.superseded]
    assert 9 == files.manifests_from(20)
    assert files.take_manifest(11, manifest_of(1, file="e/1/a"), 0.0).file is None


def test_deletes_are_whole_at_once() -> None:
    """The deletes of a round have no chunks."""
    files = PartitionFiles(30.0)
    decision = files.take_manifest(0, SyncManifest(SENDER, "s", "", 1, 1, 1, SyncDeletes("e/1", ())), 0.0)
    assert decision.complete
    files.decide((SENDER, 1))
    assert 7 == files.manifests_from(7)


def test_a_chunk_that_was_not_written_is_taken_again() -> None:
    """A full disk undoes the chunk: the same one is the next."""
    files, manifest = PartitionFiles(30.0), manifest_of(1, 4)
    files.take_manifest(0, manifest, 0.0)
    file = files.files[SENDER, 1]
    before = file.state, file.chunks_from
    chunk = next(chunks_of(manifest))
    assert files.take_chunk(3, chunk, 0.0).complete
    files.undo(file, *before)
    assert 3 == files.chunks_from(3)
    assert files.take_chunk(3, chunk, 0.0).complete


def test_deletes_make_older_files_of_their_group_void() -> None:
    """A file that was announced before deletes of its group is not loaded behind them, also if it comes once more."""
    files = PartitionFiles(resend_s=10)
    older, other = manifest_of(1, file="e/1/a"), manifest_of(2, file="e/2/b")
    deletes, newer = SyncManifest(SENDER, "s", "", 1, 3, 1, SyncDeletes("e/1", ())), manifest_of(4, file="e/1/a")
    files.take_manifest(0, older, 0.0)
    files.take_manifest(1, other, 0.0)
    decision = files.take_manifest(2, deletes, 0.0)
    assert decision.complete
    assert [each.manifest for each in decision.superseded] == [older]
    files.decide((SENDER, 3))
    assert files.take_manifest(3, older, 0.0).file is None
    assert files.take_manifest(4, newer, 0.0).file is not None
    assert set(files.files) == {(SENDER, 2), (SENDER, 4)}
