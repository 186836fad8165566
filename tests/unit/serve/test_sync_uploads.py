"""Files of senders at a member: verified, durable and counted, or refused without a trace."""

from __future__ import annotations

import asyncio
import errno
import os
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import Request
from starlette.types import Message

from headrace.connectors.files import fsync_file
from headrace.consumers.migration.cut_source import CutRefused
from headrace.consumers.query.query_errors import SlotNotHeld
from headrace.consumers.serve import request_bodies, sync_service, sync_uploads
from headrace.consumers.serve.request_bodies import RequestInvalid
from headrace.consumers.serve.sync_uploads import LinkMissing, UploadInvalid, UploadRequest, Uploads, UploadsFull
from headrace.consumers.store import StoreFull, staged_names
from headrace.consumers.sync.group_members import Holder, file_parameters
from headrace.consumers.sync.load import file_identity, sync_load
from headrace.consumers.sync.member_routes import LINKED_SERIES_SUFFIX, UPLOAD_SUFFIX
from headrace.consumers.sync.settings import SyncSettings
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.messages import Leadership, load_identity
from tests.sync_sender import DAY_NS, SealedFile, sealed_file

KEY = GroupKey("n1", 1)
SLOT, GIVEN = 3, 4
SENDER = "3128b068-1706-41f4-9afd-81a3174c70c0"
HOLDER = Holder(KEY, ("n1",), (("n1", "http://n1"),), "n1")


class FakeGroup:
    """A group with a staging directory, as far as uploads see it."""

    def __init__(self, staging: Path) -> None:
        self.key, self.birth_key, self.name = "n1", KEY, "n1"
        self.applied = SimpleNamespace(changes=SimpleNamespace(given={GIVEN}))
        self.wrong = False
        self.health = SimpleNamespace(refuses=lambda _use: self.wrong)
        self.verified: list[str] = []
        self.awaited: set[str] = set()
        self.pending = False
        self.replica = SimpleNamespace(state=SimpleNamespace(version=5, loads=dict[bytes, None]()))
        self.version = 5
        self.store = SimpleNamespace(
            staging_directory=staging,
            note_verified=self.verified.append,
            awaits=self.awaited.__contains__,
            has_pending=lambda _version: self.pending,
        )

    def names(self) -> list[str]:
        """What is in its staging directory."""
        return sorted(os.listdir(self.store.staging_directory))


def request_of(file: SealedFile, slot: int = SLOT) -> UploadRequest:
    """The announcement of a file."""
    body = file.body
    digests = body.content_digest.hex(), body.segment_digest.hex(), body.series_digest.hex()
    return UploadRequest(
        group=KEY,
        slot=slot,
        content_digest=digests[0],
        rows=body.rows,
        min_time_ns=body.min_time_ns,
        max_time_ns=body.max_time_ns,
        segment_bytes=body.segment_bytes,
        segment_digest=digests[1],
        series_bytes=body.series_bytes,
        series_digest=digests[2],
    )


@pytest.fixture
def file() -> SealedFile:
    """A sealed file of two pumps."""
    return sealed_file({"a": [(DAY_NS, 1.0), (DAY_NS + 1, 2.0)], "b": [(DAY_NS, 3.0)]}, version=7)


@pytest.fixture
def group(tmp_path: Path) -> FakeGroup:
    """A group of this node."""
    staging = tmp_path / "staging"
    staging.mkdir()
    return FakeGroup(staging)


def uploads_of(group: FakeGroup, **settings: Any) -> Uploads:
    """The uploads of a node with one group."""
    groups: Any = {"topic": group}
    return Uploads("n1", groups, SyncSettings(**settings))


def take(uploads: Uploads, request: UploadRequest, data: bytes, step: int = 100) -> None:
    """Bring a file as the route does."""
    upload = uploads.begin(request)
    assert upload is not None
    try:
        for start in range(0, len(data), step):
            upload.write(data[start : start + step])
        upload.finish()
    finally:
        upload.abort()


