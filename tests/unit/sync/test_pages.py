"""Listings of a part of what a centre has not decided about: what is left of one holds back no other."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from headrace.consumers.serve.edge_service import edge_routes
from headrace.consumers.sync import selection, send_round, sender
from headrace.consumers.sync.edge_store import EdgeStore
from headrace.consumers.sync.listing import Listing
from headrace.consumers.sync.pages import Pages, as_part
from headrace.consumers.sync.selection import decided_up_to
from headrace.consumers.sync.sender_state import GroupRecord
from headrace.schemas.sync_records import SyncDelete
from tests.unit.sync import edge_model
from tests.unit.sync.test_selection import listed
from tests.unit.sync.test_sender_faults import Scene, check, scene_of_files

FILES = tuple(listed(version, 0) for version in (11, 12))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small chunks."""
    for module in (edge_model, selection, send_round, sender):
        monkeypatch.setattr(module, "CHUNK_BYTES", 512)


def part(after: int, through: int, files_left: int, *deletes: SyncDelete) -> Listing:
    """A listing of a group."""
    return Listing("1", "/", "e1", "e1/1", after, through, FILES, deletes, files_left)


def scene_with_damage(seed: int) -> Scene:
    """The first four of twelve files are damaged, and the node lists three at a time."""
    scene = scene_of_files(seed, 12)
    scene.edge.listed_max = 3
    scene.edge.damaged = {each.name for each in scene.edge.files[:4]}
    scene._live = lambda: None  # type: ignore[method-assign]
    return scene


def test_files_behind_a_listing_that_stays_are_sent() -> None:
    """A store lists 2,000 files at a time. Behind so many a damaged one kept all that came later from its centre."""
    scene = scene_with_damage(31)
    damaged = set(scene.edge.damaged)
    for _ in range(4):
        scene.run_round()
    assert {each.name for each in scene.edge.files} - damaged == set(scene.centre.contents)
    # The progress is below the first one, and all of them are shown.
    lowest = scene.edge.files[0].last
    assert (lowest - 1, 4) == (scene.edge.progress, scene.sender.figures()["failed"])
    scene.edge.damaged = set()
    scene.finish()
    check(scene, 31)


def test_a_round_has_another_part_until_all_are_listed() -> None:
    """At once, and `--once` as well. Then the pause comes, and the first part again."""
    scene = scene_with_damage(32)
    more = []
    for _ in range(4):
        scene.sender.begin_round()
        while not scene.sender.turn():
            pass
        more.append(scene.sender.end_round())
    assert [True, True, True, False] == more
    assert 0 == scene.sender._pages.above("e1")


def test_no_part_is_passed_before_deletes_are_accepted() -> None:
    """Sent before them, files would lose rows to deletes that they outrank. And one that waits for the centre is no end."""
    scene = scene_with_damage(33)
    scene.edge.damaged = set()
    scene.centre.full = True
    scene.run_round()
    assert scene.sender.round is not None
    assert not scene.sender.round.finished
    assert 0 == scene.sender._pages.above("e1")
    left: Any = SimpleNamespace(finished=True, relist=False, deletes_left=True, complete=False, counted=lambda *_: 1)
    scene.sender.round = left
    left.raisable = dict
    assert not scene.sender.end_round()
    assert 0 == scene.sender._pages.above("e1")


def test_parts_follow_each_other() -> None:
    """A node that lists the same part again, as one of a build before, ends them."""
    pages = Pages()
    assert pages.turn([part(0, 12, 5)])
    assert 12 == pages.above("e1")
    assert not pages.turn([part(0, 12, 5)])
    assert pages.turn([part(12, 24, 1)])
    assert not pages.turn([part(24, 30, 0)])
    assert 0 == pages.above("e1")


def test_a_part_shows_nothing_of_what_is_below_it() -> None:
    """Neither how far the group is decided, nor that no file is undecided before its own."""
    known = GroupRecord("e1", progress=3)
    for after, settles in ((3, True), (2, True), (4, False)):
        listing = as_part(part(after, 24, 0), known.progress)
        assert {settles} == {each.settles for each in listing.files}
        assert (10 if settles else 3) == decided_up_to(listing, {}, known)


@pytest.mark.parametrize(
    ("above", "status", "after"), [(None, 200, 5), (4, 200, 5), (9, 200, 9), (-1, 400, 0), ("9", 400, 0)]
)
def test_a_node_lists_above_a_version(above: object, status: int, after: int) -> None:
    """Never below what the centre has decided."""
    listed_after = list[int]()

    def make(_group: object, _centre: str, version: int, _store: str) -> Listing:
        listed_after.append(version)
        return part(version, 12, 0)

    centres: Any = SimpleNamespace(get=lambda *_: SimpleNamespace(progress=lambda _: 5))
    groups: Any = SimpleNamespace(
        groups={"t": SimpleNamespace(key="e1")}, reason=lambda _: "", store_identity=lambda: "store"
    )
    snapshots: Any = SimpleNamespace(make=make)
    edge = EdgeStore("c", "n1", groups, centres, snapshots)
    app = Starlette(routes=edge_routes(lambda: edge))
    body = {"centre": "x", "sender": "u", "group": "e1"} | ({} if above is None else {"above": above})

    async def ask() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://node") as client:
            return (await client.post("/api/v1/sync/snapshot", json=body)).status_code

    assert status == asyncio.run(ask())
    assert ([after] if status == 200 else []) == listed_after
