"""Deletes of a sender begin with a fence, look for its devices behind it, and have one route from begin to end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest

from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.replication.actions import Ignored, repeats
from headrace.consumers.replication.group_state import ProducerState
from headrace.consumers.replication.sync_rules import stale_load
from headrace.consumers.sync import sender_deletes
from headrace.consumers.sync.sender_deletes import MembersChange, apply_deletes
from headrace.producers.cluster import Route
from headrace.schemas.message_bodies import ProducerPosition
from headrace.schemas.messages import Delete, Message, body_digest, deletes_batch, last_deletes_batch
from headrace.schemas.records import Acceptance, Status
from headrace.schemas.sync_records import OwnerEnrolment, SyncDelete, SyncDeletes
from headrace.schemas.tables import TableSchema
from tests.unit.producers.scene import status_of

SENDER = OwnerEnrolment("s1", "store", "north")
BODY = SyncDeletes("n1/1", (SyncDelete(1, 7, "plant", "pumps", {}, 10, 20),))


@dataclass
class Centre:
    """Owners and a log. What is `late` is enrolled by another receiver just before the first record is appended.

    `then` happens once, behind that record.
    """

    owned: list[str] = field(default_factory=list)
    then: list[Callable[[], object]] = field(default_factory=list)
    log: list[tuple[ProducerPosition, Delete]] = field(default_factory=list)
    late: list[str] = field(default_factory=list)
    table: SlotTable = field(default_factory=lambda: SlotTable.create({"n1", "n2", "n3"}, 1, 12))
    pending: bool = False
    moving: bool = False
    routes: list[Route] = field(default_factory=list)
    statuses: list[Status] = field(default_factory=list)

    def append(
        self, _cluster: object, route: Route, deletes: Sequence[tuple[ProducerPosition, Delete]], _timeout_s: float
    ) -> None:
        """See repeat_deletes."""
        self.routes.append(route)
        self.owned += self.late
        self.late = []
        self.log += deletes
        if self.then:
            self.then.pop()()

    def look(self, _timeout_s: float) -> Route:
        """See Routing."""
        return Route(self.table, pending=self.pending, moving=self.moving)

    def online(self) -> list[Status]:
        """See MemberStatuses."""
        return self.statuses

    def start(self) -> None:
        """See StatusSource."""

    def devices(self, _sender: OwnerEnrolment, _database: str) -> list[str]:
        """See OwnerLog."""
        return list(self.owned)

    def refresh(self) -> None:
        """See Tables."""

    def newest(self, _database: str, _table: str) -> TableSchema:
        """See Catalogue."""
        return TableSchema("plant", "pumps", 1, ("pump",))


@pytest.fixture
def centre(monkeypatch: pytest.MonkeyPatch) -> Centre:
    """A centre without devices."""
    found = Centre()
    monkeypatch.setattr(sender_deletes, "repeat_deletes", found.append)
    return found


def apply(centre: Centre, number: int) -> int:
    """Apply the deletes under a number."""
    cluster: Any = SimpleNamespace(
        tables=SimpleNamespace(refresh=centre.refresh, catalogue=centre),
        routing=centre,
        watch=SimpleNamespace(start=centre.start, statuses=centre),
    )
    owners: Any = centre
    return apply_deletes(cluster, owners, SENDER, number, BODY)


def test_deletes_that_concern_no_device_are_a_fence(centre: Centre) -> None:
    """A request that outlived its receiver may bring the first device: its load, with a lower number, is void."""
    assert 2 == apply(centre, 6)
    [(position, fence), _] = centre.log
    assert (0, 0) == (fence.start_ns, fence.end_ns)
    producers: Any = {position.producer: position}
    older, newer = (SimpleNamespace(sender="s1", group="n1/1", number=number) for number in (5, 7))
    assert Ignored.VOID is void(older, producers)
    assert void(newer, producers) is None


def void(load: Any, producers: Any) -> Ignored | None:
    """What replicas find of a load that is not here yet."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("headrace.consumers.replication.sync_rules.load_identity", lambda _load: b"")
        return stale_load(load, set(), producers)


def test_devices_that_come_before_the_fence_are_deleted(centre: Centre) -> None:
    """The look at the owners is behind the fence: what is loaded before it has its devices enrolled by then."""
    centre.late = ["pumps,pump=p1"]
    assert 3 == apply(centre, 6)
    positions = [position for position, _ in centre.log]
    assert sorted(positions, key=lambda each: (each.batch, each.sequence)) == positions
    deleted = centre.log[1][1]
    assert ({"pump": ["p1"]}, 10, 20) == (
        {name: list(values) for name, values in deleted.tags.items()},
        deleted.start_ns,
        deleted.end_ns,
    )


