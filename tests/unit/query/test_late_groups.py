"""Queries at the moment at which a new slot table counts: they wait for groups that come, and for no lost ones."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from headrace.consumers.query import remote_rows
from headrace.consumers.query.late_groups import LateGroups
from headrace.consumers.query.query_errors import GroupUnavailable, NotReady, QueryTimeout, SlotNotHeld, SlotsMoved
from headrace.consumers.query.query_timer import QueryTimer
from headrace.consumers.query.shared_timer import SharedTimer
from headrace.consumers.scheduling.timeout_queue import TimeoutQueue
from headrace.schemas.records import Status
from tests.unit.query.cluster_of_stores import cluster_of_stores
from tests.unit.query.random_statements import BEGIN_NS
from tests.unit.query.random_statements import SCHEMA as CPU
from tests.unit.query.test_remote_rows import REQUEST, SCHEMA, Here, Members, batch, cluster, status, timer

__all__ = ["timer"]


@dataclass
class Table:
    """A slot table. See Placement."""

    version: int
    headers: tuple[str, ...]

    def group(self, header: str) -> tuple[str, ...]:
        return ("a",)

    def birth(self, header: str) -> int:
        return 1


class Coming(Members):
    """Members that are in sync with group `h` once they were looked at some times."""

    def __init__(self, looks: int) -> None:
        super().__init__(a=1)
        self.looks = looks

    def live(self, group: str, members: Iterable[str]) -> list[Status]:
        if group == "h":
            self.looks -= 1
            if self.looks > 0:
                return []
        return [status("a")]


class Lost(Members):
    """All members are in sync but those of one group, which are offline."""

    def __init__(self, group: str, live: Callable[[str, Iterable[str]], list[Status]]) -> None:
        super().__init__()
        self.lost, self.others = group, live

    def live(self, group: str, members: Iterable[str]) -> list[Status]:
        return [] if group == self.lost else self.others(group, members)


def test_a_query_waits_for_a_group_that_a_change_creates() -> None:
    """Nobody leads it yet when its table counts. The query waits in its own time, and gets no error."""
    here, members = Here(g=""), Coming(looks=5)
    with cluster(here, members) as source:
        source.use_table(Table(2, ("g", "h")))
        fence = source.fence(timeout_s=60.0)
        assert {"g": 3, "h": 9} == fence.confirmed
        assert members.looks <= 0


def test_a_query_without_time_gets_the_reason() -> None:
    """A group that does not come within the time of a query is named, and the error may be retried."""
    here, members = Here(g=""), Coming(looks=10**9)
    with cluster(here, members) as source:
        source.use_table(Table(2, ("g", "h")))
        with pytest.raises(NotReady, match="group h: it is not held here") as raised:
            source.fence(timeout_s=0.05)
        assert raised.value.retriable


def test_what_a_query_waits_for_is_shown() -> None:
    """While it waits, with the members that are missing; a group that has come is shown no longer."""
    here, members = Here(g=""), Coming(looks=10**9)
    awaited = {"f": "group f: gone since"}
    with cluster(here, members) as source:
        source.use_table(Table(2, ("g", "h")))
        with pytest.raises(NotReady):
            source.fence(timeout_s=0.05, awaited=awaited)
    assert {"h"} == awaited.keys()
    assert awaited["h"].endswith("no member of it is online and in sync: 0 of 1 are online, a not")


@pytest.mark.parametrize("late_s", [0.0, 0.5])
def test_a_query_that_waited_all_its_time_names_the_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, late_s: float
) -> None:
    """Its members are lost before it has served once: the error has the group and its members, and no advice on SQL.

    It is the same error where the scheduler, on a busy machine, sees only later that the time is over.
    """
    expired = TimeoutQueue.expired
    monkeypatch.setattr(TimeoutQueue, "expired", lambda queue, now_s: expired(queue, now_s - late_s))
    with cluster_of_stores(tmp_path, CPU) as stores:
        stores.write([({"host": "a"}, BEGIN_NS, {"n": 1})])
        source: Any = stores.engines["n0"].source
        source.use_table(replace(stores.ring, version=2))
        live = stores.ring.live
        stores.remotes["n0"]._members = Lost("n1", live)
        with pytest.raises(QueryTimeout) as raised:
            stores.ask("n0", "SELECT count(*) FROM tsbs.cpu", timeout_ms=1_500)
    assert "within 1500 ms: it waited for group n1: it is not held here" in raised.value.message
    assert "0 of 3 are online, n1, n2, n3 not" in raised.value.message
    assert "headrace status" in raised.value.action


def test_what_an_abandoned_fetch_waits_for_is_not_shown(timer: QueryTimer) -> None:
    """Its query may be planned again, and then waits for nothing, or for something else."""
    shared = SharedTimer(timer)
    shared.awaited["g"] = "group g"
    assert {"g": "group g"} == timer.awaited
    shared.abandon()
    shared.awaited["h"] = "group h"
    assert {"g": "group g"} == timer.awaited


def test_a_scan_that_waits_shows_its_group(timer: QueryTimer, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the error of each member that was asked. Nothing is shown once one of them has given its rows."""
    monkeypatch.setattr(remote_rows, "PATIENCE_S", 60.0)
    members, seen = Members(a=SlotNotHeld.of("g", "a")), list[str]()
    fetch = members.fetch

    def comes(*given: object) -> object:
        seen.extend(timer.awaited.values())
        if len(members.asked) == 2:
            members.answers["a"] = 2
        return fetch(*given)  # type: ignore[arg-type]

    members.fetch = comes  # type: ignore[method-assign, assignment]
    with members.rows().scan(REQUEST, SCHEMA, SharedTimer(timer)):
        assert {} == timer.awaited
    assert {"rows of group g: a failed with SlotNotHeld: node a does not hold group g"} == set(seen)