def test_a_file_is_staged_under_the_names_of_its_load(group: FakeGroup, file: SealedFile) -> None:
    """Segment, series and marker are there, the content counts as verified, and a repeat is not taken again."""
    uploads, request = uploads_of(group), request_of(file)
    take(uploads, request, file.data)
    digest = request.content_digest
    assert sorted([*staged_names(digest), f"{digest}.sync"]) == group.names()
    staged = b"".join((group.store.staging_directory / name).read_bytes() for name in staged_names(digest))
    assert file.data == staged
    assert [digest] == group.verified
    assert uploads.begin(request) is None
    assert (1, 0, len(file.data)) == (uploads.taken, uploads.open_uploads, uploads.staged_bytes)


def test_a_file_that_was_loaded_before_is_not_staged_again(group: FakeGroup, file: SealedFile) -> None:
    """An operator sends everything again: what no load would take away would fill the room of a node for a day."""
    url = {name: str(value) for name, value in file_parameters(HOLDER, file.body, SENDER).items()}
    loads: Any = SimpleNamespace(slot_at=lambda *_: SLOT)
    uploads = uploads_of(group)
    request = sync_service.SyncService(uploads, loads).request(url)
    assert replace(request_of(file), identity=request.identity) == request
    load = sync_load(file.body, SENDER, 9, Leadership(3, "n1", "i"), 4)
    assert file_identity(file.body, SENDER) == request.identity == load_identity(load)
    group.replica.state.loads[load_identity(load)] = None
    assert uploads.begin(request) is None
    # Nobody knows whether it was loaded, or it has not been attached here yet: then it is taken.
    for waits in (request_of(file), request):
        group.pending = waits is request
        opened = uploads.begin(waits)
        assert opened is not None
        opened.abort()
    group.pending = False
    group.awaited.add(request.content_digest)
    take(uploads, request, file.data)


def test_a_file_that_was_loaded_meanwhile_leaves_nothing(group: FakeGroup, file: SealedFile) -> None:
    """A slow member fetches it from another one, as its load says, before the last bytes come from the receiver."""
    uploads, request = uploads_of(group), replace(request_of(file), identity=file_identity(file.body, SENDER))
    upload = uploads.begin(request)
    assert upload is not None
    upload.write(file.data)
    group.replica.state.loads[request.identity] = None
    upload.finish()
    upload.abort()
    assert ([], 0, 0) == (group.names(), uploads.staged_bytes, uploads.open_uploads)


def test_a_build_before_names_no_load(group: FakeGroup, file: SealedFile) -> None:
    """Its receivers bring files without it, and a wrong one is refused."""
    url = {name: str(value) for name, value in file_parameters(HOLDER, file.body, SENDER).items()}
    loads: Any = SimpleNamespace(slot_at=lambda *_: SLOT)
    service = sync_service.SyncService(uploads_of(group), loads)
    with pytest.raises(RequestInvalid, match="identity is not a digest"):
        service.request(url | {"identity": "7"})
    del url["identity"]
    assert request_of(file) == service.request(url)


def other(file: SealedFile) -> bytes:
    """A file of the same size whose digests are its own, and not those announced."""
    return file.data[::-1]


@pytest.mark.parametrize(
    "spoil",
    [other, lambda file: file.data[:-1], lambda file: file.data + b"x", lambda _file: b""],
    ids=["other bytes", "short", "long", "empty"],
)
def test_wrong_bytes_leave_nothing(group: FakeGroup, file: SealedFile, spoil: Callable[[SealedFile], bytes]) -> None:
    """Bytes that are not those of the digests are refused; nothing is left, and the right ones are taken then."""
    uploads = uploads_of(group)
    with pytest.raises(UploadInvalid):
        take(uploads, request_of(file), spoil(file))
    assert ([], [], 0) == (group.names(), group.verified, uploads.staged_bytes)
    take(uploads, request_of(file), file.data)


