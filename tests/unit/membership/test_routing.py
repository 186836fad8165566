"""What writers know of the members of a cluster: followed while they write, and never older than a look shows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import closing

import pytest

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import LogUnavailable, TopicState
from headrace.consumers.membership import routing as routing_module
from headrace.consumers.membership.bootstrap import NoCluster
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.routing import MembershipRouting, open_routing, route_of
from headrace.schemas.framing import FORMAT, FormatTooNew, format_headers
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.membership_records import ChangeKind
from tests.unit.membership.growing import TOPICS, Growing
from tests.waiting import eventually


@pytest.fixture
def cluster() -> Growing:
    """Four nodes with three replicas; the members of each group are it and the next two."""
    return Growing(("n1", "n2", "n3", "n4"), 3)


@pytest.fixture
def routing(cluster: Growing) -> Iterator[MembershipRouting]:
    """The routing of a client that has just connected."""
    with closing(MembershipRouting(cluster.log, TOPICS)) as made:
        yield made


def everywhere(_group: GroupKey) -> bool:
    """Every topic exists."""
    return True


def state_of(cluster: Growing) -> MembershipState:
    """What the log has decided."""
    return cluster.state


def test_until_the_formal_phase_both_sets_of_members_have_a_quorum(cluster: Growing) -> None:
    """The members before a change and those after it: either may be the members in the end.

    From the formal phase on only those after it count. A group that ends keeps those of its members that stay.
    """
    table = cluster.state.table
    assert table is not None
    leaver = table.nodes[0]
    cluster.begin(ChangeKind.REMOVE, leaver)
    change = cluster.state.change
    assert change is not None
    ended = GroupKey(leaver, 1)
    before = route_of(cluster.state, everywhere)
    assert (before.table.version, before.ending) == (1, (ended,))
    for header in change.table.headers:
        sets = before.voters(GroupKey(header, 1))
        assert set(sets) == {table.group(header), change.table.group(header)}
    assert before.voters(ended) == (table.group(leaver),)
    cluster.formal()
    after = route_of(cluster.state, everywhere)
    assert (after.table.version, after.ending) == (2, (ended,))
    for header in change.table.headers:
        assert after.voters(GroupKey(header, 1)) == (change.table.group(header),)
    assert after.voters(ended) == (tuple(each for each in table.group(leaver) if each != leaver),)
    assert not after.holds(ended)
    cluster.finish()
    last = route_of(cluster.state, everywhere)
    assert (last.ending, last.voters(ended)) == ((ended,), ())


def test_a_cancelled_change_leaves_the_route_as_it_was(cluster: Growing) -> None:
    """Members that it would have added or removed count as before."""
    before = route_of(cluster.state, everywhere)
    cluster.begin(ChangeKind.ADD, "n5")
    cluster.cancel()
    after = route_of(cluster.state, everywhere)
    assert (before.table, before.electorates) == (after.table, after.electorates)


def test_a_new_group_is_written_to_once_it_has_a_topic(cluster: Growing, routing: MembershipRouting) -> None:
    """Until then the groups that give its slots take the rows: nobody waits for a topic that is about to come."""
    cluster.begin(ChangeKind.ADD, "n5")
    assert not routing.look(10.0).pending
    cluster.formal()
    route = routing.look(10.0)
    assert (1, True) == (route.table.version, route.pending)
    cluster.create_topic("n5")
    route = routing.look(10.0)
    assert (2, False) == (route.table.version, route.pending)


def test_slots_are_moving_from_the_newer_table_on_until_the_change_ends(cluster: Growing) -> None:
    """By that the receivers of sync wait with deletes; in the first phase, and behind the end, nobody waits."""
    moving = [route_of(cluster.state, everywhere).moving]
    steps: list[Callable[[], object]] = [lambda: cluster.begin(ChangeKind.ADD, "n5"), cluster.formal, cluster.finish]
    for step in steps:
        step()
        moving.append(route_of(cluster.state, everywhere).moving)
    assert [False, False, True, False] == moving


def test_the_topic_of_a_new_group_is_looked_up_before_rows_are_routed_to_it(
    cluster: Growing, routing: MembershipRouting
) -> None:
    """In the first phase, once: the first row would wait for it otherwise."""
    prepared: list[str] = []
    routing.prepare = prepared.append
    cluster.begin(ChangeKind.ADD, "n5")
    routing.look(10.0)
    assert [] == prepared
    cluster.log.create_topic(TOPICS.forward("n5", 2), {})
    assert 1 == routing.look(10.0).table.version
    assert [TOPICS.forward("n5", 2)] == prepared
    cluster.formal()
    assert 2 == routing.look(10.0).table.version
    assert 1 == len(prepared)


def test_a_client_that_writes_follows_the_log(cluster: Growing, routing: MembershipRouting) -> None:
    """Without being asked to look; over several changes."""
    for number, node in enumerate(("n5", "n6"), 2):
        cluster.add(node)
        eventually(lambda number=number: routing.route.table.version == number, f"table {number}")


def test_a_client_that_writes_learns_of_a_table_at_once(
    cluster: Growing, routing: MembershipRouting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once it knows of the change it waits for no further look."""
    cluster.begin(ChangeKind.ADD, "n5")
    cluster.log.create_topic(TOPICS.forward("n5", 2), {})
    assert routing.route.table.version == 1
    monkeypatch.setattr(routing_module, "LOOK_INTERVAL_S", 1_000.0)
    routing.look(10.0)
    cluster.formal()
    eventually(lambda: routing.route.table.version == 2, "table 2", 30.0)


