"""Jobs of a receiver in their order."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from headrace.connectors.log.port import LogUnavailable
from headrace.consumers.sync import file_loader
from headrace.consumers.sync.file_check import FileDamaged, series_path
from headrace.consumers.sync.file_loader import FileJob, FileLoader
from headrace.consumers.sync.group_members import Holder, MemberRefused
from headrace.consumers.sync.member_routes import LoadRequest
from headrace.consumers.sync.owners import DeviceOwned
from headrace.consumers.sync.receiver_disk import ReceiverDisk
from headrace.consumers.sync.view_database import ViewDiskFull
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.sync_records import SyncDeletes, SyncFile, SyncManifest, SyncVerdict, Verdict
from headrace.schemas.tables import TimeResolution, TypeClash
from tests.sync_sender import DAY_NS, sealed_file

GRACE_S = 0.3
MEMBERS = ("n1", "n2", "n3")
SENDER = "3128b068-1706-41f4-9afd-81a3174c70c0"


def job_of(number: int, *behind: FileJob) -> FileJob:
    """Deletes, behind other jobs."""
    manifest = SyncManifest("u", "s", "", 1, number, 1, SyncDeletes("e/1", ()))
    return FileJob(manifest, None, lambda: None, threading.Event(), threading.Event(), behind)


@pytest.fixture
def applied() -> list[int]:
    """The numbers of deletes that were applied."""
    return []


@pytest.fixture
def loader(applied: list[int], monkeypatch: pytest.MonkeyPatch) -> FileLoader:
    """A loader whose deletes go nowhere."""
    nothing: Any = None
    found = FileLoader(nothing, nothing, nothing, nothing, ReceiverDisk(Path(), 0.01))
    monkeypatch.setattr(found, "_delete", lambda manifest: applied.append(manifest.number))
    return found


def decide(loader: FileLoader, job: FileJob) -> SyncVerdict | None:
    """As Decisions: one attempt after the other."""
    attempts = loader.decide(job)
    while True:
        try:
            next(attempts)
        except StopIteration as ended:
            return cast("SyncVerdict | None", ended.value)
        job.ended.wait(0.01)


def test_deletes_wait_for_what_they_made_void(loader: FileLoader, applied: list[int]) -> None:
    """A load that is under way is in the log before the deletes, or nowhere: they wait until it is settled."""
    void = job_of(1)
    void.ended.set()
    verdicts: list[Any] = []
    deciding = threading.Thread(target=lambda: verdicts.append(decide(loader, job_of(2, void))))
    deciding.start()
    time.sleep(GRACE_S)
    assert not applied
    void.settled.set()
    deciding.join(10)
    assert applied == [2]
    assert verdicts[0].state is Verdict.ACCEPTED


def test_deletes_that_nobody_waits_for_end(loader: FileLoader, applied: list[int]) -> None:
    """A partition that goes to another receiver ends the job, also while it waits."""
    waiting = job_of(2, job_of(1))
    waiting.ended.set()
    assert decide(loader, waiting) is None
    assert not applied


class FakeCentre:
    """Members, owners and tables of a centre. `full`: members that take no file now, by their error."""

    def __init__(self) -> None:
        self.full: dict[str, HeadraceError] = {}
        self.online: tuple[str, ...] = MEMBERS
        self.leader = "n1"
        self.staged: list[str] = []
        self.loaded: list[LoadRequest] = []
        self.refused: list[MemberRefused] = []
        self.looks = 0
        self.slow = threading.Event()
        self.conflict: HeadraceError | None = None
        self.clash: HeadraceError | None = None
        database = SimpleNamespace(slice_ns=DAY_NS, buckets=1)
        self.tables = SimpleNamespace(ensure_database=lambda *_: database, ensure=self.ensure)

    def ensure(self, *_given: object, resolution: TimeResolution) -> object:
        """A table, version 7."""
        if self.clash is not None:
            raise self.clash
        return SimpleNamespace(version=7, resolution=resolution)

    def own(self, _sender: object, _file: str, _database: str, devices: Sequence[str]) -> None:
        """Devices that are free, unless there is a conflict."""
        assert devices
        if self.conflict is not None:
            raise self.conflict

    def holder(self, _body: SyncFile, *, look: bool = False) -> Holder:
        """The group of every slot."""
        self.looks += look
        online = tuple((node, f"http://{node}") for node in self.online)
        return Holder(GroupKey("n1", 1), MEMBERS, online, self.leader if self.leader in self.online else "")

    def stage(self, url: str, _holder: Holder, _body: SyncFile, _sender: str, path: Path) -> None:
        """A member takes a file."""
        assert path.exists()
        node = url.removeprefix("http://")
        if node in self.full:
            raise self.full[node]
        if node == "n3":
            self.slow.wait(10)
        self.staged.append(node)

    def loads(self, url: str, _holder: Holder, requests: Sequence[LoadRequest]) -> list[MemberRefused | None]:
        """The leader loads files."""
        assert url == f"http://{self.leader}"
        if self.refused:
            raise self.refused.pop()
        self.loaded += requests
        return [None for _ in requests]


@pytest.fixture
def centre_of_three(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeCentre]:
    """A centre of three members."""
    monkeypatch.setattr(file_loader, "STRAGGLER_S", 0.01)
    found = FakeCentre()
    found.slow.set()
    yield found
    found.slow.set()


@pytest.fixture
def file_job(tmp_path: Path) -> FileJob:
    """A file that is whole."""
    sealed = sealed_file({"a": [(DAY_NS, 1.0)]}, version=3)
    path = tmp_path / "1.part"
    path.write_bytes(sealed.data[: sealed.body.segment_bytes])
    series_path(path).write_bytes(sealed.data[sealed.body.segment_bytes :])
    manifest = SyncManifest(SENDER, "s", "", 1, 1, 1, sealed.body)
    return FileJob(manifest, path, lambda: None, threading.Event(), threading.Event())


def decided(centre: Any, job: FileJob, after: Any = None, disk: ReceiverDisk | None = None) -> SyncVerdict | None:
    """The verdict of a job; `after` is called while it waits, as soon as the loader shows why."""
    with ThreadPoolExecutor(8) as pool:
        disk = disk or ReceiverDisk(Path(), 0.01)
        loader = FileLoader(centre, centre, centre, pool, disk)
        deciding = pool.submit(decide, loader, job)
        if after is not None:
            key = (job.manifest.sender, job.manifest.number)
            deadline = time.monotonic() + 10
            while key not in loader.waiting and time.monotonic() < deadline:
                time.sleep(0.01)
            assert not deciding.done()
            after()
        return deciding.result(20)


def test_a_file_is_staged_before_its_leader_loads_it(centre_of_three: FakeCentre, file_job: FileJob) -> None:
    """All members take it, and the request names the version of the table that has its columns."""
    verdict = decided(centre_of_three, file_job)
    assert verdict is not None
    assert verdict.state is Verdict.ACCEPTED
    assert sorted(centre_of_three.staged) == list(MEMBERS)
    assert [7] == [each.schema_version for each in centre_of_three.loaded]


def test_a_slow_member_holds_up_no_file(centre_of_three: FakeCentre, file_job: FileJob) -> None:
    """A majority with the leader is enough; the third one is not waited for."""
    centre_of_three.slow.clear()
    threading.Timer(1.0, centre_of_three.slow.set).start()
    verdict = decided(centre_of_three, file_job)
    assert verdict is not None
    assert verdict.state is Verdict.ACCEPTED
    assert len(centre_of_three.loaded) == 1


@pytest.mark.parametrize("members", [("n1",), ("n2", "n3")], ids=["the leader", "a majority"])
def test_full_disks_are_waited_for(centre_of_three: FakeCentre, file_job: FileJob, members: tuple[str, ...]) -> None:
    """While the leader, or a majority, has no space, nothing is loaded and no verdict is given; then it continues."""
    full = MemberRefused("the disk is full", kind="StoreFull")
    centre_of_three.full = dict.fromkeys(members, full)

    def space() -> None:
        assert centre_of_three.loaded == []
        centre_of_three.full = {}

    verdict = decided(centre_of_three, file_job, space)
    assert verdict is not None
    assert verdict.state is Verdict.ACCEPTED
    assert len(centre_of_three.loaded) == 1


def test_a_full_disk_of_the_receiver_is_no_fault_of_a_file(
    centre_of_three: FakeCentre, file_job: FileJob, tmp_path: Path
) -> None:
    """The view of owners is on the receiver's own disk: that is counted and logged as such, once, and not for each file."""
    centre_of_three.conflict = ViewDiskFull("owners cannot be opened: No space left on device", retriable=True)
    disk = ReceiverDisk(tmp_path, 0.01)

    def space() -> None:
        assert disk.fault
        centre_of_three.conflict = None

    with capture_logs() as lines:
        verdict = decided(centre_of_three, file_job, space, disk)
    assert verdict is not None
    assert verdict.state is Verdict.ACCEPTED
    assert disk.times_full >= 1
    waits = [each["event"] for each in lines if "waits" in each["event"]]
    assert ["receiving waits for space on the disk"] == waits
    disk._look_at_s = 0.0
    disk.look()
    assert not disk.fault


