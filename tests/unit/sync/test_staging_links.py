"""Files for a member on the same machine: linked into its staging directory, else sent."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.consumers.serve.server import Server
from headrace.consumers.sync.file_check import series_path
from headrace.consumers.sync.group_members import GroupMembers, Holder, MemberRefused
from headrace.consumers.sync.incoming import IncomingFile
from headrace.consumers.sync.member_routes import (
    LINK_MISSING_KIND,
    LINKED_SERIES_SUFFIX,
    SYNC_FILE_ROUTE,
    SYNC_STAGING_ROUTE,
    UPLOAD_SUFFIX,
)
from headrace.schemas.group_changes import GroupKey
from tests.sync_sender import DAY_NS, sealed_file

FILE = sealed_file({"a": [(DAY_NS, 1.0)]}, version=3)
HOLDER = Holder(GroupKey("n1", 1), ("n1",), (), "n1")


class Member:
    """A node that takes files. `directory`: where it says its staging directory is, None for an older build."""

    def __init__(self, directory: Path | None) -> None:
        self.directory = directory
        self.asked = 0
        self.linked: list[bytes] = []
        self.sent: list[bytes] = []
        self.refusal: dict[str, Any] | None = None
        self.away: list[str] = []
        routes = [
            Route(SYNC_FILE_ROUTE, self.file, methods=["PUT"]),
            Route(SYNC_STAGING_ROUTE, self.staging, methods=["GET"]),
        ]
        self.server = Server(Starlette(routes=routes))
        self.url = self.server.start()

    async def staging(self, request: Request) -> Response:
        """Its directory."""
        assert {"group": ["n1"], "birth": ["1"]} == parse_qs(urlsplit(str(request.url)).query)
        self.asked += 1
        if self.away:
            return JSONResponse({"error": {"kind": self.away.pop(), "message": "not now"}}, 409)
        if self.directory is None:
            return Response(status_code=404)
        return JSONResponse({"directory": str(self.directory)})

    async def file(self, request: Request) -> Response:
        """A file, linked or sent."""
        name, body = request.query_params.get("linked", ""), await request.body()
        if name and self.refusal is not None:
            return JSONResponse({"error": self.refusal}, 422)
        if name:
            assert self.directory is not None
            paths = [self.directory / f"{name}{suffix}" for suffix in (UPLOAD_SUFFIX, LINKED_SERIES_SUFFIX)]
            self.linked.append(b"".join(path.read_bytes() for path in paths))
        else:
            self.sent.append(body)
        return JSONResponse({"staged": True})


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A staging directory."""
    found = tmp_path / "staging"
    found.mkdir()
    return found


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file that is whole."""
    found = tmp_path / "1.part"
    found.write_bytes(FILE.data[: FILE.body.segment_bytes])
    series_path(found).write_bytes(FILE.data[FILE.body.segment_bytes :])
    return found


@pytest.fixture
def member(directory: Path) -> Iterator[Member]:
    """A member whose directory is here."""
    found = Member(directory)
    yield found
    found.server.stop()


def members() -> GroupMembers:
    """What a receiver has."""
    cluster: Any = None
    return GroupMembers(cluster)


def stage(member: Member, path: Path, times: int = 1) -> None:
    """Bring a file to a member."""
    found = members()
    for _ in range(times):
        found.stage(member.url, HOLDER, FILE.body, "s1", path)


def test_a_directory_that_is_here_gets_links(member: Member, directory: Path, path: Path) -> None:
    """No byte is sent, the directory is asked for once, and links that the member left are removed."""
    stage(member, path, 2)
    assert ([FILE.data, FILE.data], [], 1) == (member.linked, member.sent, member.asked)
    assert [] == os.listdir(directory)


@pytest.mark.parametrize("case", ["older build", "not here", "not writable", "other disk"])
def test_bytes_are_sent_where_no_link_can_be_made(
    member: Member, directory: Path, path: Path, monkeypatch: pytest.MonkeyPatch, case: str
) -> None:
    """Each file arrives all the same, and the directory is not tried again."""
    if case == "older build":
        member.directory = None
    elif case == "not here":
        member.directory = directory / "elsewhere"
    elif case == "not writable":
        monkeypatch.setattr(os, "access", lambda *_of: False)
    else:
        monkeypatch.setattr(os, "link", _other_disk)
    stage(member, path, 2)
    assert ([], [FILE.data, FILE.data], 1) == (member.linked, member.sent, member.asked)
    assert [] == os.listdir(directory)


def _other_disk(*_of: object) -> None:
    raise OSError(18, "Invalid cross-device link")


def test_a_directory_that_was_swept_is_asked_for_again(member: Member, directory: Path, path: Path) -> None:
    """A member sweeps it behind each move of slots. All later files would be sent, which costs more than three times."""
    found = members()
    for change in (directory.rmdir, directory.mkdir, bool):
        found.stage(member.url, HOLDER, FILE.body, "s1", path)
        change()
    assert ([FILE.data] * 2, [FILE.data], 2) == (member.linked, member.sent, member.asked)


def test_a_group_that_is_not_there_yet_gets_links_later(member: Member, path: Path) -> None:
    """So it is while members change, and while a node starts."""
    member.away = ["SlotNotHeld"]
    stage(member, path, 2)
    assert ([FILE.data], [FILE.data], 2) == (member.linked, member.sent, member.asked)


def test_a_directory_of_the_same_name_elsewhere_costs_one_request(member: Member, directory: Path, path: Path) -> None:
    """The member does not find the link: the bytes are sent, now and from then on."""
    member.refusal = {"kind": LINK_MISSING_KIND, "message": "no such file", "action": "", "retriable": False}
    found = members()
    found.stage(member.url, HOLDER, FILE.body, "s1", path)
    member.refusal = None
    found.stage(member.url, HOLDER, FILE.body, "s1", path)
    assert ([], [FILE.data, FILE.data]) == (member.linked, member.sent)
    assert [] == os.listdir(directory)


def test_what_a_member_refuses_for_another_reason_is_its_answer(member: Member, directory: Path, path: Path) -> None:
    """A damaged file, or a full disk, is not tried in another way."""
    member.refusal = {"kind": "StoreFull", "message": "full", "action": "", "retriable": True}
    with pytest.raises(MemberRefused, match="full"):
        stage(member, path)
    assert ([], []) == (member.sent, os.listdir(directory))


def test_a_file_that_a_member_has_linked_is_never_written_again(path: Path, tmp_path: Path) -> None:
    """A later file of the same number is a new one, also where an earlier process could not remove its files."""
    held = tmp_path / "held"
    os.link(path, held)
    before = held.read_bytes()
    incoming = IncomingFile(path, FILE.body)
    incoming.write(b"other bytes")
    assert (before, b"other bytes") == (held.read_bytes(), path.read_bytes())
    incoming.discard()
