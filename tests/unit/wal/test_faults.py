"""Failing disks and serdes: the affected caller gets the error, no other a wrong answer, and service resumes."""

from __future__ import annotations

import contextlib
import errno
import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from headrace.connectors.files import FileLayer
from headrace.consumers.wal import (
    BytesSerde,
    CheckpointFailed,
    Delete,
    DurabilityUnknown,
    LogFailed,
    Put,
    UpdateFailed,
    WriteAheadLog,
)
from headrace.consumers.wal.commit import GroupCommit
from headrace.consumers.wal.log_writer import LogWriter
from headrace.schemas.errors import StateUnknown
from tests.unit.wal.disk import Crash, SimulatedDisk

DIRECTORY = Path("/log")


def opened(directory: Path, files: FileLayer | None = None, serde: Any = None, **settings: Any) -> WriteAheadLog:
    """A recovered log without background work, unless a setting enables it."""
    quiet: dict[str, Any] = {"sync_interval_ms": None, "checkpoint_bytes": None, "checkpoint_age_ms": None}
    log = WriteAheadLog(directory, serde or BytesSerde(), files=files, **{**quiet, **settings})
    log.recover()
    return log


def parts_of(log: WriteAheadLog) -> tuple[LogWriter, GroupCommit]:
    """What writes the frames of an open log, and what syncs them."""
    assert log._writer is not None
    assert log._commit is not None
    return log._writer, log._commit


def recovered(directory: Path, files: FileLayer | None = None) -> dict[bytes, bytes]:
    """Values by key after another recovery."""
    log = WriteAheadLog(directory, BytesSerde(), files=files, sync_interval_ms=None)
    state = dict(log.recover().values())
    log.close()
    return state


def failing(times: int, real: Callable[..., Any], number: int = errno.EIO) -> Callable[..., Any]:
    """The real call, but the first `times` calls fail."""
    left = [times]

    def call(*arguments: Any) -> Any:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(number, os.strerror(number))
        return real(*arguments)

    return call


def wait_until(condition: Callable[[], bool]) -> None:
    """Returns when the condition holds; a minute without it is a failure."""
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline, "it never happened"
        time.sleep(0.005)


def test_a_failed_sync_is_unknown_and_ends_service_until_a_checkpoint(tmp_path: Path, monkeypatch: Any) -> None:
    """Its caller gets StateUnknown, later updates fail at once, the checkpoint removes exactly the transactions in doubt, and service resumes."""
    log = opened(tmp_path)
    log.update([Put((b"good", b"1"))], sync=True)
    monkeypatch.setattr(os, "fdatasync", failing(1, os.fdatasync))
    with pytest.raises(StateUnknown) as caught:
        log.update([Put((b"doubtful", b"2")), Delete(b"good")], sync=True)
    assert isinstance(caught.value, DurabilityUnknown)
    assert 2 == caught.value.transaction
    for sync in (False, True):
        with pytest.raises(LogFailed, match="transactions 2 to 2 are in doubt"):
            log.update([Put((b"later", b"3"))], sync=sync)
    assert log.metrics().failed
    log.checkpoint()
    assert 3 == log.update([Put((b"after", b"4"))], sync=True)
    log.close()
    assert {b"good": b"1", b"after": b"4"} == recovered(tmp_path)


def test_unsynced_updates_of_a_failed_group_are_removed_with_it(tmp_path: Path, monkeypatch: Any) -> None:
    """A failed sync also covers earlier unsynced updates: they are removed too, so that a prefix remains."""
    log = opened(tmp_path, partitions=2)
    log.update([Put((b"a", b"1"))], sync=True)
    log.update([Put((b"b", b"2"))], partition=1)
    monkeypatch.setattr(os, "fdatasync", failing(1, os.fdatasync))
    with pytest.raises(DurabilityUnknown):
        log.sync()
    log.checkpoint()
    assert log.get(b"b") is None
    log.close()
    assert {b"a": b"1"} == recovered(tmp_path)


def test_a_checkpoint_that_fails_as_well_changes_nothing(tmp_path: Path, monkeypatch: Any) -> None:
    """The log stays failed; the next checkpoint may succeed."""
    log = opened(tmp_path)
    log.update([Put((b"a", b"1"))], sync=True)
    monkeypatch.setattr(os, "fdatasync", failing(1, os.fdatasync))
    with pytest.raises(DurabilityUnknown):
        log.update([Put((b"b", b"2"))], sync=True)
    monkeypatch.setattr(os, "fsync", failing(1, os.fsync))
    with pytest.raises(CheckpointFailed) as caught:
        log.checkpoint()
    assert errno.EIO == caught.value.errno
    with pytest.raises(LogFailed):
        log.update([Put((b"c", b"3"))])
    log.checkpoint()
    log.update([Put((b"d", b"4"))], sync=True)
    log.close()
    assert {b"a": b"1", b"d": b"4"} == recovered(tmp_path)