@pytest.mark.parametrize(
    ("kind", "levels"),
    [("StoreFull", ["warning"]), ("SlotNotHeld", ["info"])],
    ids=["a full disk", "a slot that moved"],
)
def test_many_files_that_wait_for_one_thing_are_one_line(loader: FileLoader, kind: str, levels: list[str]) -> None:
    """Their errors have paths of their own. A slot that moves is normal; another kind of error has another line."""
    with capture_logs() as lines:
        for number in range(20):
            key = (SENDER, number % 5)
            loader._note(key, job_of(number).manifest, MemberRefused(f"staging/{number}: no", kind=kind))
        assert levels == [each["log_level"] for each in lines]
        loader._note((SENDER, 7), job_of(7).manifest, LogUnavailable("no broker"))
    assert [*levels, "warning"] == [each["log_level"] for each in lines]
    assert 6 == lines[-1]["files"]


def test_one_full_member_of_three_is_passed(centre_of_three: FakeCentre, file_job: FileJob) -> None:
    """A majority without it has the file: it is loaded, and that member fetches it later."""
    centre_of_three.full = {"n2": MemberRefused("the disk is full", kind="StoreFull")}
    verdict = decided(centre_of_three, file_job)
    assert verdict is not None
    assert verdict.state is Verdict.ACCEPTED


