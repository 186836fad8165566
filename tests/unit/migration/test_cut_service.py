"""What a donor answers: lists and bytes of its cut, and a typed refusal for everything else."""

from __future__ import annotations

import json
import os
from typing import Any

import httpx
import pytest
import xxhash
from starlette.applications import Starlette

from headrace.consumers.migration.copies_ahead import NOTES_MAX, CopiesAhead, CopyNote
from headrace.consumers.migration.cut_source import DIGEST_HEADER, CutRefused, FileGone
from headrace.consumers.migration.peer_cut import PeerCut
from headrace.consumers.migration.slot_pull import pairs_of
from headrace.consumers.recovery.file_copy import SourceCorrupt, SourceFailed
from headrace.consumers.serve.cut_service import CutService, cut_routes
from headrace.consumers.serve.server import Server
from headrace.consumers.store import SegmentAwaited, SeriesFile
from headrace.schemas.group_changes import GroupKey
from tests.unit.migration.moves import CHANGE, TARGET, Moves, topic_of
from tests.unit.migration.test_puller import donor_file

DONOR = GroupKey("n1", 1)
LIST = {"group": "n1", "birth": 1, "target": "n4", "target_birth": 2}


class NoObserver:
    """A CopyObserver that counts nothing."""

    def begin(self, files: int, total_bytes: int) -> None:
        """See CopyObserver."""

    def kept(self, size_bytes: int) -> None:
        """See CopyObserver."""

    def received(self, size_bytes: int) -> None:
        """See CopyObserver."""

    def discarded(self, size_bytes: int) -> None:
        """See CopyObserver."""

    def file_done(self) -> None:
        """See CopyObserver."""


def answer(moves: Moves, path: str, **query: Any) -> httpx.Response:
    """What node n1 answers."""
    server = moves.nodes["n1"].server
    assert server is not None
    return httpx.get(f"{server.url}/api/v1/{path}", params=query, timeout=20)


def test_every_member_of_a_donor_lists_the_same_files(unchanged_moves: Moves) -> None:
    """With what a load needs, and the parts of the takeover."""
    first = answer(unchanged_moves, "cut", **LIST).json()
    service = CutService("n3", unchanged_moves.nodes["n3"].groups)
    assert first == json.loads(json.dumps(service.listing(DONOR, TARGET).document()))
    assert {"table_version", "version", "parts", "slots", "slots_total", "files"} == set(first)
    assert [14, 15] == first["slots"]
    assert first["parts"] >= 1
    assert first["files"]


@pytest.mark.parametrize(
    ("path", "query", "status", "kind"),
    [
        ("cut", {}, 400, "RequestInvalid"),
        ("cut", LIST | {"birth": "²"}, 400, "RequestInvalid"),
        ("cut", LIST | {"group": "n9"}, 409, "SlotNotHeld"),
        ("cut", LIST | {"birth": 3}, 409, "SlotNotHeld"),
        ("cut", LIST | {"target": "n3", "target_birth": 1}, 409, "CutUnready"),
        ("cut/present", {"group": "n9"}, 409, "SlotNotHeld"),
        ("cut/note", {"group": "n1", "change": 1, "left": -1}, 400, "RequestInvalid"),
        ("cut/note", {"group": "n1", "left": 1}, 400, "RequestInvalid"),
        ("cut/file", {"group": "n1", "digest": "../../node.json"}, 400, "RequestInvalid"),
        ("cut/file", {"group": "n1", "digest": "0" * 32, "part": "index"}, 400, "RequestInvalid"),
        ("cut/file", {"group": "n1", "digest": "0" * 32, "offset": -1}, 400, "RequestInvalid"),
        ("cut/file", {"group": "n1", "digest": "0" * 32}, 404, "FileGone"),
    ],
)
def test_a_refusal_has_a_type(unchanged_moves: Moves, path: str, query: dict[str, Any], status: int, kind: str) -> None:
    """Nothing is ever an empty list, and no path of another node is followed."""
    refused = answer(unchanged_moves, path, **query)
    assert (status, kind) == (refused.status_code, refused.json()["error"]["kind"])


def test_bytes_come_from_any_offset_also_while_the_file_goes(moves: Moves) -> None:
    """What is open stays; what has gone is refused, and so is a byte behind the end."""
    path, entry = donor_file(moves, "n1", "n1")
    named = {"group": "n1", "birth": 1, "digest": entry.content_digest}
    assert path.read_bytes()[7:] == answer(moves, "cut/file", **named, offset=7).content
    assert b"" == answer(moves, "cut/file", **named, offset=entry.size_bytes).content
    assert 404 == answer(moves, "cut/file", **named, offset=entry.size_bytes + 1).status_code
    series = answer(moves, "cut/file", **named, part="series")
    assert xxhash.xxh3_128_hexdigest(series.content) == series.headers[DIGEST_HEADER]
    assert entry.file_digest == SeriesFile.from_bytes(series.content).file_digest
    service = CutService("n1", moves.nodes["n1"].groups)
    _, _, chunks = service.open(DONOR, entry.content_digest, "segment", 0)
    data = path.read_bytes()
    os.unlink(path)
    assert data == b"".join(chunks)
    with pytest.raises(FileGone):
        service.open(DONOR, entry.content_digest, "segment", 0)