@pytest.mark.parametrize("nth", range(1, 12))
def test_the_nth_fsync_fails(tmp_path: Path, monkeypatch: Any, nth: int) -> None:
    """Whichever sync fails, in update or checkpoint: an error to the caller, and everything that was confirmed is recovered."""
    confirmed: dict[bytes, bytes] = {}
    log = opened(tmp_path, partitions=2)
    real, calls = os.fsync, [0]

    def fsync(descriptor: int) -> None:
        calls[0] += 1
        if calls[0] == nth:
            raise OSError(errno.EIO, "injected")
        real(descriptor)

    monkeypatch.setattr(os, "fsync", fsync)
    for index in range(4):
        with contextlib.suppress(UpdateFailed):
            log.update([Put((b"%d" % index, b"x"))], sync=True, partition=index % 2)
            confirmed[b"%d" % index] = b"x"
        with contextlib.suppress(CheckpointFailed):
            log.checkpoint()
    assert calls[0] > nth
    log.close()
    assert confirmed == recovered(tmp_path)
    assert len(confirmed) >= 3


@pytest.mark.parametrize("kind", ["EIO", "ENOSPC", "short"])
def test_a_failed_write_leaves_nothing_behind(tmp_path: Path, monkeypatch: Any, kind: str) -> None:
    """No id, not in the state, no byte of it in the file, and the next update succeeds with that id.

    Short writes are completed.
    """
    log = opened(tmp_path, preallocate_bytes=0)
    log.update([Put((b"a", b"1"))])
    (journal,) = tmp_path.glob("journal-*")
    size = journal.stat().st_size
    real = os.pwritev
    calls = [0]

    def pwritev(descriptor: int, buffers: Any, offset: int) -> int:
        calls[0] += 1
        if calls[0] > 2 and kind != "short":
            raise OSError(getattr(errno, kind), kind)
        return real(descriptor, [b"".join(buffers)[:1_500]], offset)

    monkeypatch.setattr(os, "pwritev", pwritev)
    value = os.urandom(9_000)
    if kind == "short":
        assert 2 == log.update([Put((b"b", value))])
    else:
        with pytest.raises(UpdateFailed) as caught:
            log.update([Put((b"b", value))])
        assert getattr(errno, kind) == caught.value.errno
        assert isinstance(caught.value, OSError)
        assert size == journal.stat().st_size
        assert log.get(b"b") is None
        monkeypatch.undo()
        assert 2 == log.update([Put((b"b", value))])
    log.close()
    assert {b"a": b"1", b"b": value} == recovered(tmp_path)


def test_a_write_that_cannot_be_cut_off_is_unknown(tmp_path: Path, monkeypatch: Any) -> None:
    """When neither the write nor the cut works, the caller must get StateUnknown, not a plain failure."""
    log = opened(tmp_path)
    log.update([Put((b"a", b"1"))], sync=True)
    monkeypatch.setattr(os, "pwritev", failing(1, os.pwritev))
    monkeypatch.setattr(os, "ftruncate", failing(1, os.ftruncate))
    with pytest.raises(DurabilityUnknown):
        log.update([Put((b"b", b"2"))])
    with pytest.raises(LogFailed):
        log.update([Put((b"c", b"3"))])
    log.checkpoint()
    log.update([Put((b"d", b"4"))])
    log.close()
    assert {b"a": b"1", b"d": b"4"} == recovered(tmp_path)


@pytest.mark.parametrize("error", [ValueError("bad record"), MemoryError(), OSError(errno.EIO, "no file")])
def test_a_serde_that_raises_fails_its_update_alone(tmp_path: Path, error: Exception) -> None:
    """Its exception is raised unchanged, also after some encoded records; nothing is written."""

    class Failing(BytesSerde):
        def dump(self, record: Any) -> bytes:
            if record[0] == b"bad":
                raise error
            return super().dump(record)

    log = opened(tmp_path, serde=Failing())
    log.update([Put((b"a", b"1"))])
    with pytest.raises(type(error)) as caught:
        log.update([Put((b"b", b"2")), Put((b"bad", b"3"))], sync=True)
    assert error is caught.value
    assert 2 == log.update([Put((b"c", b"4"))], sync=True)
    log.close()
    assert {b"a", b"c"} == set(WriteAheadLog(tmp_path, Failing()).recover())