def test_the_first_row_after_a_pause_is_routed_by_the_table_of_then(
    cluster: Growing, routing: MembershipRouting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client that was idle for days knows a table whose groups may be gone; it waits for a look, once."""
    assert routing.route.table.version == 1
    cluster.add("n5")
    monkeypatch.setattr(routing_module, "STALE_S", 0.0)
    monkeypatch.setattr(routing_module, "LOOK_INTERVAL_S", 0.0)
    assert routing.route.table.version == 2


def test_without_the_log_rows_are_routed_by_the_table_that_is_known(
    cluster: Growing, routing: MembershipRouting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A write is queued as before, and a look is an error; both work again when the log answers."""
    monkeypatch.setattr(routing_module, "STALE_S", 0.0)
    monkeypatch.setattr(routing_module, "LOOK_INTERVAL_S", 0.0)
    monkeypatch.setattr(routing_module, "STALE_WAIT_S", 0.05)
    cluster.log.unavailable = True
    assert routing.route.table.version == 1
    with pytest.raises(LogUnavailable, match="the membership log was not read"):
        routing.look(0.2)
    cluster.log.unavailable = False
    cluster.add("n5")
    assert routing.look(10.0).table.version == 2


def test_a_record_of_a_later_build_is_an_error_of_the_next_row(cluster: Growing, routing: MembershipRouting) -> None:
    """It may be a table that this build cannot read: rows are not routed past it."""
    cluster.log.store(TOPICS.membership, b"later", None, format_headers(FORMAT + 1))
    with pytest.raises(FormatTooNew):
        routing.look(10.0)
    with pytest.raises(FormatTooNew, match="upgrade this client"):
        _ = routing.route


def test_no_cluster_is_an_error_at_once() -> None:
    """As before: a misspelt name must not wait for a cluster."""
    with pytest.raises(NoCluster):
        MembershipRouting(MemoryLog(), TOPICS)


def test_closing_ends_the_thread_and_may_be_repeated(cluster: Growing) -> None:
    """Also while nothing was written, and while it waits."""
    routing = MembershipRouting(cluster.log, TOPICS)
    routing.close()
    other = MembershipRouting(cluster.log, TOPICS)
    other.look(10.0)
    thread = other._thread
    assert thread is not None
    other.close()
    other.close()
    assert not thread.is_alive()


def test_a_log_that_refuses_at_once_is_asked_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was asked without a pause, which took a processor, and showed thousands of lines."""
    refused: list[LogUnavailable] = []

    def refuse(*_: object, **__: object) -> TopicState:
        raise LogUnavailable("topic c.membership has no leader", retriable=True)

    log = MemoryLog()
    monkeypatch.setattr(log, "describe", refuse)
    with pytest.raises(LogUnavailable):
        open_routing(log, TOPICS, Deadline(0.5), refused.append)
    assert 0 < len(refused) < 10