def test_another_content_under_the_digests_is_refused(group: FakeGroup, file: SealedFile) -> None:
    """The footer must have the rows and times that were announced, although all digests of bytes are right."""
    lying = sealed_file({"a": [(DAY_NS, 1.0)]}, version=7)
    request = request_of(lying)
    for wrong in ({"rows": 2}, {"min_time_ns": 0}, {"content_digest": file.body.content_digest.hex()}):
        announced = {name: getattr(request, name) for name in UploadRequest.__slots__} | wrong
        with pytest.raises(UploadInvalid):
            take(uploads_of(group), UploadRequest(**announced), lying.data)
    assert [] == group.names()


def test_a_full_disk_is_reported_and_passes(
    group: FakeGroup, file: SealedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk at any sync refuses the file for now; with space the same file is taken."""
    uploads, request, sync = uploads_of(group), request_of(file), fsync_file
    for at in (1, 2):
        calls: list[Path] = []

        def full(path: Path, at: int = at, calls: list[Path] = calls) -> None:
            calls.append(path)
            if len(calls) == at:
                raise OSError(errno.ENOSPC, "no space")
            sync(path)

        monkeypatch.setattr(sync_uploads, "fsync_file", full)
        with pytest.raises(StoreFull) as raised:
            take(uploads, request, file.data)
        assert raised.value.retriable
        assert not uploads.is_staged(group, request.content_digest, request.segment_digest)  # type: ignore[arg-type]
        assert (0, []) == (uploads.open_uploads, group.verified)
    monkeypatch.setattr(sync_uploads, "fsync_file", sync)
    take(uploads, request, file.data)
    assert uploads.is_staged(group, request.content_digest, request.segment_digest)  # type: ignore[arg-type]


def test_limits_refuse_for_now(group: FakeGroup, file: SealedFile) -> None:
    """Beyond the open uploads the next one is refused and counted, and taken when one has ended."""
    uploads = uploads_of(group, uploads_max=1)
    first = uploads.begin(request_of(file))
    assert first is not None
    with pytest.raises(UploadsFull) as raised:
        uploads.begin(request_of(file))
    assert (True, 1) == (raised.value.retriable, uploads.refused)
    first.abort()
    take(uploads, request_of(file), file.data)


def test_files_of_a_group_that_has_left_are_not_counted(group: FakeGroup, file: SealedFile) -> None:
    """Its directory has gone with it: what it had would count against the limit until a restart."""
    uploads = uploads_of(group)
    take(uploads, request_of(file), file.data)
    assert uploads.staged_bytes == len(file.data)
    uploads._groups.clear()  # type: ignore[attr-defined]
    assert uploads.staged_bytes == 0


def test_files_that_another_group_has_loaded_take_no_room(group: FakeGroup, file: SealedFile, tmp_path: Path) -> None:
    """Nobody asks for the staged files of a group while it awaits one. Those that were loaded are gone all the same."""
    loaded = FakeGroup(tmp_path / "other")
    loaded.key, loaded.birth_key = "n2", GroupKey("n2", 1)
    groups: Any = {"topic": group, "other": loaded}
    uploads = Uploads("n1", groups, SyncSettings(upload_mb_max=1))
    uploads.note_taken(loaded, 2_000_000)  # type: ignore[arg-type]
    take(uploads, request_of(file), file.data)
    assert uploads.staged_bytes == len(file.data)


def test_files_that_wait_in_one_group_keep_out_none_of_another(
    group: FakeGroup, file: SealedFile, tmp_path: Path
) -> None:
    """The leader of a group has no space, and its files gather here: another group takes files all the same."""
    stuck = FakeGroup(tmp_path / "stuck")
    stuck.key, stuck.birth_key = "n2", GroupKey("n2", 1)
    groups: Any = {"topic": group, "stuck": stuck}
    uploads = Uploads("n1", groups, SyncSettings(upload_mb_max=2))
    fields = {name: getattr(request_of(file), name) for name in UploadRequest.__slots__}
    waiting = {"group": stuck.birth_key, "content_digest": "a" * 32, "segment_bytes": 900_000}
    with ExitStack() as opened:

        def begin(**named: Any) -> None:
            upload = uploads.begin(UploadRequest(**fields | named))
            assert upload is not None
            opened.callback(upload.abort)

        begin(**waiting)
        with pytest.raises(UploadsFull):
            begin(**waiting | {"content_digest": "b" * 32})
        begin(segment_bytes=900_000)


def test_a_file_above_the_limit_is_taken_alone(group: FakeGroup, file: SealedFile) -> None:
    """One file may be larger than the limit of bytes, else it would never come; a second one waits for its load."""
    uploads = uploads_of(group, upload_mb_max=1)
    uploads._staged["n1"] = (time.monotonic() + 60, 0)
    huge = {name: getattr(request_of(file), name) for name in UploadRequest.__slots__} | {"segment_bytes": 2_000_000}
    opened = uploads.begin(UploadRequest(**huge))
    assert opened is not None
    with pytest.raises(UploadsFull):
        uploads.begin(request_of(file))
    opened.abort()


def test_groups_that_cannot_take_it_refuse(group: FakeGroup, file: SealedFile) -> None:
    """A slot that was given away, a group of another birth, and wrong data are refused by name."""
    uploads = uploads_of(group)
    with pytest.raises(SlotNotHeld):
        uploads.begin(request_of(file, GIVEN))
    with pytest.raises(SlotNotHeld):
        uploads.group(GroupKey("n1", 2), SLOT)
    group.wrong = True
    with pytest.raises(CutRefused):
        uploads.begin(request_of(file))


def test_staged_files_survive_a_restart_until_they_are_old(group: FakeGroup, file: SealedFile) -> None:
    """Another process keeps marked files; it removes a marker whose load has come, and files that no load has named."""
    take(uploads_of(group), request_of(file), file.data)
    assert uploads_of(group).keeps(group)  # type: ignore[arg-type]
    staging: Path = group.store.staging_directory
    marker = staging / f"{file.body.content_digest.hex()}.sync"
    old_s = time.time() - SyncSettings().staged_age_s - 60
    torn = staging / "torn.upload"
    torn.touch()
    for path in (marker, torn):
        os.utime(path, (old_s, old_s))
    assert not uploads_of(group).keeps(group)  # type: ignore[arg-type]
    assert [] == group.names()
    take(uploads_of(group), request_of(file), file.data)
    for name in staged_names(file.body.content_digest.hex()):
        (staging / name).unlink()
    assert not uploads_of(group).keeps(group)  # type: ignore[arg-type]
    assert [] == group.names()


def test_a_full_disk_frees_the_place_of_its_upload(group: FakeGroup, file: SealedFile) -> None:
    """Closing the file fails as well, as its buffer has no room; the next upload finds its place all the same."""
    uploads, request = uploads_of(group, uploads_max=1), request_of(file)
    (group.store.staging_directory / f"{request.content_digest}.1{UPLOAD_SUFFIX}").symlink_to("/dev/full")
    with pytest.raises(StoreFull):
        take(uploads, request, file.data)
    assert 0 == uploads.open_uploads
    take(uploads, request, file.data)
    assert 1 == uploads.taken


def test_a_look_while_a_file_gets_its_names_leaves_its_marker(
    group: FakeGroup, file: SealedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another file that finds no room looks. It took the marker for that of a loaded file, and a sweep took this one."""
    uploads, request, rename = uploads_of(group, upload_mb_max=1), request_of(file), os.rename
    huge = {name: getattr(request, name) for name in UploadRequest.__slots__} | {"segment_bytes": 2_000_000}
    looks: list[threading.Thread] = []

    def look() -> None:
        with pytest.raises(UploadsFull):
            uploads.begin(UploadRequest(**huge))

    def looked_at(source: Path, target: Path) -> None:
        if not looks:
            looks.append(threading.Thread(target=look))
            looks[0].start()
            looks[0].join(0.5)
        rename(source, target)

    monkeypatch.setattr(os, "rename", looked_at)
    take(uploads, request, file.data)
    looks[0].join(10)
    assert sorted([*staged_names(request.content_digest), f"{request.content_digest}.sync"]) == group.names()
    assert uploads_of(group).keeps(group)  # type: ignore[arg-type]


NAME = "0123456789abcdef"


def link(group: FakeGroup, file: SealedFile, directory: Path, name: str = NAME) -> None:
    """A receiver on this machine links its file into the staging directory."""
    parts = file.data[: file.body.segment_bytes], file.data[file.body.segment_bytes :]
    for data, suffix in zip(parts, (UPLOAD_SUFFIX, LINKED_SERIES_SUFFIX), strict=True):
        own = directory / f"own{suffix}"
        own.write_bytes(data)
        os.link(own, group.store.staging_directory / f"{name}{suffix}")


def take_linked(uploads: Uploads, request: UploadRequest, name: str = NAME) -> None:
    """Take it as the route does."""
    upload = uploads.begin(request, name)
    assert upload is not None
    try:
        upload.finish()
    finally:
        upload.abort()


def test_a_linked_file_is_verified_and_taken(group: FakeGroup, file: SealedFile, tmp_path: Path) -> None:
    """It is the very file of the receiver: the same names, digests and marker as behind an upload, and no copy."""
    uploads, request = uploads_of(group), request_of(file)
    assert group.store.staging_directory == uploads.staging_directory(KEY)
    link(group, file, tmp_path)
    take_linked(uploads, request)
    digest = request.content_digest
    assert sorted([*staged_names(digest), f"{digest}.sync"]) == group.names()
    staged = [group.store.staging_directory / name for name in staged_names(digest)]
    assert file.data == b"".join(path.read_bytes() for path in staged)
    assert staged[0].samefile(tmp_path / f"own{UPLOAD_SUFFIX}")
    assert ([digest], len(file.data)) == (group.verified, uploads.staged_bytes)
    assert uploads.begin(request, NAME) is None


def test_a_linked_file_with_other_bytes_leaves_nothing(group: FakeGroup, file: SealedFile, tmp_path: Path) -> None:
    """What counts are the bytes that the member reads: a damaged one is refused, and its links are removed."""
    damaged = replace(file, data=file.data[:-1] + b"x")
    link(group, damaged, tmp_path)
    with pytest.raises(UploadInvalid):
        take_linked(uploads_of(group), request_of(file))
    assert ([], []) == (group.names(), group.verified)


@pytest.mark.parametrize("name", [NAME, "../0123", "0123/4567", "."])
def test_a_link_that_is_not_here_is_refused(group: FakeGroup, file: SealedFile, tmp_path: Path, name: str) -> None:
    """No name leads out of the staging directory; the receiver then sends the bytes."""
    uploads = uploads_of(group)
    outside = group.store.staging_directory.parent
    for suffix in (UPLOAD_SUFFIX, LINKED_SERIES_SUFFIX):
        (outside / f"0123{suffix}").touch()
    with pytest.raises(LinkMissing):
        uploads.begin(request_of(file), name)
    assert 0 == uploads.open_uploads
    take(uploads, request_of(file), file.data)
    with pytest.raises(SlotNotHeld):
        uploads.staging_directory(GroupKey("n1", 2))


def test_an_upload_that_stops_arriving_frees_its_place(
    group: FakeGroup, file: SealedFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A receiver that lost its network sends nothing more, not even the end of its connection."""
    monkeypatch.setattr(request_bodies, "SILENCE_S", 0.1)
    uploads = uploads_of(group)
    service: Any = SimpleNamespace(begin=lambda _: uploads.begin(request_of(file)))
    parts = iter([file.data[:10]])

    async def receive() -> Message:
        for part in parts:
            return {"type": "http.request", "body": part, "more_body": True}
        return await asyncio.Future[Message]()

    async def take_part() -> None:
        request = Request({"type": "http", "query_string": b"", "headers": []}, receive)
        with pytest.raises(RequestInvalid, match="nothing of the body came"):
            await asyncio.wait_for(sync_service._take(service, request), 10)

    asyncio.run(take_part())
    assert (0, []) == (uploads.open_uploads, group.names())
