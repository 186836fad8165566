"""A receiver over a consumer of the test: what it writes, holds back, asks for again, and commits."""

from __future__ import annotations

import errno
import io
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from structlog.testing import capture_logs

from headrace.connectors.log.kafka_group import Partition, PartitionEnd, PartitionEvent, PartitionRecord
from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import LogUnavailable
from headrace.connectors.log.topics import Topics
from headrace.consumers.store import SeriesFile
from headrace.consumers.sync import incoming, receiver
from headrace.consumers.sync.decided_files import DecidedFiles
from headrace.consumers.sync.decisions import Decisions
from headrace.consumers.sync.file_check import FileDamaged, check_file, series_path
from headrace.consumers.sync.file_loader import Attempts, FileJob, verdict_of
from headrace.consumers.sync.incoming import IncomingFiles
from headrace.consumers.sync.manifest_rules import ManifestInvalid
from headrace.consumers.sync.receiver import Receiver
from headrace.consumers.sync.receiver_disk import ReceiverDisk
from headrace.consumers.sync.settings import SyncSettings
from headrace.consumers.sync.view_database import ViewDiskFull, ViewUnwritable
from headrace.schemas.framing import FORMAT
from headrace.schemas.sync_records import (
    SyncChunk,
    SyncDeletes,
    SyncFile,
    SyncManifest,
    SyncVerdict,
    Verdict,
    encode_chunk,
    encode_manifest,
    encode_verdict,
)
from tests.sync_sender import SECOND_NS, SealedFile, sealed_file
from tests.waiting import eventually

TOPICS = Topics("c")
SENDER = "00000000-0000-0000-0000-000000000001"
MANIFEST, CHUNK = (TOPICS.sync_manifest, 0), (TOPICS.sync_chunk, 0)


class Consumer:
    """See GroupConsumer: two partitions in memory."""

    def __init__(self) -> None:
        self.logs: dict[Partition, list[bytes]] = {MANIFEST: [], CHUNK: []}
        self.positions: dict[Partition, int] = {MANIFEST: 0, CHUNK: 0}
        self.paused: set[Partition] = set()
        self.committed: dict[Partition, int] = {}
        self.slow_manifests = False

    def poll(self, max_records: int, timeout_s: float) -> list[PartitionEvent]:
        """The next records of all that is not paused, chunks first."""
        del timeout_s
        found: list[PartitionEvent] = []
        for partition in sorted(self.logs):
            if partition in self.paused or (partition == MANIFEST and self.slow_manifests):
                continue
            start, log = self.positions[partition], self.logs[partition]
            for offset in range(start, min(len(log), start + max_records)):
                found.append(PartitionRecord(partition, offset, 0, None, log[offset]))
                self.positions[partition] = offset + 1
            if self.positions[partition] == len(log):
                found.append(PartitionEnd(partition, len(log)))
        return found

    def bounds(self, partition: Partition) -> tuple[int, int]:
        """See GroupConsumer."""
        return 0, len(self.logs[partition])

    def pause(self, partitions: Iterable[Partition]) -> None:
        """See GroupConsumer."""
        self.paused.update(partitions)

    def resume(self, partitions: Iterable[Partition]) -> None:
        """See GroupConsumer."""
        self.paused.difference_update(partitions)

    def seek(self, partition: Partition, offset: int) -> None:
        """See GroupConsumer."""
        self.positions[partition] = offset

    def commit(self, offsets: Mapping[Partition, int]) -> None:
        """See GroupConsumer."""
        self.committed.update(offsets)

    def close(self) -> None:
        """See GroupConsumer."""


class Loader:
    """Accepts what has the bytes of its digests; keeps the bytes."""

    def __init__(self) -> None:
        self.loaded: list[bytes] = []
        self.waiting: dict[tuple[str, int], str] = {}
        self.group_of: Callable[[SyncFile], str] = lambda _body: "g"

    def decide(self, job: FileJob) -> Attempts:
        """See FileLoader."""
        yield from ()
        job.finish()
        if job.path is not None:
            self.loaded.append(job.path.read_bytes() + series_path(job.path).read_bytes())
        return verdict_of(job.manifest, Verdict.ACCEPTED)


