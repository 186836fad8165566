"""Loads of senders' files at a leader: each is answered for itself, and counts once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.connectors.log.port import LogUnavailable
from headrace.consumers.query.query_errors import SlotNotHeld
from headrace.consumers.serve import sync_loads
from headrace.consumers.serve.sync_loads import LoadNotReady, LoadUnconfirmed, SyncLoads
from headrace.consumers.sync.manifest_rules import DatabaseDiffers, ManifestInvalid
from headrace.consumers.sync.member_routes import LoadRequest
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import FENCED_LOAD_FORMAT, FORMAT, FrameInvalid
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.messages import Leadership, Load, load_identity
from headrace.schemas.sync_records import SyncDelete, SyncDeletes, SyncFile, SyncManifest, encode_manifest
from tests.sync_sender import DAY_NS, sealed_file

SENDER = "3128b068-1706-41f4-9afd-81a3174c70c0"
KEY = GroupKey("n1", 1)
SLOTS = 100


class FakeGroup:
    """A group that reads what is appended, unless it is made to lose it; the store has applied what it has read."""

    def __init__(self) -> None:
        self.name, self.members = "n1", ("n1", "n2")
        self.loads: dict[bytes, None] = {}
        self.awaited: set[str] = set()
        self.done = True
        changes = SimpleNamespace(given=set(), slots_total=SLOTS, settled_version=1, taken={})
        self.applied = SimpleNamespace(changes=changes, epoch=1)
        self.replica = SimpleNamespace(state=SimpleNamespace(version=5, loads=self.loads))
        self.version = 5
        self.store = SimpleNamespace(awaits=lambda digest: digest in self.awaited, has_pending=lambda _version: False)
        self.store_jobs = SimpleNamespace(wait_done=lambda _version, _timeout_s: self.done)

    def wait_for(self, reached: Callable[[], bool], _timeout_s: float) -> bool:
        """What can happen has happened."""
        return reached()


class Scene:
    """A leader, its log, and what is staged at it."""

    def __init__(self) -> None:
        self.group = FakeGroup()
        self.staged: set[str] = set()
        self.appended: list[list[Load]] = []
        self.loses = False
        self.failure: HeadraceError | None = None
        self.format = FENCED_LOAD_FORMAT
        self.database: Any = SimpleNamespace(slice_ns=DAY_NS, buckets=1)
        self.former: str | None = None
        self.table: Any = SimpleNamespace(
            slots=SLOTS,
            version=1,
            holder=lambda _slot: "n1",
            previous_holder=lambda _slot: self.former,
        )
        uploads: Any = SimpleNamespace(
            group=lambda _key, _slot: self.group, is_staged=lambda _group, digest, _segment: digest in self.staged
        )
        databases: Any = SimpleNamespace(database=lambda _name: self.database)
        detector: Any = SimpleNamespace(status=lambda _group, _node: SimpleNamespace(format=self.format))
        groups: Any = {"topic": self.group}
        self.change: Any = None
        state: Any = lambda: SimpleNamespace(table=self.table, change=self.change)  # noqa: E731
        self.loads = SyncLoads(groups, self, uploads, databases, detector, state)

    def append_for(self, topic: str, bodies_of: Callable[[Leadership], Iterable[Load]]) -> None:
        """Append records, which the group reads at once."""
        assert "topic" == topic
        if self.failure is not None:
            raise self.failure
        bodies = list(bodies_of(Leadership(1, "n1", "i")))
        self.appended.append(bodies)
        for each in () if self.loses else bodies:
            self.group.loads[load_identity(each)] = None

    def request(self, version: int, **changed: Any) -> LoadRequest:
        """A file, which is staged here."""
        body = replace(sealed_file({"a": [(DAY_NS, float(version))]}, version=version).body, **changed)
        self.staged.add(body.content_digest.hex())
        return request_of(body)

    def answers(self, *requests: LoadRequest) -> list[object]:
        """True for a repeat, False for a file that was loaded now, else the type of its error."""
        found = self.loads.load(KEY, requests)
        return [type(each) if isinstance(each, HeadraceError) else each for each in found]


def request_of(body: SyncFile | SyncDeletes, number: int = 1) -> LoadRequest:
    """The request of a receiver."""
    return LoadRequest(encode_manifest(SyncManifest(SENDER, "store", "site", 1, number, FORMAT, body)), 1)


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    """A leader that waits for nothing."""
    monkeypatch.setattr(sync_loads, "ATTACH_TIMEOUT_S", 0.0)
    return Scene()


def test_files_of_one_request_are_appended_together(scene: Scene) -> None:
    """Three files are one append, in their order; asked for again they are repeats, and nothing is appended."""
    requests = [scene.request(version) for version in (3, 4, 5)]
    assert [False, False, False] == scene.answers(*requests)
    [loads] = scene.appended
    assert [3, 4, 5] == [each.last_version for each in loads]
    assert {SENDER} == {each.sender for each in loads}
    assert [True, True, True] == scene.answers(*requests)
    assert (1, 3) == (len(scene.appended), scene.loads.loads)


def test_each_file_has_its_own_answer(scene: Scene) -> None:
    """Files that cannot be loaded get their errors, and the others are loaded all the same."""
    absent = request_of(sealed_file({"z": [(DAY_NS, 1.0)]}, version=9).body)
    answers = scene.answers(
        scene.request(3),
        request_of(SyncDeletes("e1/1", (SyncDelete(1, 1, "d", "t", {}, None, None),))),
        LoadRequest(b"no manifest", 1),
        absent,
        scene.request(4, buckets=2),
        scene.request(5, rows=-1),
        scene.request(6),
    )
    expected = [False, LoadNotReady, FrameInvalid, LoadNotReady, DatabaseDiffers, ManifestInvalid, False]
    assert expected == answers
    assert [[3, 6]] == [[each.last_version for each in loads] for loads in scene.appended]


def test_what_was_not_read_back_is_asked_for_again(scene: Scene) -> None:
    """A record that the log has lost is unconfirmed; a later request appends it once more."""
    scene.loses = True
    request = scene.request(3)
    assert [LoadUnconfirmed] == scene.answers(request)
    scene.loses = False
    assert [False] == scene.answers(request)
    assert 2 == len(scene.appended)


@pytest.mark.parametrize("behind", ["jobs", "file"])
def test_accepted_means_applied(scene: Scene, behind: str) -> None:
    """While the store has not carried out the load, or awaits the bytes, the answer is unconfirmed and not a yes."""
    request = scene.request(3)
    if behind == "jobs":
        scene.group.done = False
    else:
        scene.group.awaited = set(scene.staged)
    assert [LoadUnconfirmed] == scene.answers(request)
    scene.group.done, scene.group.awaited = True, set()
    assert [True] == scene.answers(request)
    assert 1 == len(scene.appended)


def test_a_slot_that_moved_is_named(scene: Scene) -> None:
    """A file whose slot another group has by now is no success, also when its record was appended."""
    request = scene.request(3)
    scene.group.applied.changes.given = set(range(SLOTS))
    assert [SlotNotHeld] == scene.answers(request)


@pytest.mark.parametrize(
    "reason", ["no table", "no database", "a running change", "a slot to come", "another holder", "an older member"]
)
def test_a_leader_that_is_not_ready_appends_nothing(scene: Scene, reason: str) -> None:
    """The file waits: the error may be retried, and the log has nothing of it."""
    request = scene.request(3)
    if reason == "no table":
        scene.table = None
    elif reason == "no database":
        scene.database = None
    elif reason == "a running change":
        scene.table.version = 2
    elif reason == "a slot to come":
        scene.former, scene.change = "n2", SimpleNamespace(formal=True)
    elif reason == "another holder":
        scene.table.holder = lambda _slot: "n2"
    else:
        scene.format = FENCED_LOAD_FORMAT - 1
    [found] = scene.loads.load(KEY, [request])
    assert isinstance(found, LoadNotReady)
    assert (True, []) == (found.retriable, scene.appended)


def test_a_slot_takes_loads_once_its_takeover_is_here(scene: Scene) -> None:
    """The group knows then which files it has, and which deletes are behind it. A takeover of before does not count."""
    scene.former, scene.change = "n2", SimpleNamespace(formal=True)
    scene.table.version = scene.group.applied.changes.settled_version = 3
    request = scene.request(3)
    for taken in ({}, {GroupKey("n3", 1): 3}, {GroupKey("n2", 1): 2}):
        scene.group.applied.changes.taken = taken
        assert [LoadNotReady] == scene.answers(request)
    scene.group.applied.changes.taken = {GroupKey("n2", 1): 3}
    assert [False] == scene.answers(request)


@pytest.mark.parametrize("change", [None, SimpleNamespace(formal=False)])
def test_a_change_that_is_over_holds_up_no_load(scene: Scene, change: object) -> None:
    """All takeovers are here by then, also where a build of before did not note by which table they came."""
    scene.former, scene.change = "n2", change
    assert [False] == scene.answers(scene.request(3))


def test_a_log_that_refuses_fails_the_whole_request(scene: Scene) -> None:
    """The error of the log is raised, and the files are loaded when it is there again."""
    request = scene.request(3)
    scene.failure = LogUnavailable("away", retriable=True)
    with pytest.raises(LogUnavailable):
        scene.loads.load(KEY, [request])
    scene.failure = None
    assert [False] == scene.answers(request)