def test_a_serde_that_fails_to_load_fails_recovery_and_frees_the_directory(tmp_path: Path) -> None:
    """Recovery may be called again when the serde works; nothing was lost."""

    class Failing(BytesSerde):
        broken = True

        def load(self, data: bytes, version: int) -> tuple[bytes, bytes]:
            if self.broken:
                raise MemoryError
            return super().load(data, version)

    log = opened(tmp_path)
    log.update([Put((b"a", b"1"))])
    log.close()
    serde = Failing()
    log = WriteAheadLog(tmp_path, serde)
    with pytest.raises(MemoryError):
        log.recover()
    serde.broken = False
    assert {b"a": (b"a", b"1")} == log.recover()
    log.close()


@pytest.mark.parametrize("free", range(0, 1_600, 40))
def test_disk_full_at_every_point(free: int) -> None:
    """Wherever the disk runs full, the update fails, no file grows at retries, and it succeeds once there is space."""
    disk = SimulatedDisk()
    log = opened(DIRECTORY, disk, partitions=2, preallocate_bytes=256)
    log.update([Put((b"a", b"1"))], partition=0)
    expected = {b"a": b"1"}
    disk.capacity = sum(disk.sizes().values()) + free
    for index in range(20):
        key = b"%d" % index
        try:
            log.update([Put((key, b"x" * 50))], sync=True, partition=index % 2)
            expected[key] = b"x" * 50
        except UpdateFailed:
            sizes = disk.sizes()
            with pytest.raises(UpdateFailed) as caught:
                log.update([Put((key, b"x" * 50))], partition=index % 2)
            assert errno.ENOSPC == caught.value.errno
            assert sum(disk.sizes().values()) <= sum(sizes.values())
            assert len(sizes) == len(disk.sizes())
    with contextlib.suppress(CheckpointFailed):
        log.checkpoint()
    disk.capacity = None
    log.update([Put((b"last", b"1"))], sync=True, partition=1)
    assert expected | {b"last": b"1"} == recovered(DIRECTORY, disk)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 2 MiB in memory; skips where mounting is not allowed."""
    target = tmp_path / "small"
    target.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(target)]
    try:
        mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
    except OSError:
        mounted = False
    if not mounted:
        pytest.skip("this process may not mount a file system")
    try:
        yield target
    finally:
        subprocess.run(["umount", "-l", str(target)], check=True)


def test_a_full_disk_is_survived_without_restart(small_disk: Path) -> None:
    """On a real full disk updates fail without a change; once space is free the same log continues."""
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(500_000))
    log = opened(small_disk / "log")
    expected = {}
    value = os.urandom(50_000)
    with contextlib.suppress(UpdateFailed):
        for index in range(100):
            log.update([Put((b"%d" % index, value))], sync=True)
            expected[b"%d" % index] = value
    assert len(expected) < 100
    assert len(expected) > 10
    sizes = {path.name: path.stat().st_size for path in (small_disk / "log").iterdir()}
    for _ in range(3):
        with pytest.raises(UpdateFailed) as caught:
            log.update([Put((b"no", value))])
        assert errno.ENOSPC == caught.value.errno
    assert sizes == {path.name: path.stat().st_size for path in (small_disk / "log").iterdir()}
    log.update([Delete(b"0")], sync=True)
    del expected[b"0"]
    ballast.unlink()
    log.update([Put((b"yes", value))], sync=True)
    log.checkpoint()
    log.close()
    assert expected | {b"yes": value} == recovered(small_disk / "log")


def run_threads(works: list[Callable[[], None]]) -> None:
    """Runs all at once and raises what any of them raised."""
    errors: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(work,)) for work in works]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    if errors:
        raise errors[0]


def test_many_callers_share_syncs(tmp_path: Path, monkeypatch: Any) -> None:
    """Eight callers need fewer syncs than updates.

    Ids are given once each, in a run; all is recovered in the right order.
    """
    real = os.fdatasync
    synced = [0]

    def slow(descriptor: int) -> None:
        synced[0] += 1
        time.sleep(0.002)
        real(descriptor)

    log = opened(tmp_path)
    log.update([Put((b"first", b""))], sync=True)
    monkeypatch.setattr(os, "fdatasync", slow)
    ids: list[int] = []
    last: dict[bytes, tuple[int, bytes]] = {}
    lock = threading.Lock()

    def work(caller: int) -> None:
        for index in range(25):
            key, value = b"%d" % (index % 7), b"%d-%d" % (caller, index)
            transaction = log.update(
                [Put((key, value))], sync=index % 3 > 0, partition=None if caller % 2 else caller // 2
            )
            with lock:
                ids.append(transaction)
                last[key] = max(last.get(key, (0, b"")), (transaction, value))

    run_threads([partial(work, caller) for caller in range(8)])
    assert list(range(2, 202)) == sorted(ids)
    assert log.metrics().group_size_max > 1
    assert synced[0] < 4 * 136
    log.close()
    state = recovered(tmp_path)
    del state[b"first"]
    assert {key: value for key, (_, value) in last.items()} == state


def test_a_failed_sync_fails_its_whole_group(tmp_path: Path, monkeypatch: Any) -> None:
    """Every caller that waited for that sync gets StateUnknown, later ones a plain failure; none is recovered."""
    log = opened(tmp_path)
    log.update([Put((b"good", b"1"))], sync=True)
    gate = threading.Event()

    def fdatasync(_: int) -> None:
        gate.wait(30)
        raise OSError(errno.EIO, "injected")

    monkeypatch.setattr(os, "fdatasync", fdatasync)
    outcomes: list[type] = []

    def work(caller: int) -> None:
        try:
            log.update([Put((b"%d" % caller, b"2"))], sync=True)
        except (DurabilityUnknown, LogFailed) as error:
            outcomes.append(type(error))

    def release() -> None:
        wait_until(lambda: len(parts_of(log)[1]._waiting) == 4)
        gate.set()

    run_threads([release, *(partial(work, caller) for caller in range(5))])
    assert {DurabilityUnknown: 1, LogFailed: 4} == {kind: outcomes.count(kind) for kind in outcomes}
    monkeypatch.undo()
    log.checkpoint()
    log.close()
    assert {b"good": b"1"} == recovered(tmp_path)


def test_a_caller_between_write_and_sync_gets_an_earlier_failure(tmp_path: Path) -> None:
    """A transaction written before a failure, and removed by the checkpoint after it, is never reported durable."""
    log = opened(tmp_path)
    log.update([Put((b"good", b"1"))], sync=True)
    outcome: list[object] = []

    def work() -> None:
        try:
            outcome.append(log.update([Put((b"large", bytes(5_000)))], sync=True))
        except DurabilityUnknown as error:
            outcome.append(("unknown", error.transaction))

    writer, commit = parts_of(log)
    with commit._lock:
        thread = threading.Thread(target=work)
        thread.start()
        wait_until(lambda: log.last_transaction == 2)
        with writer.lock:
            writer.fail("injected")
        log.checkpoint()
        assert 3 == log.update([Put((b"later", b"2"))])
    thread.join(60)
    assert [("unknown", 2)] == outcome
    log.close()
    assert {b"good": b"1", b"later": b"2"} == recovered(tmp_path)


def test_one_bad_write_in_a_group_fails_one_caller(tmp_path: Path) -> None:
    """When one caller's journal cannot be created, the others of its group are written, and ids have no gap."""

    class NoSecondPartition(FileLayer):
        def create(self, path: Path) -> int:
            if "-0001.wal" in path.name:
                raise OSError(errno.ENOSPC, "no space for that one")
            return super().create(path)

    log = opened(tmp_path, NoSecondPartition(), partitions=2)
    log.update([Put((b"first", b"1"))], sync=True)
    results: dict[int, object] = {}

    def work(caller: int) -> None:
        try:
            results[caller] = log.update([Put((b"%d" % caller, b"2"))], sync=True, partition=int(caller == 3))
        except UpdateFailed as error:
            results[caller] = error.errno

    _, commit = parts_of(log)
    commit.sync_lock.acquire()
    threads = [threading.Thread(target=work, args=(caller,)) for caller in range(5)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(commit._waiting) == 5)
    commit.sync_lock.release()
    for thread in threads:
        thread.join(60)
    assert errno.ENOSPC == results.pop(3)
    assert [2, 3, 4, 5] == sorted(results.values())  # type: ignore[type-var]
    log.close()
    assert {b"first", b"0", b"1", b"2", b"4"} == set(recovered(tmp_path))