def test_an_error_names_a_few_groups() -> None:
    """A query may wait for a hundred."""
    found = QueryTimeout.after(5, [f"group {name}: behind" for name in "abcde"])
    assert found.message.endswith("it waited for group a: behind; group b: behind; group c: behind; and for 2 more")


def test_no_query_waits_for_a_group_that_has_served_under_its_table() -> None:
    """Its members were lost since; a query with much time is refused at once, so that its client asks elsewhere."""
    here, members = Here(g=""), Coming(looks=0)
    with cluster(here, members) as source:
        source.use_table(Table(2, ("g", "h")))
        source.fence(timeout_s=60.0)
        members.looks = 10**9
        with pytest.raises(NotReady):
            source.fence(timeout_s=10**6)
        # Nor without a change, or where this node itself does not serve.
        source.use_table(Table(2, ("g", "h")))
        with pytest.raises(NotReady):
            source.fence(timeout_s=10**6)
        source.use_table(Table(3, ("g", "h")))
        here.fenced = ["this node is fenced"]
        with pytest.raises(NotReady, match="fenced"):
            source.fence(timeout_s=10**6)


def test_a_group_that_serves_under_an_older_table_may_be_late() -> None:
    """A query that began under the table before finds a group of the same name with other members."""
    late = LateGroups(3, ("g", "h"))
    late.note(2, ("g",))
    assert late.waits_for(3, {"g": ""})
    # It waits for the present table only, as a query of an older one is planned again.
    assert late.waits_for(2, {"g": ""})
    late.note(3, ("g",))
    assert not late.waits_for(3, {"g": "", "h": ""})
    assert late.waits_for(3, {"h": ""})
    assert not late.waits_for(4, {"h": ""})


def test_a_scan_waits_for_members_that_have_not_reached_its_table(
    timer: QueryTimer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The patience with a lost group does not count while a member that is online is on its way to the table."""
    monkeypatch.setattr(remote_rows, "PATIENCE_S", 0.0)
    members = Members(a=SlotNotHeld.of("g", "a"))
    members.statuses["a"] = status("a", settled=1)
    request = replace(REQUEST, table_version=2)
    members.version = 2
    fetch = members.fetch

    def arrives(*given: object) -> object:
        if len(members.asked) == 3:
            members.statuses["a"], members.answers["a"] = status("a", settled=2), 2
        return fetch(*given)  # type: ignore[arg-type]

    members.fetch = arrives  # type: ignore[method-assign, assignment]
    with members.rows().scan(request, SCHEMA, timer) as scan:
        assert batch(0, 2).num_rows == len(scan.table)
    members.answers["a"] = SlotNotHeld.of("g", "a")
    with pytest.raises(GroupUnavailable):
        members.rows().scan(request, SCHEMA, timer)


def test_a_query_meets_the_removal_of_a_group(timer: QueryTimer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the table before nobody serves it any more. The newest table counts, and no name of a node is an error."""
    monkeypatch.setattr(remote_rows, "PATIENCE_S", 0.0)
    here, members = Here(g=""), Coming(looks=10**9)
    with cluster(here, members) as source:
        source.use_table(Table(2, ("g", "h")))
        live = members.live

        def removed(group: str, members: Iterable[str]) -> list[Status]:
            source.use_table(Table(3, ("g",)))
            return live(group, members)

        members.live = removed  # type: ignore[method-assign]
        assert {"g": 3} == source.fence().confirmed
        assert [] == source.remote.serving("h")
        with pytest.raises(SlotsMoved):
            source.remote.scan(replace(REQUEST, group="h", table_version=2), SCHEMA, timer)
        # A group that has ended, asked for what it has handed over.
        members.answers["a"] = SlotNotHeld.of("h", "a")
        with pytest.raises(GroupUnavailable, match="group h"):
            source.remote.scan(replace(REQUEST, group="h", table_version=0), SCHEMA, timer)
