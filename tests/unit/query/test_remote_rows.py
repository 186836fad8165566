"""Rows of groups of other nodes: which member is asked, what happens when it fails, and what is held meanwhile."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from headrace.connectors.clock import Moment, SystemClock
from headrace.consumers.query import remote_rows
from headrace.consumers.query.cluster_source import ClusterFence, ClusterSource
from headrace.consumers.query.ended_groups import EndedGroups, Gone
from headrace.consumers.query.local_fence import LocalFence
from headrace.consumers.query.local_source import LocalSource
from headrace.consumers.query.query_errors import (
    GroupUnavailable,
    NotReady,
    QueryCancelled,
    QueryError,
    QueryMemory,
    QueryTimeout,
    SlotNotHeld,
)
from headrace.consumers.query.query_timer import Interrupter, QueryTimer
from headrace.consumers.query.remote_rows import RemoteRows, fetch_rows
from headrace.consumers.query.scan_request import SCAN_ROUTE, RemoteScanRequest
from headrace.consumers.query.scan_stream import ScanCut, ScanEncoder
from headrace.consumers.query.table_source import Reading, ReadTimer
from headrace.consumers.replication.applied_state import AppliedState
from headrace.consumers.replication.group_health import GroupHealth
from headrace.consumers.serve.server import Server
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.records import Role, Status
from headrace.schemas.tables import Catalogue, TableSchema
from tests.unit.statuses import STATUS
from tests.waiting import eventually

SCHEMA = pa.schema([("time", pa.timestamp("ns")), ("flow", pa.int64())])
REQUEST = RemoteScanRequest("g", "plant", "pumps", 1, ("time", "flow"), None, None, after=5)
LIMIT_BYTES = 10_000


def batch(first: int, rows: int = 10) -> pa.RecordBatch:
    """Some rows."""
    numbers = range(first, first + rows)
    return pa.RecordBatch.from_arrays([pa.array(numbers, pa.timestamp("ns")), pa.array(numbers)], schema=SCHEMA)


@pytest.fixture
def timer() -> Iterator[QueryTimer]:
    """The time of a query."""
    interrupter = Interrupter()
    timer = QueryTimer(interrupter, 60_000)
    yield timer
    timer.finish()
    interrupter.close()


class Members:
    """Members by their statuses, and what each answers: rows, or an error behind some rows."""

    def __init__(self, **answers: QueryError | int) -> None:
        self.answers = answers
        self.statuses = {name: status(name) for name in answers}
        self.asked: list[str] = []
        self.headers: tuple[str, ...] = ("g",)
        self.version = 1

    def group(self, header: str) -> tuple[str, ...]:
        return tuple(self.statuses)

    def birth(self, header: str) -> int:
        return 1

    def holders(self, group: str) -> list[Status]:
        return list(self.statuses.values())

    def live(self, group: str, members: Iterable[str]) -> list[Status]:
        return [self.statuses[name] for name in members]

    def fetch(
        self, url: str, request: RemoteScanRequest, schema: pa.Schema, timer: ReadTimer, reserve: Callable[[int], None]
    ) -> pa.Table:
        self.asked.append(url)
        answer = self.answers[url]
        found = batch(0) if isinstance(answer, QueryError) else batch(0, answer)
        # As a real member: it may fail behind rows that are held already.
        reserve(found.nbytes)
        if isinstance(answer, QueryError):
            raise answer
        return pa.Table.from_batches([found])

    def rows(self, node: str = "me") -> RemoteRows:
        """The rows of these members, as a node sees them."""
        return RemoteRows(node, self, self, LIMIT_BYTES, self.fetch)


def status(name: str, **changed: Any) -> Status:
    """The status of a member in sync, whose address is its name."""
    found = replace(STATUS, node=name, http=name, eligible=True, role=Role.FOLLOWER, durable_offset=9, reason="")
    return replace(found, **changed)


def test_another_member_is_asked_when_one_fails(timer: QueryTimer) -> None:
    """Whatever a member fails with, also behind some rows: those are dropped, and the answer is one member's."""
    members = Members(a=ScanCut.because("the end"), b=SlotNotHeld.of("g", "b"), c=3)
    rows = members.rows()
    with rows.scan(REQUEST, SCHEMA, timer) as scan:
        assert [0, 1, 2] == scan.table["flow"].to_pylist()
        assert pa.int64() == scan.table["time"].type
        assert batch(0, 3).nbytes == rows.statistics.bytes_held
    assert 0 == rows.statistics.bytes_held
    assert ["a", "b", "c"] == members.asked
    assert (1, 2, 0) == (rows.statistics.answered, rows.statistics.tried_again, rows.statistics.failed)