def test_deletes_of_many_devices_are_sent_in_parts(centre: Centre, monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices with two tags of their own each make a record of each: all of them at once would fill the memory."""
    centre.owned = [f"pumps,id=i{number:02},pump=p{number:02}" for number in range(25)]
    schema = TableSchema("plant", "pumps", 1, ("id", "pump"))
    monkeypatch.setattr(centre, "newest", lambda *_: schema)
    monkeypatch.setattr(sender_deletes, "RECORDS_AT_ONCE", 10, raising=False)
    assert 27 == apply(centre, 6)
    assert 5 == len(centre.routes), "a fence, three parts, and a fence"
    positions = [(position.batch, position.sequence) for position, _ in centre.log]
    assert sorted(set(positions)) == positions
    assert 25 == len({tuple(each.tags["id"]) for _, each in centre.log if each.tags})


def test_deletes_with_many_values_are_sent_in_parts(centre: Centre, monkeypatch: pytest.MonkeyPatch) -> None:
    """A record may have thousands of names: a part of as many records as usual would fill the memory."""
    centre.owned = [f"pumps,id=i{number:02},pump={str(number) * 50}" for number in range(10, 35)]
    schema = TableSchema("plant", "pumps", 1, ("id", "pump"))
    monkeypatch.setattr(centre, "newest", lambda *_: schema)
    monkeypatch.setattr(sender_deletes, "BYTES_AT_ONCE", 1_024, raising=False)
    assert 27 == apply(centre, 6)
    assert 5 == len(centre.routes), "a fence, three parts, and a fence"
    positions = [(position.batch, position.sequence) for position, _ in centre.log]
    assert sorted(set(positions)) == positions
    monkeypatch.setattr(sender_deletes, "BYTES_AT_ONCE", 1, raising=False)
    centre.routes.clear()
    assert 27 == apply(centre, 7)
    assert 27 == len(centre.routes), "one that is larger goes alone"


def test_a_receiver_that_was_replaced_deletes_nothing_that_came_since(centre: Centre) -> None:
    """It looks at the owners once its successor's deletes are accepted, and a later file has enrolled its devices."""
    centre.owned = ["pumps,pump=p1"]

    def accepted_by_another() -> None:
        assert 3 == apply(centre, 6)
        centre.owned.append("pumps,pump=p2")

    centre.then = [accepted_by_another]
    assert 3 == apply(centre, 6)
    known: ProducerState | None = None
    counted = list[Delete]()
    for version, (position, body) in enumerate(centre.log):
        message = Message(position, body, body_digest(body))
        if repeats(message, known) is not None:
            continue
        if known is None or known.batch < position.batch:
            known = ProducerState(position.batch, version)
        known.seen.add((position.sequence, message.digest))
        counted.append(body)
    assert [["p1"]] == [list(each.tags["pump"]) for each in counted if each.tags]
    # The successor's: two fences and a delete. The other one's: its first fence alone, which was first.
    assert 3 == len(counted)


def test_members_that_change_meanwhile_have_the_deletes_repeated(centre: Centre) -> None:
    """Groups that have reached the newer table ignore those of the older one: all are sent by the newer."""
    before = centre.table

    def grow() -> None:
        centre.table, centre.moving = centre.table.add_node("n4"), True

    centre.then = [grow]
    with pytest.raises(MembersChange) as raised:
        apply(centre, 6)
    assert raised.value.retriable
    # The last fence is not sent: it would end deletes of the newer table as well.
    assert [before.version] == [each.table.version for each in centre.routes]
    centre.statuses = [status_of(group="n4", accepted=accepted(2, "n1", "n2", "n3"))]
    centre.log.clear()
    assert 2 == apply(centre, 6)
    assert [deletes_batch(6, 2), last_deletes_batch(6)] == [position.batch for position, _ in centre.log]


def accepted(table_version: int, *groups: str) -> tuple[Acceptance, ...]:
    """What a member shows of the groups that have handed over something to it."""
    return tuple(Acceptance(group, 1, 5, 0, table_version) for group in groups)


def test_groups_that_gain_slots_are_waited_for_until_they_have_taken_over_from_all(centre: Centre) -> None:
    """They do not know yet which deletes these have behind them: late ones of a receiver would count there."""
    smaller = centre.table.remove_node("n2")
    for table, gaining, donors in (
        (centre.table.add_node("n4"), ("n4",), ("n1", "n2", "n3")),
        # That were there before, too: either may be younger than a list of deletes.
        (smaller, ("n1", "n3"), ("n2",)),
        (smaller.add_node("n2"), ("n2",), ("n1", "n3")),
    ):
        centre.table, centre.moving = table, True
        assert {each: set(donors) for each in gaining} == {
            each: set(table.donors(each)) for each in table.headers if table.donors(each)
        }
        whole = [status_of(group=each, accepted=accepted(table.version, *donors)) for each in gaining]
        for statuses in (
            [],
            whole[1:],
            [*whole[1:], status_of(group=gaining[0], accepted=accepted(table.version, *donors[1:]))],
            # By an earlier change.
            [*whole[1:], status_of(group=gaining[0], accepted=accepted(table.version - 1, *donors))],
            # Another group.
            [*whole[1:], status_of(group=donors[0], accepted=accepted(table.version, *donors))],
        ):
            centre.statuses = statuses
            with pytest.raises(MembersChange, match=f"group {gaining[0]} has not taken over from"):
                apply(centre, 6)
            assert [] == centre.log
        centre.statuses = whole
        apply(centre, 6)
        centre.log.clear()
        # Once the change is over everything has arrived, whoever shows it.
        centre.statuses, centre.moving = [], False
        apply(centre, 7)
        centre.log.clear()


def test_a_new_group_without_a_log_is_waited_for(centre: Centre) -> None:
    """Writers take the former table until then, which counts no more."""
    centre.pending = True
    with pytest.raises(MembersChange, match="has no log yet"):
        apply(centre, 6)
    assert [] == centre.log
