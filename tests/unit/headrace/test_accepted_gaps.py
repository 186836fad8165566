"""Which member of a group that has lost its log decides where it continues."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from headrace import _member_views
from headrace import admin_client as admin_client_module
from headrace._member_views import LogView
from headrace.admin_client import (
    AdminClient,
    GapUnacceptable,
    GapUnconfirmed,
    NoLeader,
    most_advanced,
    unaware_of_loss,
)
from headrace.connectors.http import NodeUnreachable
from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import TopicState
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import join_cluster, read_slot_table
from headrace.consumers.replication.election import FENCED
from headrace.schemas.errors import HeadraceError
from headrace.schemas.records import Create, Role, Status, encode_status
from tests.unit.statuses import STATUS

TOPICS = Topics("c")
MEMBERS = ("n1", "n2", "n3")
LOG = TopicState("t", 0, 40)
BEST = replace(STATUS, node="n1", http="http://n1", log_lost=True, eligible=False, version=20)
OTHER = replace(BEST, node="n2", log_lost=False, version=30, durable_offset=35, reason="")


def test_the_member_that_noticed_the_loss_and_has_most_decides() -> None:
    """One that reads the rest of a log that was cut may count more, and holds nothing that was lost."""
    second = replace(BEST, node="n3", version=19)
    assert BEST == most_advanced([OTHER, second, BEST])
    assert OTHER == most_advanced([OTHER]), "a log that nobody has lost and nobody can continue"
    assert [] == unaware_of_loss([OTHER, second, BEST], BEST, LOG)


@pytest.mark.parametrize(
    "changed", [{"topic_id": "before"}, {"durable_offset": 40}, {"reason": FENCED}], ids=["topic", "end", "fenced"]
)
def test_a_member_that_cannot_have_noticed_the_loss_may_hold_more(changed: dict[str, Any]) -> None:
    """It follows another topic, has read more than there is, or reads nothing; one that holds less does not matter."""
    unaware = replace(OTHER, **changed)
    assert [unaware] == unaware_of_loss([BEST, unaware], BEST, LOG)
    assert [] == unaware_of_loss([BEST, replace(unaware, version=20, offset=40)], BEST, LOG)
    assert [] == unaware_of_loss([replace(BEST, log_lost=False), unaware], replace(BEST, log_lost=False), LOG)


def test_a_member_with_wrong_data_decides_nothing() -> None:
    """It may count most, and its node refuses every gap: the group would never continue."""
    wrong = replace(BEST, node="n3", version=30, durable_offset=-1)
    assert BEST == most_advanced([wrong, BEST])
    empty = replace(wrong, version=0)
    assert empty == most_advanced([empty])


def test_a_member_that_has_not_applied_all_that_it_has_read_may_hold_more() -> None:
    """A record has stopped it, and what it has read behind that is in its journal."""
    stopped = replace(BEST, node="n3", version=10, offset=12, durable_offset=35)
    assert [stopped] == unaware_of_loss([BEST, stopped], BEST, LOG)
    assert [] == unaware_of_loss([BEST, replace(stopped, offset=35)], BEST, LOG)
    unnoticed = replace(stopped, log_lost=False, topic_id="before")
    assert [unnoticed] == unaware_of_loss([BEST, unnoticed], BEST, LOG)
    assert [] == unaware_of_loss([BEST, replace(unnoticed, topic_id="t")], BEST, LOG), "it follows what the log has"


@pytest.fixture
def stopped(monkeypatch: pytest.MonkeyPatch) -> MemoryLog:
    """The log of a cluster whose nodes were in sync when they ended, right now."""
    monkeypatch.setattr(_member_views, "LISTEN_S", 0.1)
    monkeypatch.setattr(_member_views, "OFFLINE_MS", 300)
    log = MemoryLog(clock_ms=lambda: time.time_ns() // 1_000_000)
    join_cluster(log, TOPICS, Create(MEMBERS, 3, 60), node="n1")
    for node in MEMBERS:
        send(log, replace(STATUS, node=node, group="n1", http=f"http://{node}", eligible=True))
    return log


def send(log: MemoryLog, status: Status) -> None:
    """Append a status as its node would."""
    log.store(TOPICS.status, encode_status(status), f"{status.group}/{status.node}".encode(), ())


@contextmanager
def admin_client(log: MemoryLog) -> Iterator[tuple[AdminClient, LogView]]:
    """The client of a command, and its view."""
    with closing(LogView(log, TOPICS, read_slot_table(log, TOPICS))) as view:
        yield AdminClient(view), view


def test_statuses_of_members_that_have_ended_are_no_members(stopped: MemoryLog) -> None:
    """No status has arrived since, so their time stands where it was: they count as offline, and are named."""
    with admin_client(stopped) as (admin, view):
        assert len(view.statuses.online()) == 3
        with pytest.raises(GapUnacceptable, match="no member of group n1 is up: n1, n2, n3 are offline") as raised:
            admin.accept_gap("n1", None, 3, 1.0)
        assert "start them" == raised.value.action


def test_a_member_that_sends_late_is_waited_for(stopped: MemoryLog) -> None:
    """A busy machine delays heartbeats: who was online has as long as any node before it counts as offline."""
    late = replace(STATUS, node="n2", group="n1", http="http://n2", log_lost=True, eligible=False)
    timer = threading.Timer(0.2, send, (stopped, late))
    timer.start()
    with admin_client(stopped) as (admin, view):
        assert ["n2"] == [each.node for each in view.live("n1")]
        with pytest.raises(GapUnacceptable, match="n1, n3 of group n1 may hold more"):
            admin.accept_gap("n1", None, 0, 1.0)
    timer.join()


def test_a_seal_without_a_leader_names_why_none_of_the_members_leads(monkeypatch: pytest.MonkeyPatch) -> None:
    """A node on a full disk runs and does not lead: to start it would not help."""
    monkeypatch.setattr(admin_client_module, "LEADER_TIMEOUT_S", 0.0)
    status = replace(STATUS, node="n1", group="n1", role=Role.UNSYNCED, reason="journal: disk full")
    view: Any = SimpleNamespace(groups=("n1",), live=lambda _group: [status], unread_fault=lambda: "")
    with pytest.raises(NoLeader, match="group n1 has no live leader; node n1: journal: disk full") as raised:
        AdminClient(view).seal_all(1.0, lambda _line: None)
    assert "start" not in raised.value.action


def test_a_group_that_does_not_exist_is_named() -> None:
    """Beside those that do, whichever way the members are found."""
    view: Any = SimpleNamespace(groups=("n2", "n1"))
    with pytest.raises(GapUnacceptable, match="there is no group n9") as raised:
        AdminClient(view).accept_gap("n9", None, 0, 1.0)
    assert "n1, n2" in raised.value.action


@pytest.mark.parametrize(("got_it", "kind"), [(True, GapUnconfirmed), (False, NodeUnreachable)])
def test_a_member_that_ends_with_the_request_may_have_appended_the_gap(got_it: bool, kind: type[HeadraceError]) -> None:
    """Only a request that has certainly not arrived has failed."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        if got_it:
            answers = threading.Thread(target=lambda: server.accept()[0].close())
            answers.start()
        else:
            server.close()
        lost = replace(BEST, http=f"http://{address}")
        view: Any = SimpleNamespace(
            groups=("n1",), members=lambda _group: ("n1",), live=lambda _group: [lost], log_state=lambda _group: LOG
        )
        with pytest.raises(kind, match=address):
            AdminClient(view).accept_gap("n1", None, 0, 1.0)
        if got_it:
            answers.join()
