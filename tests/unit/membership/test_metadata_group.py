"""A node in the metadata group: it leads by what it reads back, and answers operators by what the log decided."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from headrace.connectors.http import NodeUnreachable
from headrace.connectors.log.memory import MemoryAppender, MemoryLog
from headrace.connectors.log.port import AppendFailed
from headrace.consumers.membership.change_requests import ChangeUnconfirmed, NotMetadataLeader
from headrace.consumers.membership.membership_follower import LOOK_INTERVAL_S, MembershipFollower
from headrace.consumers.membership.metadata_group import READ_BACK_TIMEOUT_S, MetadataGroup, StartSettings
from headrace.consumers.membership.requests import (
    CancelTooLate,
    ChangeRequest,
    ChangeRunning,
    ChangesUnsupported,
    MigrationUnfinished,
    NoChange,
)
from headrace.consumers.membership.ring import ClusterTooSmall, NodeExists, UnknownNode
from headrace.consumers.membership.running_change import Phase
from headrace.consumers.replication.failure_detector import FailureDetector
from headrace.schemas.errors import HeadraceError
from headrace.schemas.membership_records import ChangeKind, MembershipChange, PreDone, SlotDone
from headrace.schemas.presence import Presence
from headrace.schemas.records import Create, encode_membership
from tests.manual_clock import ManualClock
from tests.unit.membership.test_membership_follower import TOPIC

# In ring order, which is also the order of their turns.
NODES = ("n2", "n1", "n3")
JOINER = Presence("n4", "run-n4", "store-n4", "", 2, 12, False, 0, 0, True)
ADD = ChangeRequest("r1", ChangeKind.ADD, "n4")
REMOVE = ChangeRequest("r1", ChangeKind.REMOVE, "n3")


class Heartbeats:
    """The statuses as a test sets them."""

    def __init__(self, node: str) -> None:
        self.node = node
        self.incarnation = f"run-{node}"
        self.detector = FailureDetector()
        self.fenced = False


class Scene:
    """Three nodes on one log; n2 is the first on the ring. `present` are the nodes that report themselves."""

    def __init__(self, changes: bool = True) -> None:
        self.log = MemoryLog(clock_ms=lambda: int(self.clock.now_s * 1_000))
        self.clock = ManualClock()
        self.log.create_topic(TOPIC, {})
        self.append(Create(NODES, 2, 12))
        self.present = list(NODES)
        self.joiners: list[Presence] = []
        self.groups: dict[str, MetadataGroup] = {}
        self.heartbeats = {node: Heartbeats(node) for node in NODES}
        for node in NODES:
            follower = MembershipFollower(self.log, TOPIC, clock=self.clock)
            started = StartSettings(f"store-{node}", 2, 12, changes)
            self.groups[node] = MetadataGroup(self.log, TOPIC, follower, self.heartbeats[node], started, self.clock)

    @property
    def leader(self) -> MetadataGroup:
        """The node that leads."""
        (found,) = [group for group in self.groups.values() if group.leads]
        return found

    def append(self, record: MembershipChange | Create) -> None:
        """Append a record as somebody else."""
        self.log.store(TOPIC, encode_membership("w", record), None, ())

    def turn(self, turns: int = 4) -> None:
        """Some turns of every node, an interval apart."""
        for _ in range(turns):
            self.clock.now_s += LOOK_INTERVAL_S
            reports = [self.groups[node].presence(f"http://{node}") for node in self.present]
            reports += self.joiners
            for node in self.present:
                self.receive(node, reports)
                self.groups[node].turn()

    def receive(self, node: str, reports: list[Presence]) -> None:
        """A node reads what others report."""
        for each in reports:
            self.heartbeats[node].detector.observe_presence(int(self.clock.now_s * 1_000), each)

    def report(self) -> None:
        """Every group has its members of the first phase."""
        change = self.leader.state.change
        assert change is not None
        for group in change.groups_waiting:
            self.append(PreDone(change.number, group, group, 1, 1))

    def error(self, request: ChangeRequest) -> HeadraceError:
        """The refusal of a request at the leader, after which the log is as it was."""
        before = self.log.describe(TOPIC).end
        with pytest.raises(HeadraceError) as caught:
            self.leader.requests.begin(request, timeout_s=0)
        self.turn()
        assert before == self.log.describe(TOPIC).end
        return caught.value


@pytest.fixture
def scene() -> Iterator[Scene]:
    """A metadata group that n2 leads."""
    made = Scene()
    made.turn()
    assert made.groups["n2"].leads
    yield made
    for group in made.groups.values():
        group.stop()


def test_one_node_leads_and_another_takes_over(scene: Scene) -> None:
    """Once the leader is offline; it leads no longer as soon as it has read that."""
    assert ("n2", "http://n2") == scene.groups["n3"].leader()
    scene.present.remove("n2")
    scene.turn(8)
    assert scene.groups["n1"].leads
    assert 2 == scene.groups["n1"].state.epoch
    scene.present.append("n2")
    scene.turn()
    assert scene.leader is scene.groups["n1"]


def test_an_idle_group_appends_nothing(scene: Scene) -> None:
    """No more claims, above all."""
    before = scene.log.describe(TOPIC).end
    scene.turn(20)
    assert before == scene.log.describe(TOPIC).end


def test_a_request_gets_one_result_however_often_it_is_sent(scene: Scene) -> None:
    """At any node, and after the change has ended; a change of the same kind under another id is another request."""
    ticket = scene.leader.requests.submit(REMOVE)
    with pytest.raises(ChangeUnconfirmed):
        ticket.answer()
    assert ticket is scene.leader.requests.submit(REMOVE)
    with pytest.raises(ChangeRunning, match="r1 is being decided"):
        scene.leader.requests.submit(ChangeRequest("r2", ChangeKind.REMOVE, "n1"))
    scene.turn()
    assert (1, 2, Phase.PRE) == (ticket.answer().number, ticket.answer().version, ticket.answer().phase)
    assert isinstance(scene.error(ChangeRequest("r2", ChangeKind.REMOVE, "n1")), ChangeRunning)
    scene.report()
    scene.turn()
    for group in scene.groups.values():
        assert (1, Phase.MIGRATING) == (group.requests.begin(REMOVE).number, group.requests.begin(REMOVE).phase)
    assert 1 == scene.leader.state.changes


@pytest.mark.parametrize(
    ("kind", "node", "expected"),
    [
        (ChangeKind.REMOVE, "n9", UnknownNode),
        (ChangeKind.ADD, "n1", NodeExists),
        (ChangeKind.ADD, "n4", NodeUnreachable),
    ],
)
def test_a_refusal_has_a_type_and_changes_nothing(
    scene: Scene, kind: ChangeKind, node: str, expected: type[HeadraceError]
) -> None:
    """It is the answer at once."""
    assert isinstance(scene.error(ChangeRequest("r1", kind, node)), expected)


def test_a_removal_to_its_end(scene: Scene) -> None:
    """The next change waits for the last slot; then the removed node is exiled."""
    scene.leader.requests.submit(REMOVE)
    scene.turn()
    scene.report()
    scene.turn()
    later = ChangeRequest("r2", ChangeKind.REMOVE, "n1")
    assert isinstance(scene.error(later), MigrationUnfinished)
    change = scene.leader.state.change
    assert change is not None
    for node in ("n1", "n2"):
        scene.append(SlotDone(1, node, tuple(slot for slot, _ in change.table.moved)))
    scene.turn()
    assert ("n3",) == scene.leader.state.exiled
    assert isinstance(scene.error(later), ClusterTooSmall)
    assert Phase.DONE is scene.leader.requests.begin(REMOVE).phase


def test_nodes_that_cannot_carry_out_a_change_refuse_it() -> None:
    """As nodes of an earlier build, which only plans changes."""
    scene = Scene(changes=False)
    scene.turn()
    assert isinstance(scene.error(REMOVE), ChangesUnsupported)


def test_another_node_names_the_leader(scene: Scene) -> None:
    """With its address."""
    with pytest.raises(NotMetadataLeader, match="n2 does") as caught:
        scene.groups["n1"].requests.begin(REMOVE)
    assert ("n2", "http://n2") == (caught.value.leader, caught.value.http)
    scene.heartbeats["n2"].fenced = True
    with pytest.raises(NotMetadataLeader) as caught:
        scene.groups["n2"].requests.begin(REMOVE)
    assert "" == caught.value.leader


def test_a_cancellation_names_its_change(scene: Scene) -> None:
    """So a repeat never ends a later change, and gets the first result."""
    with pytest.raises(NoChange):
        scene.leader.requests.cancel(1)
    scene.leader.requests.submit(REMOVE)
    scene.turn()
    assert scene.leader.requests.request_cancel(1)
    scene.turn()
    assert Phase.CANCELLED is scene.leader.requests.cancel(1).phase
    scene.leader.requests.submit(ChangeRequest("r2", ChangeKind.REMOVE, "n3"))
    scene.turn()
    assert Phase.CANCELLED is scene.groups["n1"].requests.cancel(1).phase
    assert scene.leader.state.change is not None
    scene.report()
    scene.turn()
    with pytest.raises(CancelTooLate):
        scene.leader.requests.cancel(2)


def test_a_lost_record_is_appended_again(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a timeout; until then nothing else is. A delivery report without the record answers nothing."""
    append = MemoryAppender.append
    monkeypatch.setattr(MemoryAppender, "append", lambda *_args, on_delivery, **_rest: on_delivery(7, None))
    ticket = scene.leader.requests.submit(REMOVE)
    scene.turn(1)
    monkeypatch.setattr(MemoryAppender, "append", append)
    scene.turn(2)
    assert not ticket.decided
    assert None is scene.leader.state.change
    scene.turn(int(READ_BACK_TIMEOUT_S / LOOK_INTERVAL_S) + 2)
    assert 1 == ticket.answer().number