class Scene:
    """A receiver that holds both partitions, and what it has answered."""

    def __init__(self, directory: Path, log: MemoryLog, consumer: Consumer | None = None) -> None:
        self.log = log
        self.consumer = consumer or Consumer()
        self.verdicts: list[SyncVerdict] = []
        self.loader = Loader()
        self.disk = ReceiverDisk(directory, 0.0)
        loader: Any = self.loader
        self.receiver = Receiver(
            TOPICS,
            "the-centre",
            IncomingFiles(directory),
            DecidedFiles(log, TOPICS, directory / "decided"),
            loader,
            Decisions(self, 2, 0.01),
            self.disk,
            SyncSettings(retry_s=0.0),
        )
        self.receiver.assigned([MANIFEST, CHUNK])

    def append(self, verdict: SyncVerdict) -> None:
        """See Verdicts."""
        self.verdicts.append(verdict)

    def manifest(self, body: SyncFile | SyncDeletes, number: int = 1) -> SyncManifest:
        """A manifest comes."""
        manifest = SyncManifest(SENDER, "s", "", 1, number, FORMAT, body)
        self.consumer.logs[MANIFEST].append(encode_manifest(manifest))
        return manifest

    def chunks(self, file: SealedFile, number: int = 1, left_out: frozenset[int] = frozenset()) -> None:
        """The chunks of a file come."""
        for chunk in range(file.body.chunks):
            if chunk not in left_out:
                value = encode_chunk(SyncChunk(SENDER, 1, number, chunk, file.chunk(chunk)))
                self.consumer.logs[CHUNK].append(value)

    def turn_until(self, holds: Callable[[], bool], what: str) -> None:
        """Turns of the receiver until something holds."""

        def turned() -> bool:
            self.receiver.turn(self.consumer)
            return holds()

        eventually(turned, what, 10.0)

    def states(self) -> list[Verdict]:
        """The states that were answered."""
        return [each.state for each in self.verdicts]


@pytest.fixture
def scene(tmp_path: Path) -> Scene:
    """A receiver."""
    log = MemoryLog()
    log.create_topic(TOPICS.sync_verdict, {})
    return Scene(tmp_path, log)


FILE = sealed_file({"p1": [(number * SECOND_NS, 1.0) for number in range(50)]}, version=3, chunk_bytes=256)


def test_chunks_that_are_read_before_their_manifest_wait_for_it(scene: Scene) -> None:
    """The two topics are read at their own pace: a chunk is not lost because its manifest was read later."""
    scene.manifest(FILE.body)
    scene.chunks(FILE)
    scene.consumer.slow_manifests = True
    for _ in range(3):
        scene.receiver.turn(scene.consumer)
    assert [] == scene.verdicts
    scene.consumer.slow_manifests = False
    scene.turn_until(lambda: scene.states() == [Verdict.ACCEPTED], "the file is accepted")
    assert [FILE.data] == scene.loader.loaded


