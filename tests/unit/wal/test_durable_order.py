"""What is durable at which step: the machine stops there, and every change that no sync covers is lost or kept."""

from __future__ import annotations

import _thread
import random
import threading
from pathlib import Path
from typing import Any

import pytest

from headrace.connectors.files import FileLayer
from headrace.consumers.wal import (
    BytesSerde,
    CheckpointFailed,
    DurabilityUnknown,
    LogDamaged,
    LogFailed,
    Put,
    UpdateFailed,
    WriteAheadLog,
)
from headrace.consumers.wal.commit import GroupCommit
from headrace.consumers.wal.log_writer import Transaction
from headrace.consumers.wal.maintenance import Maintenance
from headrace.consumers.wal.record_encoding import Encoded
from tests.unit.wal.disk import Crash, Inode, SimulatedDisk
from tests.unit.wal.test_faults import DIRECTORY, opened, recovered, wait_until

LARGE = bytes(range(250)) * 20
EVERYTHING = 1 << 30


class Chosen(random.Random):
    """Of the unsynced changes of each file, and of all names, the first `number` survive."""

    number = 0

    def randint(self, a: int, b: int) -> int:
        """`number`, within the limits."""
        return min(b, max(a, self.number))

    def random(self) -> float:
        """Changes survive whole."""
        return 1.0


class CheckedDisk(SimulatedDisk):
    """A disk that checks at each step of the log what must be durable there."""

    def __init__(self) -> None:
        super().__init__()
        self.random = Chosen()
        self.checked: set[str] = set()

    def step(self, name: str) -> None:
        """See FileLayer."""
        if "name synced" in name or name.endswith(": durable"):
            self.check(name, not self.names_pending)
        elif "journals synced" in name:
            self.check(name, not any(inode.pending for inode in self.files("journal-")))
        elif "header synced" in name:
            self.check(name, not self.files("journal-")[-1].pending)
        elif "partial synced" in name:
            self.check(name, not any(inode.pending for inode in self.files(name.split(":")[0])))
        super().step(name)

    def unlink(self, path: Path) -> None:
        """See FileLayer: a file must not go because of another one whose name a power cut can still take back."""
        if str(path) in self.names_seen and not path.name.endswith(".partial"):
            self.check("unlink", not any(kind == "link" for kind, _, _ in self.names_pending))
        super().unlink(path)

    def files(self, start: str) -> list[Inode]:
        """The files whose names begin so."""
        return [inode for name, inode in self.names_seen.items() if Path(name).name.startswith(start)]

    def check(self, step: str, durable: bool) -> None:
        """Fails when something is not durable at a step."""
        self.checked.add(step)
        assert durable, f"not everything is durable at the step {step!r}"


def test_every_step_finds_durable_what_the_next_one_needs() -> None:
    """Headers and names before frames, journals before the snapshot, a file before its name, a name before deletes."""
    disk = CheckedDisk()
    log = opened(DIRECTORY, disk, partitions=2, preallocate_bytes=128)
    for number in range(4):
        log.update([Put((b"k%d" % number, LARGE))], sync=number % 2 == 1, partition=number % 2)
    log.checkpoint()
    log.update([Put((b"k", b"v"))])
    killed: Any = disk.kill()
    disk.crashed, disk.names_seen, disk.names_durable = False, killed.names_seen, killed.names_durable
    opened(DIRECTORY, disk).close()
    assert {
        "journal: header synced",
        "journal: name synced",
        "update: journals synced",
        "checkpoint: journals synced",
        "snapshot: partial synced",
        "snapshot: durable",
        "manifest: partial synced",
        "manifest: durable",
        "recovery: journals synced",
    } <= disk.checked


def test_files_go_only_when_the_names_that_replace_them_are_durable() -> None:
    """A process that was killed behind the rename of a manifest: its successor syncs the directory before it deletes."""
    disk = CheckedDisk()
    log = opened(DIRECTORY, disk)
    log.update([Put((b"a", b"1"))], sync=True)
    disk.crash_at_step("manifest: renamed")
    with pytest.raises(Crash):
        log.checkpoint()
    disk.crashed = False
    opened(DIRECTORY, disk)
    assert "unlink" in disk.checked