def test_queries_are_spread_over_the_members(timer: QueryTimer) -> None:
    """Each query begins with another member; one that is behind what the query must see is asked last."""
    members = Members(a=1, b=1, c=1)
    members.statuses["b"] = status("b", durable_offset=4)
    rows = members.rows()
    for _ in range(6):
        with rows.scan(REQUEST, SCHEMA, timer):
            pass
    assert {"a", "c"} == set(members.asked)


def test_a_member_that_still_waits_for_files_is_asked_last(timer: QueryTimer) -> None:
    """Its disk may be full for hours, while another one has everything. Alone it is asked all the same."""
    members = Members(a=1, b=1)
    members.statuses["a"] = status("a", reason="pulling slots: the disk is full")
    rows = members.rows()
    for _ in range(4):
        with rows.scan(REQUEST, SCHEMA, timer):
            pass
    assert {"b"} == set(members.asked)
    members.answers["b"] = SlotNotHeld.of("g", "b")
    with rows.scan(REQUEST, SCHEMA, timer):
        assert "a" == members.asked[-1]


def test_members_that_all_wait_for_files_are_waited_for(timer: QueryTimer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each waits for a part of the query's time alone, so that another one is asked; they are asked again."""
    monkeypatch.setattr(remote_rows, "PATIENCE_S", 0.0)
    members = Members(a=NotReady.because(["group g still receives data"]), b=NotReady.because(["so does this one"]))
    members.statuses |= {name: status(name, reason="pulling slots") for name in "ab"}
    fetch = members.fetch

    def arriving(*arguments: Any) -> pa.Table:
        if len(members.asked) == 5:
            members.answers["b"] = 2
        return fetch(*arguments)

    monkeypatch.setattr(members, "fetch", arriving)
    with members.rows().scan(REQUEST, SCHEMA, timer) as scan:
        assert 2 == scan.table.num_rows
    assert {"a", "b"} == set(members.asked)


def test_only_members_that_serve_are_asked(timer: QueryTimer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not this node, and none that is out of sync, without a role, or without an address."""
    monkeypatch.setattr(remote_rows, "PATIENCE_S", 0.0)
    members = Members(me=1, a=1, b=1, c=1)
    members.statuses |= {
        "a": status("a", eligible=False),
        "b": status("b", role=Role.UNSYNCED),
        "c": status("c", http=""),
    }
    with pytest.raises(GroupUnavailable, match="group g .*none is online and in sync"):
        members.rows().scan(REQUEST, SCHEMA, timer)
    assert [] == members.asked


def test_an_error_names_the_group_and_every_member(timer: QueryTimer, monkeypatch: pytest.MonkeyPatch) -> None:
    """One line, which may be retried, once all members have failed for some time; nothing is held then."""
    monkeypatch.setattr(remote_rows, "PATIENCE_S", 0.0)
    members = Members(a=ScanCut.because("no end"), b=NotReady.because(["behind"]))
    rows = members.rows()
    with pytest.raises(GroupUnavailable) as raised:
        rows.scan(REQUEST, SCHEMA, timer)
    assert raised.value.retriable
    for text in ("group g", "a failed with ScanCut", "no end", "b failed with NotReady", "behind"):
        assert text in raised.value.message
    assert "\n" not in str(raised.value)
    assert (0, 1) == (rows.statistics.bytes_held, rows.statistics.failed)


def test_a_group_without_members_is_asked_again(timer: QueryTimer) -> None:
    """A query waits for the member that takes over from one that died."""
    members = Members(a=ScanCut.because("dead"))
    rows = members.rows()

    def recovers() -> None:
        eventually(lambda: len(members.asked) > 1, "a second try")
        members.answers["a"] = 2

    thread = threading.Thread(target=recovers)
    thread.start()
    with rows.scan(REQUEST, SCHEMA, timer) as scan:
        assert 2 == scan.table.num_rows
    thread.join()


class DeletedTopic:
    """The topics of groups: that of an ended one is deleted once it was looked for often enough."""

    def __init__(self, looks: int) -> None:
        self.looks = looks

    def is_deleted(self, key: GroupKey) -> bool:
        """See GroupTopics."""
        assert GroupKey("g", 2) == key
        self.looks -= 1
        return self.looks < 0

    def newest_offset(self, key: GroupKey) -> int:
        """See GroupTopics."""
        return 7


@pytest.mark.parametrize("looks", [0, 2])
def test_an_ended_group_that_is_gone_is_not_waited_for_at_a_younger_one(timer: QueryTimer, looks: int) -> None:
    """A node was removed and is here again: members of its new group do not have the old one, and some wait for files."""
    members = Members(a=SlotNotHeld.of("g", "a"), b=SlotNotHeld.of("g", "b"))
    members.statuses["a"] = status("a", reason="pulling slots")
    local: Any = SimpleNamespace(groups={})
    ended = EndedGroups(local, members.rows(), DeletedTopic(looks))
    found = ended.hand_overs(GroupKey("g", 2), REQUEST, TableSchema("plant", "pumps"), timer, [GroupKey("h", 1)])
    assert Gone({"h": 7}) == found
    assert 2 * (1 + looks) == len(members.asked)


def test_rows_beyond_the_limit_end_the_query(timer: QueryTimer) -> None:
    """The limit holds for all queries together, and its error is the same at every member."""
    members = Members(a=400, b=400)
    rows = members.rows()
    with rows.scan(REQUEST, SCHEMA, timer):
        with pytest.raises(QueryMemory, match="remote_mb_max"):
            rows.scan(REQUEST, SCHEMA, timer)
        assert 2 == len(members.asked)
        assert batch(0, 400).nbytes == rows.statistics.bytes_held
    assert 0 == rows.statistics.bytes_held


@pytest.mark.parametrize(("ends", "error"), [("cancel", QueryCancelled), ("expire", QueryTimeout)])
def test_the_end_of_a_query_ends_its_fetches(ends: str, error: type[QueryError]) -> None:
    """A fetch that waits for a member ends with its query, and no other member is asked."""
    interrupter = Interrupter()
    timer = QueryTimer(interrupter, 500 if ends == "expire" else 60_000)
    ended = threading.Event()

    def hangs(*_given: Any, **_named: Any) -> pa.Table:
        with timer.interrupts(ended.set):
            if ends == "cancel":
                timer.cancel()
            assert ended.wait(30)
        raise ScanCut.because("the connection was closed")

    rows = RemoteRows("me", Members(a=1), Members(a=1), LIMIT_BYTES, hangs)
    with pytest.raises(error):
        rows.scan(REQUEST, SCHEMA, timer)
    assert 0 == rows.statistics.tried_again
    timer.finish()
    interrupter.close()


# A member over real sockets.


class FakeMember:
    """A server that answers scans as a test sets: by pieces of a stream, then an end, a cut, or silence."""

    def __init__(self) -> None:
        self.pieces: list[bytes] = []
        self.then = "ends"
        self.requests: list[Any] = []
        self.left = threading.Event()
        self._server = Server(Starlette(routes=[Route(SCAN_ROUTE, self._answer, methods=["POST"])]))
        self.url = self._server.start()

    async def _answer(self, request: Request) -> Response:
        self.requests.append(await request.json())
        if self.then == "refuses":
            error = {"kind": "SlotNotHeld", "message": "node m does not hold group g", "action": "", "retriable": True}
            return JSONResponse({"error": error}, 409)
        return StreamingResponse(self._stream())

    async def _stream(self) -> AsyncIterator[bytes]:
        import asyncio

        try:
            for piece in self.pieces:
                yield piece
            if self.then == "dies":
                raise RuntimeError("the member is killed")
            while self.then == "hangs":
                await asyncio.sleep(0.05)
        finally:
            self.left.set()

    def stop(self) -> None:
        self.then = "ends"
        self._server.stop()


@pytest.fixture
def member() -> Iterator[FakeMember]:
    """A member that answers as it is set."""
    member = FakeMember()
    yield member
    member.stop()


def fetch(member: FakeMember, timer: ReadTimer) -> pa.Table:
    """The rows of one request."""
    return fetch_rows(member.url, REQUEST, SCHEMA, timer, lambda _size: None)


def test_a_member_answers_over_http(member: FakeMember, timer: QueryTimer) -> None:
    """The request arrives whole, and so do the rows."""
    encoder = ScanEncoder(SCHEMA)
    member.pieces = [encoder.waiting(), encoder.rows(batch(0)), encoder.rows(batch(10)), encoder.end()]
    assert list(range(20)) == fetch(member, timer)["flow"].to_pylist()
    assert [REQUEST] == [RemoteScanRequest.parse(document) for document in member.requests]


@pytest.mark.parametrize("then", ["dies", "ends"])
def test_a_member_that_dies_in_the_middle_gives_nothing(member: FakeMember, timer: QueryTimer, then: str) -> None:
    """A connection that breaks, or ends in order behind a part of the rows, is a cut answer."""
    encoder = ScanEncoder(SCHEMA)
    member.pieces, member.then = [encoder.waiting(), encoder.rows(batch(0))], then
    with pytest.raises(ScanCut):
        fetch(member, timer)


def test_a_refusal_arrives_as_its_class(member: FakeMember, timer: QueryTimer) -> None:
    """A node that does not hold the group is an error of its own, and so is one that nobody reaches."""
    member.then = "refuses"
    with pytest.raises(SlotNotHeld, match="does not hold group g"):
        fetch(member, timer)
    member.stop()
    with pytest.raises(QueryError, match="no answer at"):
        fetch(member, timer)


def test_a_silent_member_is_given_up(member: FakeMember, timer: QueryTimer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A member that was stopped keeps its connection open, and shows no mark any more."""
    monkeypatch.setattr(remote_rows, "SILENCE_S", 0.3)
    member.pieces, member.then = [ScanEncoder(SCHEMA).waiting()], "hangs"
    with pytest.raises(ScanCut):
        fetch(member, timer)


def test_a_cancelled_query_closes_its_connections(member: FakeMember, timer: QueryTimer) -> None:
    """The member sees the end at once, not when its own time is over."""
    member.pieces, member.then = [ScanEncoder(SCHEMA).waiting()], "hangs"
    threading.Timer(0.2, timer.cancel).start()
    with pytest.raises(ScanCut):
        fetch(member, timer)
    assert member.left.wait(30)


# What a node decides before it reads.


class Here:
    """The state of a node, which a test sets. See ServingState."""

    fencings = 0

    def __init__(self, **refusals: str) -> None:
        self.here = refusals
        self.fenced: list[str] = []
        self.moment: Moment | None = None
        self.groups: dict[str, Any] = {f"c.forward.{name}": Group(name) for name in refusals}

    def refusals(self) -> list[str]:
        return self.fenced

    def refusal(self, topic: str) -> str:
        return self.here[topic.rpartition(".")[2]]

    def durable_offset(self, topic: str) -> int:
        return 3

    def confirmed_offset(self, topic: str) -> int:
        return 3

    def objections(self) -> list[str]:
        return []

    def as_of(self) -> Moment | None:
        return self.moment

    def source(self, members: Members) -> ClusterSource:
        """The cluster as this node sees it."""
        return ClusterSource(LocalSource(self.groups, Catalogue(), self), members.rows(), self)

    def is_deleted(self, key: GroupKey) -> bool:
        """See GroupTopics."""
        del key
        return True

    def newest_offset(self, key: GroupKey) -> int:
        """See GroupTopics."""
        del key
        return -1


class Group:
    """A group with a name."""

    def __init__(self, name: str) -> None:
        self.name = self.key = name
        self.birth_key = GroupKey(name, 1)
        self.health = GroupHealth(threading.Condition())
        self.applied = AppliedState(offset=3)
        self.decided = self.applied.changes

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        return condition()


@contextmanager
def cluster(here: Here, members: Members) -> Iterator[ClusterSource]:
    """A source that is closed behind the test."""
    source = here.source(members)
    try:
        yield source
    finally:
        source.close()


def test_a_group_that_is_not_in_sync_here_is_read_elsewhere(timer: QueryTimer) -> None:
    """It does not stop answers that others can give; only the groups in sync are read, and waited for, here."""
    here, members = Here(g="behind", h=""), Members(a=1, b=1)
    members.headers = ("g", "h", "i")
    with cluster(here, members) as source:
        fence = source.fence()
        assert isinstance(fence, ClusterFence)
        assert (("g", "i"), ["c.forward.h"]) == (fence.remote, list(fence.local.topics))
        assert {"h": 3, "g": 9, "i": 9} == fence.confirmed
        # What another group's log has is waited for at its members.
        assert source.wait_for(Reading(fence, {"h": 3, "g": 99, "i": 99}, timer))
        assert not source.wait_for(Reading(fence, {"h": 4}, timer))


def test_a_group_that_nobody_serves_is_named(timer: QueryTimer) -> None:
    """The reason of this node for a group that is here, and the absence of the members for one that is not."""
    here, members = Here(g="group g: behind"), Members()
    members.headers = ("g", "h")
    with cluster(here, members) as source, pytest.raises(NotReady) as raised:
        source.fence()
    assert "group g: behind" in raised.value.message
    assert "group h: it is not held here, and no member of it is online" in raised.value.message


def test_a_fenced_node_asks_nobody() -> None:
    """The statuses that it knows are old, so it does not know who serves."""
    here, members = Here(g=""), Members(a=1)
    here.fenced = ["this node is fenced"]
    with cluster(here, members) as source, pytest.raises(NotReady, match="fenced"):
        source.fence()


def test_an_older_answer_needs_every_group_here() -> None:
    """A node that lacks a group refuses, by its name: a part of the rows is no answer."""
    here, members = Here(g=""), Members(a=1)
    here.fenced, here.moment = ["no Kafka"], Moment(SystemClock().boot_ns())
    with cluster(here, members) as source:
        assert here.moment is source.fence(60.0).as_of
        members.headers = ("g", "h")
        with pytest.raises(NotReady, match="would lack group h"):
            source.fence(60.0)
        with pytest.raises(NotReady) as raised:
            source.fence()
        assert "--stale" not in raised.value.action


def test_an_answer_of_others_needs_this_node_to_serve() -> None:
    """A node that was fenced in between knew no longer who serves, also where it read nothing of its own."""
    here, members = Here(), Members(a=1)
    with cluster(here, members) as source:
        fence = source.fence()
        fence.check()
        here.fencings += 1
        with pytest.raises(QueryError, match="stopped serving"):
            fence.check()


def test_a_fence_of_some_groups_is_of_no_other() -> None:
    """A group that falls out of sync ends the queries that read it here, and no others."""
    here = Here(g="", h="")
    fence = LocalFence(here.groups, here, ["c.forward.h"])
    here.here["g"] = "behind"
    fence.check()
    here.here["h"] = "behind"
    with pytest.raises(QueryError, match="behind"):
        fence.check()