def test_updates_continue_while_a_checkpoint_is_written(tmp_path: Path) -> None:
    """A slow snapshot blocks no update, and later updates are recovered on top of it."""
    reached, resume = threading.Event(), threading.Event()

    class SlowSnapshot(FileLayer):
        def step(self, name: str) -> None:
            if name == "snapshot: partial written":
                reached.set()
                assert resume.wait(60)

    log = opened(tmp_path, SlowSnapshot())
    log.update([Put((b"a", b"1")), Put((b"b", b"1"))])
    thread = threading.Thread(target=log.checkpoint)
    thread.start()
    assert reached.wait(60)
    log.update([Put((b"a", b"2")), Delete(b"b")], sync=True)
    resume.set()
    thread.join(60)
    log.update([Put((b"c", b"3"))], sync=True)
    log.close()
    assert {b"a": b"2", b"c": b"3"} == recovered(tmp_path)


def test_unsynced_updates_become_durable_within_the_interval(tmp_path: Path) -> None:
    """Without any synced update the log syncs by itself."""
    log = opened(tmp_path, sync_interval_ms=10)
    log.update([Put((b"a", b"1"))])
    wait_until(lambda: log.durable_transaction == 1)
    log.close()


def test_checkpoints_happen_by_size_and_by_age(tmp_path: Path) -> None:
    """After so many bytes, or when changes are old enough, a snapshot is written without a call."""
    by_size, by_age = partial(opened, checkpoint_bytes=50_000), partial(opened, checkpoint_age_ms=10)
    for name, opening in {"size": by_size, "age": by_age}.items():
        log = opening(tmp_path / name)
        for index in range(10):
            log.update([Put((b"%d" % index, bytes(6_000)))])
        wait_until((tmp_path / name / "snapshot").exists)
        log.close()
        assert 10 == len(recovered(tmp_path / name))