def lost_everything_unsynced(disk: SimulatedDisk) -> SimulatedDisk:
    """After a power cut that took every unsynced change."""
    disk.random = Chosen()
    return disk.crash()


def test_one_synced_update_makes_all_journals_durable() -> None:
    """An unsynced update of another partition comes before it, so it is durable with it."""
    disk = SimulatedDisk()
    log = opened(DIRECTORY, disk, partitions=3)
    for partition in (0, 2, 1):
        log.update([Put((b"%d" % partition, b"v"))], partition=partition)
    log.update([Put((b"last", b"v"))], sync=True, partition=1)
    assert {b"0", b"1", b"2", b"last"} == set(recovered(DIRECTORY, lost_everything_unsynced(disk)))


def test_a_snapshot_refers_to_durable_values_only() -> None:
    """A large value that no caller had synced is durable before the snapshot that names its place."""
    disk = SimulatedDisk()
    log = opened(DIRECTORY, disk)
    log.update([Put((b"large", LARGE))])
    log.checkpoint()
    assert {b"large": LARGE} == recovered(DIRECTORY, lost_everything_unsynced(disk))


def test_close_makes_everything_durable() -> None:
    """Updates that no caller had synced survive a power cut right after the close."""
    disk = SimulatedDisk()
    log = opened(DIRECTORY, disk)
    log.update([Put((b"a", b"1"))])
    log.close()
    assert {b"a": b"1"} == recovered(DIRECTORY, lost_everything_unsynced(disk))


@pytest.mark.parametrize("kept", range(4))
def test_a_refused_update_never_comes_back(kept: int) -> None:
    """Its bytes reached the file whole, and were cut off: a power cut right after the error does not undo that."""
    disk = SimulatedDisk()
    disk.random = chosen = Chosen()
    log = opened(DIRECTORY, disk, preallocate_bytes=0)
    log.update([Put((b"a", b"1"))], sync=True)
    chosen.number = EVERYTHING
    disk.fail("write", 1)
    with pytest.raises(UpdateFailed):
        log.update([Put((b"a", b"refused"))])
    chosen.number = kept
    assert {b"a": b"1"} == recovered(DIRECTORY, disk.crash())


@pytest.mark.parametrize("failed", [False, True])
def test_what_a_recovery_returned_survives_a_power_cut_after_it(failed: bool) -> None:
    """Also what an earlier process wrote without a sync, or with one that failed and left clean pages behind."""
    disk = SimulatedDisk()
    disk.random = Chosen()
    log = opened(DIRECTORY, disk, partitions=2)
    log.update([Put((b"a", b"1"))], sync=True)
    log.update([Put((b"b", b"2")), Put((b"large", LARGE))], partition=1)
    if failed:
        disk.fail("data", 1)
        with pytest.raises(DurabilityUnknown):
            log.sync()
    after = disk.kill()
    writer = opened(DIRECTORY, after)._writer
    assert writer is not None
    first = dict(writer.entries)
    assert {b"a", b"b", b"large"} == set(first)
    assert {b"a": b"1", b"b": b"2", b"large": LARGE} == recovered(DIRECTORY, lost_everything_unsynced(after))


def test_damage_of_a_durable_transaction_is_found_by_the_frames_behind_it() -> None:
    """One partition: only the headers behind the invalid bytes state that the transaction before was durable."""
    disk = SimulatedDisk()
    log = opened(DIRECTORY, disk, partitions=1, preallocate_bytes=0)
    for value in (b"first", b"second", b"third"):
        log.update([Put((value, b"a value that is looked for"))], sync=True)
    content = disk.content("journal-0000000001-0000.wal")
    content[content.index(b"a value")] ^= 1
    with pytest.raises(LogDamaged, match="transaction 1 is missing"):
        opened(DIRECTORY, disk)


