"""Queries at the moment at which a new slot table counts: they wait for groups that come, and for no lost ones."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

import pytest

from headrace.consumers.query import remote_rows
from headrace.consumers.query.late_groups import LateGroups
from headrace.consumers.query.query_errors import GroupUnavailable, NotReady, SlotNotHeld, SlotsMoved
from headrace.consumers.query.query_timer import QueryTimer
from headrace.schemas.records import Status
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

        def removed(group: str, nodes: Iterable[str]) -> list[Status]:
            source.use_table(Table(3, ("g",)))
            return live(group, nodes)

        members.live = removed  # type: ignore[method-assign]
        assert {"g": 3} == source.fence().confirmed
        assert [] == source.remote.serving("h")
        with pytest.raises(SlotsMoved):
            source.remote.scan(replace(REQUEST, group="h", table_version=2), SCHEMA, timer)
        # A group that has ended, asked for what it has handed over.
        members.answers["a"] = SlotNotHeld.of("h", "a")
        with pytest.raises(GroupUnavailable, match="group h"):
            source.remote.scan(replace(REQUEST, group="h", table_version=0), SCHEMA, timer)