def test_a_note_reaches_the_leader_of_the_group(moves: Moves) -> None:
    """The newest note of each node counts; nobody else's group is concerned."""
    copies = CopiesAhead()
    service = CutService("n1", moves.nodes["n1"].groups, copies)
    server = Server(Starlette(routes=cut_routes(lambda: service)))
    server.start()
    try:
        source = PeerCut("n1", server.url, DONOR, topic_of(DONOR))
        assert copies.left(DONOR, 7) is None
        for node, left in (("n4", 9), ("n5", 2), ("n4", 3)):
            source.note(CopyNote(7, node, left))
    finally:
        server.stop()
    assert 5 == copies.left(DONOR, 7)
    assert copies.left(DONOR, 8) is None
    assert copies.left(GroupKey("n2", 1), 7) is None


def test_notes_of_many_names_are_bounded() -> None:
    """Whoever can reach a node can send them."""
    copies = CopiesAhead()
    for number in range(NOTES_MAX + 5):
        copies.take(DONOR, CopyNote(1, f"n{number}", 1))
    assert NOTES_MAX == copies.left(DONOR, 1)


def test_wrong_data_is_given_to_nobody(moves: Moves) -> None:
    """Neither listed nor sent."""
    _, entry = donor_file(moves, "n1", "n1")
    moves.nodes["n1"].groups[topic_of(DONOR)].health.mark("its files differ from those of the others")
    assert "CutRefused" == answer(moves, "cut", **LIST).json()["error"]["kind"]
    assert "CutRefused" == answer(moves, "cut/present", group="n1", birth=1).json()["error"]["kind"]
    refused = answer(moves, "cut/file", group="n1", birth=1, digest=entry.content_digest)
    assert "CutRefused" == refused.json()["error"]["kind"]


def test_a_member_that_pulls_the_slots_itself_cannot_list_them(moves: Moves) -> None:
    """The group gave slots whose files it awaits: the list would lack them."""
    node = moves.nodes["n4"]
    node.puller.files.stop()
    moves.turns("n4", count=4)
    awaited = node.target.store.awaited()
    assert awaited
    service = CutService("n4", node.groups)
    with pytest.raises(SegmentAwaited):
        service.open(TARGET, awaited[0].content_digest, "segment", 0)


def test_a_client_takes_a_list_of_another_cut_for_not_ready(moves: Moves) -> None:
    """A donor that has not applied the newest cut lists an earlier one."""
    server = moves.nodes["n1"].server
    assert server is not None
    source = PeerCut("n1", server.url, DONOR, topic_of(DONOR))
    pair = next(each for each in pairs_of(CHANGE, "n4") if each.donor == DONOR)
    assert pair.slots == source.listing(pair, 2).slots
    with pytest.raises(CutRefused, match="other slots"):
        source.listing(pair, 3)
    moves.nodes["n1"].leave()
    with pytest.raises(SourceFailed):
        source.listing(pair, 2)


def test_a_series_that_is_not_the_file_s_is_never_staged(moves: Moves, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its digest, its form and its content are compared before any byte of the segment is asked for."""
    server = moves.nodes["n1"].server
    assert server is not None
    source = PeerCut("n1", server.url, DONOR, topic_of(DONOR))
    _, entry = donor_file(moves, "n1", "n1")
    staging = moves.directory / "staging"
    real = CutService.open
    good = b"".join(CutService("n1", moves.nodes["n1"].groups).open(DONOR, entry.content_digest, "series", 0)[2])
    other = good.replace(entry.content_digest.encode(), b"0" * 32)
    for data, digest in ((good, "0" * 32), (b"{}", None), (other, None), (b"\xff", None)):
        sent = digest or xxhash.xxh3_128_hexdigest(data)
        monkeypatch.setattr(CutService, "open", lambda *_a, data=data, sent=sent: (len(data), sent, iter([data])))
        with pytest.raises(SourceCorrupt):
            source.stage(entry, staging, NoObserver())
        assert not staging.exists()
    monkeypatch.setattr(CutService, "open", real)
    source.stage(entry, staging, NoObserver())
    assert 2 == len(list(staging.iterdir()))