def test_an_update_during_a_sync_is_not_durable_with_it() -> None:
    """The watermark is what was written when the sync began."""

    class Busy(SimulatedDisk):
        during: WriteAheadLog | None = None

        def sync_data(self, descriptor: int) -> None:
            super().sync_data(descriptor)
            log, self.during = self.during, None
            if log is not None:
                log.update([Put((b"during", b"2"))])

    disk = Busy()
    log = opened(DIRECTORY, disk)
    log.update([Put((b"before", b"1"))])
    disk.during = log
    log.sync()
    assert (1, 2) == (log.durable_transaction, log.last_transaction)
    log.sync()
    assert 2 == log.durable_transaction


class Shared(SimulatedDisk):
    """Of two syncs of one file at the same time, the one that ends first takes the error; the other one succeeds."""

    def __init__(self, opened_during: Any) -> None:
        super().__init__()
        self.armed = False
        self.during = opened_during

    def sync_data(self, descriptor: int) -> None:
        """See FileLayer."""
        if self.armed:
            self.armed = False
            self.during()
        else:
            super().sync_data(descriptor)


@pytest.mark.parametrize("call", ["update", "sync"])
def test_a_sync_during_which_the_log_fails_makes_nothing_durable(call: str) -> None:
    """The sync of a cut has taken the error of the pages that this one was for, and reported it: this one returns
    without an error. An acknowledged transaction would be removed by the repair.
    """

    def failed_update() -> None:
        disk.fail("write", 1)
        disk.fail("data", 1)
        with pytest.raises(DurabilityUnknown):
            log.update([Put((b"failed", b"1"))])

    disk = Shared(failed_update)
    log = opened(DIRECTORY, disk)
    log.update([Put((b"good", b"1"))], sync=True)
    log.update([Put((b"unsynced", b"1"))])
    disk.armed = True
    with pytest.raises(DurabilityUnknown, match="the log failed while") as caught:
        {"update": lambda: log.update([Put((b"b", b"1"))], sync=True), "sync": log.sync}[call]()
    assert (3 if call == "update" else None) == caught.value.transaction
    assert 1 == log.durable_transaction
    log.checkpoint()
    log.close()
    assert {b"good": b"1"} == recovered(DIRECTORY, disk)


def test_a_close_is_no_failure_of_a_sync_that_runs(tmp_path: Path) -> None:
    """Its caller has what it was promised: the close waits for it."""
    syncing, resume = threading.Event(), threading.Event()

    class Slow(FileLayer):
        slow = False

        def sync_data(self, descriptor: int) -> None:
            if self.slow:
                syncing.set()
                assert resume.wait(60)
            super().sync_data(descriptor)

    files = Slow()
    log = opened(tmp_path, files)
    log.update([Put((b"a", b"1"))], sync=True)
    files.slow = True
    numbers: list[int] = []
    threads = [threading.Thread(target=lambda: numbers.append(log.update([Put((b"b", b"1"))], sync=True)))]
    threads[0].start()
    assert syncing.wait(60)
    threads.append(threading.Thread(target=log.close))
    threads[1].start()
    threads[1].join(0.1)
    resume.set()
    for thread in threads:
        thread.join(60)
    assert [2] == numbers


def test_an_interrupted_leader_reports_no_success_for_its_group() -> None:
    """Ctrl-C between the write and the sync: the callers that wait get an error, and the next group has a leader."""

    class Interrupted(SimulatedDisk):
        interrupts = False

        def step(self, name: str) -> None:
            if self.interrupts and name == "update: group written":
                self.interrupts = False
                raise KeyboardInterrupt
            super().step(name)

    disk = Interrupted()
    log = opened(DIRECTORY, disk)
    log.update([Put((b"good", b"1"))], sync=True)
    outcomes: list[object] = []

    def work(caller: int) -> None:
        try:
            outcomes.append(log.update([Put((b"%d" % caller, b"2"))], sync=True))
        except (KeyboardInterrupt, DurabilityUnknown) as error:
            outcomes.append(type(error))

    commit = log._commit
    assert commit is not None
    commit.sync_lock.acquire()
    threads = [threading.Thread(target=work, args=(caller,)) for caller in range(3)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(commit._waiting) == 3)
    disk.interrupts = True
    commit.sync_lock.release()
    for thread in threads:
        thread.join(60)
    assert {KeyboardInterrupt: 1, DurabilityUnknown: 2} == {kind: outcomes.count(kind) for kind in outcomes}
    assert 5 == log.update([Put((b"after", b"3"))], sync=True)
    log.close()