def test_a_refused_append_is_tried_again_soon(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record is certainly not in the log, so nobody waits for it."""
    append = MemoryAppender.append
    failed = AppendFailed("refused")
    monkeypatch.setattr(MemoryAppender, "append", lambda *_args, on_delivery, **_rest: on_delivery(None, failed))
    ticket = scene.leader.requests.submit(REMOVE)
    scene.turn(1)
    monkeypatch.setattr(MemoryAppender, "append", append)
    scene.turn(3)
    assert 1 == ticket.answer().number


def test_a_refusal_is_no_answer_while_a_record_is_on_its_way(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    """The record may still arrive and count."""
    sent: list[bytes] = []
    append = MemoryAppender.append
    scene.joiners = [JOINER]
    scene.turn(1)
    monkeypatch.setattr(MemoryAppender, "append", lambda _self, _topic, value, **_rest: sent.append(value))
    ticket = scene.leader.requests.submit(ADD)
    scene.turn(1)
    monkeypatch.setattr(MemoryAppender, "append", append)
    # The joiner is gone by the time at which the record would be appended again.
    scene.joiners = []
    scene.turn(int(READ_BACK_TIMEOUT_S / LOOK_INTERVAL_S) + 2)
    for _ in range(2):
        with pytest.raises(ChangeUnconfirmed):
            ticket.answer()
        with pytest.raises(ChangeUnconfirmed):
            scene.leader.requests.submit(ADD)
    scene.log.store(TOPIC, sent[0], None, ())
    scene.turn()
    assert 1 == scene.leader.requests.begin(ADD).number


def test_a_node_reports_itself(scene: Scene) -> None:
    """Where it is in the log, with which settings, and why it may not lead."""
    found, records = scene.groups["n1"].presence("http://n1"), scene.log.describe(TOPIC).end
    assert ("n1", "run-n1", "store-n1", 2, 12, True, 1, records, "") == (
        *(found.node, found.incarnation, found.store, found.replication, found.slots),
        *(found.eligible, found.epoch, found.records, found.reason),
    )
    scene.groups["n1"].follower.stopped = "a later build"
    assert (False, "a later build") == (
        scene.groups["n1"].presence("").eligible,
        scene.groups["n1"].presence("").reason,
    )