def test_a_chunk_that_cannot_be_read_again_yet_is_not_passed_over(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client may refuse to seek for a moment. The chunk would be sent once more, over a slow line."""
    errors, seek = [LogUnavailable("Local: Erroneous state", retriable=True)], scene.consumer.seek

    def refuses_once(partition: Partition, offset: int) -> None:
        if errors:
            raise errors.pop()
        seek(partition, offset)

    monkeypatch.setattr(scene.consumer, "seek", refuses_once)
    scene.manifest(FILE.body)
    scene.chunks(FILE)
    scene.consumer.slow_manifests = True
    scene.receiver.turn(scene.consumer)
    scene.consumer.slow_manifests = False
    while errors:
        with suppress(LogUnavailable):
            scene.receiver.turn(scene.consumer)
    scene.turn_until(lambda: bool(scene.verdicts), "the file is decided")
    assert [Verdict.ACCEPTED] == scene.states()


def test_chunks_without_a_manifest_are_nothing(scene: Scene) -> None:
    """They hold up nobody: the file behind them is accepted, and the offset passes them."""
    scene.chunks(FILE, number=7)
    scene.manifest(FILE.body, 8)
    scene.chunks(FILE, number=8)
    scene.turn_until(lambda: scene.states() == [Verdict.ACCEPTED], "the file is accepted")
    scene.turn_until(lambda: not scene.receiver._shares[0].files.files, "the file is decided")
    assert scene.receiver.figures.chunks_ignored == FILE.body.chunks
    scene.receiver.revoked([MANIFEST, CHUNK])
    assert {MANIFEST: 1, CHUNK: 2 * FILE.body.chunks} == scene.consumer.committed


def test_the_offset_stays_before_the_oldest_open_file(scene: Scene) -> None:
    """Another receiver begins with the first chunk of a file that is not whole, and does not load the others again."""
    other = sealed_file({"p2": [(5, 2.0)]}, version=4, chunk_bytes=256)
    scene.manifest(FILE.body, 1)
    scene.manifest(other.body, 2)
    scene.chunks(FILE, 1, frozenset({FILE.body.chunks - 1}))
    scene.chunks(other, 2)
    scene.turn_until(lambda: Verdict.ACCEPTED in scene.states(), "the other file is accepted")
    scene.turn_until(lambda: len(scene.receiver._shares[0].files.files) == 1, "the other file is decided")
    scene.receiver.revoked([MANIFEST, CHUNK])
    assert (0, 0) == (scene.consumer.committed[MANIFEST], scene.consumer.committed[CHUNK])


def test_decided_files_are_not_asked_for_again(scene: Scene, tmp_path: Path) -> None:
    """Between open files are some that have their verdict: whoever reads them again finds it in the verdict topic."""
    manifest = scene.manifest(FILE.body)
    appender = scene.log.appender()
    appender.append(TOPICS.sync_verdict, encode_verdict(verdict_of(manifest, Verdict.ACCEPTED)))
    later = Scene(tmp_path / "other", scene.log, scene.consumer)
    later.chunks(FILE)
    later.turn_until(lambda: later.receiver.figures.chunks_ignored == FILE.body.chunks, "all chunks are ignored")
    assert ([], []) == (later.verdicts, later.loader.loaded)


def test_decided_files_leave_no_names_behind(scene: Scene) -> None:
    """Its verdict is on disk: a sender may send a thousand files a day for years. An old manifest of it is nothing."""
    scene.manifest(FILE.body)
    scene.chunks(FILE)
    scene.turn_until(lambda: scene.receiver.figures.files_accepted == 1, "the file is accepted")
    files = scene.receiver._shares[0].files
    assert ({}, {}) == (files.files, files.newest)
    scene.manifest(FILE.body)
    scene.chunks(FILE)
    scene.turn_until(lambda: scene.receiver.figures.chunks_ignored == FILE.body.chunks, "all chunks are ignored")
    assert ({}, {}) == (files.files, files.newest)
    assert ([Verdict.ACCEPTED], [FILE.data]) == (scene.states(), scene.loader.loaded)


def test_names_go_also_while_the_disk_takes_no_verdicts(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was decided stays known: else an old manifest that comes again would be taken for a new one."""

    def refuses(_found: object, _next: int) -> None:
        raise ViewUnwritable("no space left")

    monkeypatch.setattr(scene.receiver._decided._view, "put", refuses)
    scene.manifest(FILE.body)
    scene.chunks(FILE)
    scene.turn_until(lambda: scene.receiver.figures.files_accepted == 1, "the file is accepted")
    files = scene.receiver._shares[0].files
    assert ({}, {}) == (files.files, files.newest)
    scene.manifest(FILE.body)
    scene.chunks(FILE)
    scene.turn_until(lambda: scene.receiver.figures.chunks_ignored == FILE.body.chunks, "all chunks are ignored")
    assert [Verdict.ACCEPTED] == scene.states()


def test_an_error_loses_no_record_that_was_polled_with_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer does not return them again: the view of the verdicts cannot be read once."""
    errors, number = [ViewUnwritable("no space left", retriable=True)], scene.receiver._decided.number

    def asked(sender: str, file: str) -> int:
        if errors:
            raise errors.pop()
        return number(sender, file)

    monkeypatch.setattr(scene.receiver._decided, "number", asked)
    scene.manifest(FILE.body)
    scene.chunks(FILE)
    with pytest.raises(ViewUnwritable):
        scene.receiver.turn(scene.consumer)
    scene.turn_until(lambda: scene.states() == [Verdict.ACCEPTED], "the file is accepted")
    assert (0, 0) == (scene.receiver.figures.resends, scene.receiver.figures.chunks_ignored)


def test_a_partition_whose_leader_is_away_holds_up_no_other(scene: Scene) -> None:
    """A chunk of it waits until the broker answers where its manifests end. No record is lost by that."""
    chunks, answers, bounds, poll = (TOPICS.sync_chunk, 1), [False], scene.consumer.bounds, scene.consumer.poll
    scene.receiver.assigned([(TOPICS.sync_manifest, 1), chunks])
    stray = encode_chunk(SyncChunk(SENDER, 1, 99, 0, b"x"))
    first: list[PartitionEvent] = [PartitionRecord(chunks, 0, 0, None, stray)]

    def asked(partition: Partition) -> tuple[int, int]:
        if partition[1] == 1 and not answers[0]:
            raise LogUnavailable("no leader", retriable=True)
        return (0, 1) if partition[1] == 1 else bounds(partition)

    def polled(max_records: int, timeout_s: float) -> list[PartitionEvent]:
        return [*(first.pop() for _ in first[:]), *poll(max_records, timeout_s)]

    scene.consumer.bounds, scene.consumer.poll = asked, polled  # type: ignore[method-assign]
    scene.receiver.turn(scene.consumer)
    scene.manifest(FILE.body)
    scene.chunks(FILE)
    scene.turn_until(lambda: scene.states() == [Verdict.ACCEPTED], "the file is accepted")
    assert (0, [FILE.data]) == (scene.consumer.positions[chunks], scene.loader.loaded)


def test_what_is_decided_frees_a_disk_that_is_full_of_it(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """A manifest that came meanwhile waits for the view, and the view for the bytes of a file that was accepted."""
    number, may_decide, decide = scene.receiver._decided.number, threading.Event(), scene.loader.decide

    def used() -> bool:
        return scene.receiver.gauges()["staging_bytes"] > 0

    def asked(sender: str, file: str) -> int:
        if used():
            raise ViewDiskFull("no space left on device", retriable=True)
        return number(sender, file)

    def slowly(job: FileJob) -> Attempts:
        may_decide.wait(10)
        return (yield from decide(job))

    monkeypatch.setattr(scene.loader, "decide", slowly)
    scene.manifest(FILE.body)
    scene.chunks(FILE)
    scene.receiver.turn(scene.consumer)
    monkeypatch.setattr(scene.receiver._decided, "number", asked)
    other = sealed_file({"p2": [(5, 2.0)]}, version=4, chunk_bytes=256)
    scene.manifest(other.body, 2)
    scene.chunks(other, 2)
    with pytest.raises(ViewDiskFull):
        scene.receiver.turn(scene.consumer)
    may_decide.set()

    def turned() -> bool:
        with suppress(ViewDiskFull):
            scene.receiver.turn(scene.consumer)
        return scene.states() == [Verdict.ACCEPTED] * 2

    eventually(turned, "both files are accepted", 10.0)


def test_files_that_wait_for_one_group_keep_no_thread_from_others(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There are two threads, and three files of a group whose leader has a full disk."""
    full, decide = threading.Event(), scene.loader.decide

    def held_up(job: FileJob) -> Attempts:
        while job.manifest.number <= 3 and not full.is_set():
            yield None
        return (yield from decide(job))

    monkeypatch.setattr(scene.loader, "decide", held_up)
    files = [sealed_file({"p1": [(number, 1.0)]}, version=number, chunk_bytes=256) for number in range(1, 5)]
    for number, each in enumerate(files, 1):
        scene.manifest(each.body, number)
        scene.chunks(each, number)
    scene.turn_until(lambda: [4] == [each.number for each in scene.verdicts], "the file of the other group is accepted")
    full.set()
    scene.turn_until(lambda: [Verdict.ACCEPTED] * 4 == scene.states(), "all files are accepted")


@pytest.mark.parametrize("error", [LogUnavailable("no broker"), RuntimeError("a client that failed")])
def test_a_verdict_that_was_not_appended_is_appended_later(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    """Whatever the log's client raises: without its verdict a file would hold up its partition."""
    errors, append = [error], scene.append

    def fails_once(verdict: SyncVerdict) -> None:
        if errors:
            raise errors.pop()
        append(verdict)

    monkeypatch.setattr(scene, "append", fails_once)
    scene.manifest(FILE.body)
    scene.chunks(FILE)
    scene.turn_until(lambda: scene.states() == [Verdict.ACCEPTED], "its verdict")
    scene.turn_until(lambda: scene.receiver.figures.files_accepted == 1, "the file is counted")


def test_a_damaged_chunk_is_asked_for_again(scene: Scene) -> None:
    """The chunk behind it finds the gap; from the damaged one on all come once more."""
    scene.manifest(FILE.body)
    scene.chunks(FILE)
    log = scene.consumer.logs[CHUNK]
    log[1] = log[1][:-1] + bytes([log[1][-1] ^ 1])
    scene.turn_until(lambda: scene.states() == [Verdict.RESEND], "chunks are asked for again")
    assert 1 == scene.verdicts[0].chunk
    scene.chunks(FILE, left_out=frozenset({0}))
    scene.turn_until(lambda: Verdict.ACCEPTED in scene.states(), "the file is accepted")
    assert [FILE.data] == scene.loader.loaded


def test_a_full_disk_is_waited_for(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """No chunk is lost: reading stops at it, and continues there once there is space."""
    scene.manifest(FILE.body)
    scene.chunks(FILE)
    full = [True]

    class FullDisk(io.FileIO):
        """A file on a disk that has space for half of its second chunk."""

        def write(self, data: Any) -> int:
            if full[0] and self.tell():
                super().write(data[: len(data) // 2])
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(data)

    monkeypatch.setattr(incoming, "io", SimpleNamespace(FileIO=FullDisk))
    monkeypatch.setattr(scene.disk, "_has_space", lambda: not full[0])
    for _ in range(4):
        scene.receiver.turn(scene.consumer)
    assert (1, 1.0) == (scene.disk.times_full, scene.receiver.gauges()["disk_fault"])
    [part] = scene.receiver._shares[0].incoming.values()
    assert part.size_bytes == part.path.stat().st_size > 0
    full[0] = False
    scene.turn_until(lambda: Verdict.ACCEPTED in scene.states(), "the file is accepted")
    assert [FILE.data] == scene.loader.loaded


def test_a_view_that_a_full_disk_closed_shows_as_one(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """An alert fires on it, and the log names it once. What is read meanwhile does not fill the memory."""
    number, full = scene.receiver._decided.number, [True]

    def asked(sender: str, file: str) -> int:
        if full[0]:
            raise ViewDiskFull("decided cannot be opened: No space left on device", retriable=True)
        return number(sender, file)

    monkeypatch.setattr(scene.receiver._decided, "number", asked)
    monkeypatch.setattr(scene.disk, "_has_space", lambda: not full[0])
    monkeypatch.setattr(receiver, "POLL_RECORDS", 1)
    scene.manifest(FILE.body)
    scene.chunks(FILE)
    running = threading.Thread(target=scene.receiver.run, args=(scene.consumer,))
    with capture_logs() as lines:
        running.start()
        eventually(lambda: scene.disk.times_full > FILE.body.chunks, "the receiver tries again", 10.0)
        assert 1.0 == scene.receiver.gauges()["disk_fault"]
        assert len(scene.receiver._polled) < FILE.body.chunks
        full[0] = False
        eventually(lambda: scene.states() == [Verdict.ACCEPTED], "the file is accepted", 10.0)
        scene.receiver.stop()
        running.join(10)
    assert ([FILE.data], 0.0) == (scene.loader.loaded, scene.receiver.gauges()["disk_fault"])
    logged = [each["event"] for each in lines if "disk" in each["event"] or "waits" in each["event"]]
    assert ["receiving waits for space on the disk", "there is space on the disk: receiving continues"] == logged


@pytest.mark.parametrize(
    ("changed", "kind"),
    [
        ({"stores": ("the-centre", "s")}, "SyncLoop"),
        ({"file": "e/1/../../x"}, "ManifestInvalid"),
        ({"rows": 0}, "ManifestInvalid"),
        ({"chunks": 1_000}, "ManifestInvalid"),
        ({"slice_number": 5}, "ManifestInvalid"),
        ({"bucket": 3}, "ManifestInvalid"),
        ({"resolution": "ms"}, "ManifestInvalid"),
        ({"tags": ("flow",)}, "ManifestInvalid"),
        ({"segment_digest": b""}, "ManifestInvalid"),
        ({"order": "a/b"}, "ManifestInvalid"),
        ({"database": ""}, "SchemaError"),
    ],
)
def test_a_manifest_that_no_store_writes_is_rejected_before_its_chunks(
    scene: Scene, changed: dict[str, Any], kind: str
) -> None:
    """Nothing of the file is read: one bad file costs nobody anything."""
    scene.manifest(replace(FILE.body, **changed))
    scene.turn_until(lambda: len(scene.verdicts) == 1, "a verdict")
    assert (Verdict.REJECTED, kind) == (scene.verdicts[0].state, scene.verdicts[0].kind)


def test_deletes_without_a_delete_are_rejected(scene: Scene) -> None:
    """No store sends such a manifest. Its fence would have no table, and failed as a fault of the receiver."""
    scene.manifest(SyncDeletes("e/1", ()))
    scene.turn_until(lambda: len(scene.verdicts) == 1, "a verdict")
    assert (Verdict.REJECTED, "ManifestInvalid") == (scene.verdicts[0].state, scene.verdicts[0].kind)


@pytest.mark.parametrize(
    "changed",
    [
        {"sender": "sender-1"},
        {"sender": ""},
        {"number": 0},
        {"number": 2**62},
        {"body": replace(FILE.body, file="e/1/" + "x" * 9_000_000)},
        {"body": SyncDeletes("x" * 9_000_000, ())},
    ],
    ids=["name", "none", "zero", "number", "file", "group"],
)
def test_a_manifest_of_no_sender_gets_no_verdict(scene: Scene, changed: dict[str, Any]) -> None:
    """None would reach it, or fit into its topic: it would be tried for ever, and hold the offset of its partition."""
    foreign = replace(SyncManifest(SENDER, "s", "", 1, 1, FORMAT, FILE.body), **changed)
    scene.consumer.logs[MANIFEST].append(encode_manifest(foreign))
    manifest = scene.manifest(FILE.body)
    scene.chunks(FILE)
    with capture_logs() as logs:
        scene.turn_until(lambda: len(scene.verdicts) == 1, "a verdict")
        scene.turn_until(lambda: scene.consumer.committed.get(MANIFEST) == 2, "both manifests are done")
    assert [(manifest.number, Verdict.ACCEPTED)] == [(each.number, each.state) for each in scene.verdicts]
    assert [0] == [each["offset"] for each in logs if each["event"] == "a manifest of no sender"]
    assert len(str(logs)) < 5_000


def received(directory: Path, data: bytes, segment_bytes: int) -> Path:
    """A segment and its series as a receiver has them."""
    path = directory / "file"
    path.write_bytes(data[:segment_bytes])
    series_path(path).write_bytes(data[segment_bytes:])
    return path


@pytest.mark.parametrize(
    "changed",
    [{"rows": 49}, {"max_time_ns": 5}, {"table": "tanks"}, {"tags": ()}, {"fields": ()}, {"buckets": 7, "bucket": 6}],
)
def test_a_file_is_compared_with_its_manifest(tmp_path: Path, changed: dict[str, Any]) -> None:
    """Rows, times, table, columns and bucket are those of the file, whatever the manifest says."""
    path = received(tmp_path, FILE.data, FILE.body.segment_bytes)
    assert ["pumps,pump=p1"] == check_file(path, FILE.body).devices
    with pytest.raises(ManifestInvalid):
        check_file(path, replace(FILE.body, **changed))


def test_devices_are_those_of_the_rows_and_not_of_the_series_file(tmp_path: Path) -> None:
    """Owners are decided by the devices: a series file that names others would take those of another sender."""
    other = sealed_file({"p9": [(number * SECOND_NS, 1.0) for number in range(50)]}, version=3, chunk_bytes=256)
    series = FILE.data[FILE.body.segment_bytes :]
    head, _, _ = series.partition(b"\n")
    forged = head + b"\n" + other.data[other.body.segment_bytes :].partition(b"\n")[2]
    path = received(tmp_path, FILE.data[: FILE.body.segment_bytes] + forged, FILE.body.segment_bytes)
    with pytest.raises(ManifestInvalid, match="other devices"):
        check_file(path, replace(FILE.body, series_bytes=len(forged)))


def test_tags_that_are_no_texts_are_rejected(tmp_path: Path) -> None:
    """No store has written such a file: it is an answer and not a failure of the receiver."""
    split = FILE.body.segment_bytes
    rows = pq.read_table(pa.BufferReader(FILE.data[:split]))
    sink = pa.BufferOutputStream()
    pq.write_table(rows.set_column(0, "pump", pa.array(range(len(rows)))), sink)
    segment = sink.getvalue().to_pybytes()
    digest = xxhash.xxh3_128(segment).digest()
    series = replace(SeriesFile.from_bytes(FILE.data[split:]), file_digest=digest.hex(), size_bytes=len(segment))
    path = received(tmp_path, segment + series.to_bytes(), len(segment))
    with pytest.raises(ManifestInvalid, match="its tags are no texts"):
        check_file(path, replace(FILE.body, segment_bytes=len(segment), segment_digest=digest))


@pytest.mark.parametrize("size", [0, 10, 400])
def test_a_foreign_or_truncated_file_is_rejected(tmp_path: Path, size: int) -> None:
    """Bytes that are no Parquet are an answer and not a failure of the receiver."""
    segment_bytes = FILE.body.segment_bytes - 40
    path = received(tmp_path, b"x" * size + FILE.data[size:], segment_bytes)
    with pytest.raises(ManifestInvalid):
        check_file(path, replace(FILE.body, segment_bytes=segment_bytes, series_bytes=40))


def test_a_fault_of_this_machine_rejects_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A receiver that is short of descriptors has the file sent again: rejected, its rows would be missing for good."""
    path = received(tmp_path, FILE.data, FILE.body.segment_bytes)

    def short(_path: Path) -> bytes:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Path, "read_bytes", short)
    with pytest.raises(FileDamaged, match="Too many open files"):
        check_file(path, FILE.body)