def test_a_waiter_that_gives_up_as_it_is_promoted_promotes_the_next() -> None:
    """Else every caller behind it would wait for ever."""
    commit: Any = GroupCommit(None)  # type: ignore[arg-type]
    waiters = [Transaction(Encoded(), 0) for _ in range(3)]
    for waiter in waiters:
        waiter.gate = _thread.allocate_lock()
        waiter.gate.acquire()
    leader = commit._leader = Transaction(Encoded(), 0)
    commit._waiting = list(waiters)
    commit._leave(leader)
    assert commit._leader is waiters[0]
    commit._leave(waiters[0])
    assert commit._leader is waiters[1]
    assert [False, True] == [each.gate.locked() for each in waiters[1:]]
    commit._leave(waiters[2])
    commit._leave(waiters[1])
    commit._leave(waiters[1])
    assert commit._leader is None


@pytest.mark.parametrize("large", [False, True])
def test_a_leader_that_is_interrupted_before_its_group_leaves_the_line(large: bool) -> None:
    """Ctrl-C while it waits for the sync that runs: the next one leads, and what was not written yet never is."""
    log: Any = opened(DIRECTORY, disk := SimulatedDisk())
    commit, outcomes = log._commit, dict[str, object]()
    real = commit.sync_lock

    class Interrupted:
        def __enter__(self) -> None:
            commit.sync_lock = real
            wait_until(lambda: len(commit._waiting) == 2)
            raise KeyboardInterrupt

        def __exit__(self, *_: object) -> None:
            """Never entered."""

    def work(key: str, value: bytes) -> None:
        try:
            outcomes[key] = log.update([Put((key.encode(), value))], sync=True)
        except BaseException as error:
            outcomes[key] = type(error)

    commit.sync_lock = Interrupted()
    first = threading.Thread(target=work, args=("first", LARGE if large else b"1"), daemon=True)
    second = threading.Thread(target=work, args=("second", b"2"), daemon=True)
    first.start()
    wait_until(lambda: len(commit._waiting) == 1)
    second.start()
    for thread in (first, second):
        thread.join(20)
    assert {"first": KeyboardInterrupt, "second": 2 if large else 1} == outcomes
    assert (3 if large else 2) == log.update([Put((b"third", b"3"))], sync=True)
    log.close()
    assert ({b"first", b"second", b"third"} if large else {b"second", b"third"}) == set(recovered(DIRECTORY, disk))


def test_failing_checkpoints_leave_no_journals_behind() -> None:
    """On a disk that is full for hours, each attempt would add one for every partition."""
    disk = SimulatedDisk()
    log = opened(DIRECTORY, disk)
    for number in range(5):
        log.update([Put((b"%d" % number, b"v"))], sync=True)
        disk.fail("sync", 1)
        with pytest.raises(CheckpointFailed):
            log.checkpoint()
    assert 1 == log.metrics().journals


def test_automatic_checkpoints_write_no_more_than_updates() -> None:
    """A large state is not written again for every few bytes, and a failed attempt is not repeated at once."""
    maintenance = Maintenance(lambda: None, None, 100, None)  # type: ignore[arg-type]
    assert maintenance.checkpoint_is_due(100)
    maintenance.checkpoint_made(100, snapshot_bytes=1_000)
    assert not maintenance.checkpoint_is_due(1_099)
    assert maintenance.checkpoint_is_due(1_100)

    class Full:
        """A log on a full disk, and its own writer."""

        directory, failure, bytes_written, durable, last = DIRECTORY, None, 1_100, 0, 0
        attempts = 0

        def checkpoint_unless_failed(self) -> None:
            """See WriteAheadLog."""
            self.attempts += 1
            raise CheckpointFailed("disk full", OSError(28, "disk full"))

    log: Any = Full()
    for _ in range(3):
        maintenance.tick(log, log)
    assert 1 == log.attempts