def test_a_group_without_a_leader_is_waited_for(centre_of_three: FakeCentre, file_job: FileJob) -> None:
    """Members that are offline return, and the file is loaded."""
    centre_of_three.online = ("n2", "n3")

    def back() -> None:
        centre_of_three.online = MEMBERS

    verdict = decided(centre_of_three, file_job, back)
    assert verdict is not None
    assert verdict.state is Verdict.ACCEPTED


def test_a_slot_that_moved_is_looked_up_again(centre_of_three: FakeCentre, file_job: FileJob) -> None:
    """A leader that has given the slot away makes the next attempt begin with a look at the membership log."""
    centre_of_three.refused = [MemberRefused("moved", kind="SlotNotHeld")]
    verdict = decided(centre_of_three, file_job)
    assert verdict is not None
    assert verdict.state is Verdict.ACCEPTED
    assert centre_of_three.looks == 1
    assert len(centre_of_three.staged) == 2 * len(MEMBERS)


@pytest.mark.parametrize(
    ("field", "error"),
    [
        ("conflict", DeviceOwned("d1 is another one's")),
        ("clash", TypeClash("text is no number")),
    ],
)
def test_the_own_fault_of_a_file_rejects_it(
    centre_of_three: FakeCentre, file_job: FileJob, field: str, error: HeadraceError
) -> None:
    """A conflict of owners, or of types, is a verdict that names it, and no member gets the file."""
    setattr(centre_of_three, field, error)
    verdict = decided(centre_of_three, file_job)
    assert verdict is not None
    assert (verdict.state, verdict.kind) == (Verdict.REJECTED, type(error).__name__)
    assert centre_of_three.staged == []


def test_damage_is_sent_once_more(centre_of_three: FakeCentre, file_job: FileJob) -> None:
    """Bytes that are not those of the digests give RETRY, and nothing of the file is believed."""

    def damaged() -> None:
        raise FileDamaged("other bytes", retriable=True)

    job = FileJob(file_job.manifest, file_job.path, damaged, file_job.ended, file_job.settled)
    verdict = decided(centre_of_three, job)
    assert verdict is not None
    assert verdict.state is Verdict.RETRY
    assert centre_of_three.staged == []