def test_a_failed_sync_of_the_interval_fails_the_next_update(tmp_path: Path, monkeypatch: Any) -> None:
    """The sync has no caller, so updates fail until a checkpoint."""
    log = opened(tmp_path, sync_interval_ms=10)
    monkeypatch.setattr(os, "fdatasync", failing(1, os.fdatasync))
    log.update([Put((b"a", b"1"))])
    wait_until(lambda: log.metrics().failed)
    with pytest.raises(LogFailed):
        log.update([Put((b"b", b"2"))])
    log.checkpoint()
    log.update([Put((b"c", b"3"))], sync=True)
    log.close()
    assert {b"c": b"3"} == recovered(tmp_path)


def all_steps() -> list[str]:
    """Every step of updates, of checkpoints after success and failure, and of recoveries, in order of first use."""
    disk = SimulatedDisk()
    run_all(disk)
    return list(dict.fromkeys(disk.steps))


def run_all(disk: SimulatedDisk, confirmed: list[int] | None = None) -> None:
    """Updates, checkpoints, a failed sync and the checkpoint after it, two recoveries.

    Records the confirmed transactions.
    """
    for _ in range(2):
        log = opened(DIRECTORY, disk, partitions=2, preallocate_bytes=128)
        for index in range(3):
            number = log.last_transaction + 1
            log.update(
                [Put((b"k", b"%d" % number)), Put((b"large", b"%d" % number * 2_500))], sync=True, partition=index % 2
            )
            if confirmed is not None:
                confirmed.append(number)
            if index == 1:
                log.checkpoint()
        disk.fail("data", 1)
        with contextlib.suppress(DurabilityUnknown):
            log.update([Put((b"k", b"doubtful"))], sync=True)
        log.checkpoint()
        log.close()


@pytest.mark.parametrize("step", all_steps())
def test_a_power_cut_at_every_named_step(step: str) -> None:
    """At every occurrence of a step: recovery finds the confirmed state or a newer one, and the log continues."""
    times = 0
    while True:
        times += 1
        disk = SimulatedDisk()
        disk.random.seed(times)
        disk.crash_at_step(step, times)
        confirmed: list[int] = []
        try:
            run_all(disk, confirmed)
            break
        except Crash:
            pass
        after = disk.crash(any_sectors=True)
        log = WriteAheadLog(DIRECTORY, BytesSerde(), 2, files=after, sync_interval_ms=None, checkpoint_age_ms=None)
        state = log.recover()
        newest = state.get(b"k", (b"k", b"0"))[1]
        # A transaction in doubt may be recovered until a checkpoint has removed it.
        assert newest == b"doubtful" or int(newest) >= max(confirmed, default=0)
        if newest not in (b"doubtful", b"0"):
            assert newest * 2_500 == state[b"large"][1]
        log.update([Put((b"k", b"again"))], sync=True)
        assert b"again" == recovered(DIRECTORY, after.crash())[b"k"]
    assert times > 1