def test_a_value_that_is_torn_is_a_torn_tail() -> None:
    """Of the newest update, which no sync covers, its frame survived and its value did not: it never was."""
    disk = SimulatedDisk()
    log = opened(DIRECTORY, disk)
    log.update([Put((b"a", b"1"))], sync=True)
    log.update([Put((b"large", LARGE))])
    after = disk.kill()
    [name] = [Path(path).name for path in after.names_seen if LARGE in after.content(Path(path).name)]
    content = after.content(name)
    content[content.index(LARGE) + 2_000] ^= 1
    assert {b"a": b"1"} == recovered(DIRECTORY, after)


def test_maintenance_never_ends_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sync fails behind its look at the log: of two updates that belong together its checkpoint would drop the first."""
    disk = SimulatedDisk()
    log = opened(DIRECTORY, disk)
    log.update([Put((b"a", b"1"))])

    def fails_meanwhile(_self: Maintenance, _bytes: int) -> bool:
        disk.fail("data", 1)
        with pytest.raises(DurabilityUnknown):
            log.sync()
        return True

    monkeypatch.setattr(Maintenance, "checkpoint_is_due", fails_meanwhile)
    assert log.run_maintenance()
    with pytest.raises(LogFailed):
        log.update([Put((b"b", b"2"))], sync=True)
    log.checkpoint()
    log.update([Put((b"b", b"2"))], sync=True)
    assert [None, (b"b", b"2")] == [log.get(key) for key in (b"a", b"b")]


def test_files_that_have_changed_places_are_damage(tmp_path: Path) -> None:
    """A journal under the name of another one, or a snapshot that a newer one has replaced, is never read."""
    log = opened(tmp_path, partitions=2)
    log.update([Put((b"a", b"1"))], partition=0)
    log.update([Put((b"b", b"2"))], partition=1)
    log.close()
    one, two = sorted(tmp_path.glob("journal-*"))
    contents = one.read_bytes(), two.read_bytes()
    one.write_bytes(contents[1])
    two.write_bytes(contents[0])
    with pytest.raises(LogDamaged, match="its header is that of journal 2 of partition 1"):
        recovered(tmp_path)
    one.write_bytes(contents[0])
    two.write_bytes(contents[1])
    log = opened(tmp_path)
    log.checkpoint()
    older = (tmp_path / "snapshot").read_bytes()
    log.update([Put((b"c", b"3"))], sync=True)
    log.checkpoint()
    log.close()
    (tmp_path / "snapshot").write_bytes(older)
    with pytest.raises(LogDamaged, match="older than the one that the manifest names"):
        recovered(tmp_path)


def test_a_journal_of_an_older_serde_is_not_continued(tmp_path: Path) -> None:
    """A journal has one version in its header: a record of the next one would be loaded as one of the first."""

    class Serde(BytesSerde):
        """Values of the second version are written backwards."""

        def __init__(self, version: int) -> None:
            self.version = version

        def dump(self, record: Any) -> bytes:
            return super().dump((record[0], record[1][:: 1 if self.version == 1 else -1]))

        def load(self, data: bytes, version: int) -> tuple[bytes, bytes]:
            key, value = super().load(data, version)
            return key, value[:: 1 if version == 1 else -1]

    for version, record in ((1, (b"old", b"12")), (2, (b"new", b"34"))):
        log = opened(tmp_path, serde=Serde(version))
        log.update([Put(record)])
        log.close()
    log = WriteAheadLog(tmp_path, Serde(2))
    assert {b"old": (b"old", b"12"), b"new": (b"new", b"34")} == log.recover()
    log.close()
