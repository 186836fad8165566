"""What the leader of a donor appends to the topics of the next holders, and when it appends it again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import AppendFailed, LogTruncated
from headrace.consumers.migration import hand_over_sender, own_records
from headrace.consumers.migration.hand_over_sender import SEND_AGAIN_S, TARGET_RETRY_S, HandOverSender
from headrace.consumers.migration.own_records import OwnRecords
from headrace.consumers.replication.change_view import ChangeView
from headrace.schemas.group_changes import BarrierPhase, HandedOver, HandedRows, HandOverAccepted, Takeover
from headrace.schemas.messages import decode_message
from headrace.schemas.records import Acceptance, Status
from tests.unit.replication.slot_logs import SlotLog, rows_of, rows_write
from tests.unit.statuses import STATUS

FORMAL = BarrierPhase.FORMAL
HEADERS = (("format", b"3"),)


@dataclass
class Time:
    """A clock that is set by hand."""

    now_s: float = 100.0

    def monotonic_s(self) -> float:
        """See Clock."""
        return self.now_s


@dataclass
class Scene:
    """A donor, and a group that took two slots."""

    donor: SlotLog = field(default_factory=lambda: SlotLog("n1", ("n1", "n2")))
    taker: SlotLog = field(default_factory=lambda: SlotLog("n6", ("n6", "n1"), era=2, birth=2, gains=(3, 4)))
    log: MemoryLog = field(default_factory=MemoryLog)
    time: Time = field(default_factory=Time)
    statuses: list[Status] = field(default_factory=list)

    def __post_init__(self) -> None:
        """The slots have left."""
        self.log.create_topic(self.donor.topic, {})
        self.log.create_topic(self.taker.topic, {})
        self.taker.claim("n6")
        self.donor.claim("n1")
        self.donor.barrier(FORMAL, moves={self.taker: (3, 4)})
        self.sender = self.new_sender()
        self._known = 0

    def new_sender(self) -> HandOverSender:
        """That of another leader."""
        clock: Any = self.time
        return HandOverSender(self.log, self.donor.topic, self.donor.key, "n1/i/hand-over", self, clock)

    def online(self) -> list[Status]:
        """See OnlineStatuses."""
        return self.statuses

    @property
    def view(self) -> ChangeView:
        """What the leader sees."""
        return ChangeView.of(self.donor.replica.state.changes)

    def turn(self) -> Any:
        """One turn, with the donor's log as it is by now."""
        for value in self.donor.values[self._known :]:
            self.log.store(self.donor.topic, value, None, HEADERS)
        self._known = len(self.donor.values)
        return self.sender.turn(self.view)

    def arrived(self) -> list[HandedOver]:
        """What is in the topic of the next holder."""
        found = [decode_message(each.value).body for each in self.log.topic(self.taker.topic).records]
        handed = [each for each in found if isinstance(each, HandedOver)]
        assert found == handed
        return handed

    def accept(self) -> None:
        """The next holder reads its topic, and a member of it shows that."""
        read = len(self.taker.values) - 1
        for each in self.log.topic(self.taker.topic).records[read:]:
            self.taker.append_value(each.value)
        position = self.taker.replica.state.changes.origins[self.donor.key].position
        topic_id = self.log.describe(self.taker.topic).topic_id
        accepted = (Acceptance.of(self.donor.key, position),)
        self.statuses = [replace(STATUS, node="n6", group="n6", topic_id=topic_id, accepted=accepted)]

    def note(self, accepted: Any) -> None:
        """The leader's note of what was accepted counts."""
        leader = self.donor.replica.state.leader
        assert leader is not None
        self.donor.append(HandOverAccepted(leader, *accepted))


def test_takeover_and_late_rows_arrive_in_order() -> None:
    """The takeover first; late rows are read again from the own log, by their offset."""
    scene = Scene()
    scene.donor.append(rows_write({"3a": 1, "0a": 2}))
    scene.donor.append(rows_write({"0a": 3}))
    scene.donor.append(rows_write({"4a": 4}))
    assert scene.turn() is None
    found = scene.arrived()
    assert isinstance(found[0].body, Takeover)
    rows = [each.body for each in found if isinstance(each.body, HandedRows)]
    assert [{"3a": 1, "0a": 2}, {"4a": 4}] == [rows_of(each.write) for each in rows]
    assert [(3,), (4,)] == [each.slots for each in rows]
    scene.accept()
    accepted = scene.turn()
    assert (scene.taker.key, found[-1].position) == accepted
    assert scene.sender.handed_over(scene.view)
    scene.note(accepted)
    assert not any(scene.view.due.values())


def test_offsets_with_gaps_are_found() -> None:
    """The offset of a record is not its number."""
    log = MemoryLog()
    log.create_topic("t", {})
    offsets = []
    for number in range(20):
        offsets.append(log.store("t", bytes([number]), None, ()))
        log.gap("t", number % 3)
    own = OwnRecords(log, "t")
    wanted = [offsets[3], offsets[4], offsets[17]]
    assert [bytes([3]), bytes([4]), bytes([17])] == [each.value for each in own.read(wanted, 100).values()]
    # Back again, and in another order.
    assert [offsets[5], offsets[2]] == list(own.read([offsets[5], offsets[2]], 100))
    own.close()


def test_a_record_that_is_gone_is_an_error() -> None:
    """It is never left out: what follows it would not count, and it would be lost."""
    log = MemoryLog()
    log.create_topic("t", {})
    for _ in range(9):
        log.store("t", b"value", None, ())
    log.gap("t")
    log.store("t", b"value", None, ())
    with pytest.raises(LogTruncated):
        OwnRecords(log, "t").read([9], 100)
    log.trim("t", 5)
    with pytest.raises(LogTruncated):
        OwnRecords(log, "t").read([3], 100)


def test_own_records_are_read_in_bounded_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """By bytes and by polls; the first record is always among them."""
    log = MemoryLog()
    log.create_topic("t", {})
    for _ in range(10):
        log.store("t", b"v" * 100, None, ())
    own = OwnRecords(log, "t")
    assert [0] == list(own.read(range(10), 5))
    assert [0, 1, 2] == list(own.read(range(10), 300))
    monkeypatch.setattr(own_records, "READ_RECORDS_MAX", 1)
    monkeypatch.setattr(own_records, "READ_POLLS_MAX", 4)
    assert [0, 1, 2, 3] == list(own.read(range(10), 10_000))


def test_nothing_is_sent_twice_while_the_next_holder_may_still_read_it() -> None:
    """And all of it again, from the accepted record on, when it shows nothing for some time."""
    scene = Scene()
    scene.donor.append(rows_write({"3a": 1}))
    scene.turn()
    count = len(scene.arrived())
    scene.turn()
    assert count == len(scene.arrived())
    scene.time.now_s += SEND_AGAIN_S
    scene.turn()
    first, again = scene.arrived()[:count], scene.arrived()[count:]
    assert first == again


def test_a_lost_record_is_sent_again_while_others_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every record sent later is ignored, so the wait begins with the first that was not accepted."""
    scene = Scene()
    scene.turn()
    scene.accept()
    scene.turn()
    store = scene.log.store
    monkeypatch.setattr(scene.log, "store", lambda *_: 0)
    scene.donor.append(rows_write({"3a": 1}))
    scene._known = len(scene.donor.values)
    store(scene.donor.topic, scene.donor.values[-1], None, HEADERS)
    scene.sender.turn(scene.view)
    monkeypatch.setattr(scene.log, "store", store)
    for number in range(5):
        scene.time.now_s += SEND_AGAIN_S / 4
        scene.donor.append(rows_write({"3a": 2 + number}))
        scene.turn()
    scene.accept()
    due = [each.position for each in scene.view.due[scene.taker.key]]
    assert due[-1] == scene.taker.replica.state.changes.origins[scene.donor.key].position


def test_what_is_in_flight_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """By records and by bytes; the rest follows what was accepted."""
    monkeypatch.setattr(hand_over_sender, "IN_FLIGHT_RECORDS_MAX", 3)
    scene = Scene()
    for number in range(10):
        scene.donor.append(rows_write({"3a": number}))
    scene.turn()
    assert 3 == len(scene.arrived())
    scene.turn()
    assert 3 == len(scene.arrived())
    scene.accept()
    scene.turn()
    assert 6 == len(scene.arrived())
    monkeypatch.setattr(hand_over_sender, "IN_FLIGHT_BYTES_MAX", 1)
    scene.accept()
    scene.turn()
    # One that is larger than the room is sent alone.
    assert 7 == len(scene.arrived())


def test_a_new_leader_begins_behind_what_was_accepted() -> None:
    """It knows nothing of what its predecessor has sent."""
    scene = Scene()
    scene.donor.append(rows_write({"3a": 1}))
    scene.turn()
    scene.accept()
    scene.donor.append(rows_write({"3a": 2}))
    scene.sender.close()
    scene.sender = scene.new_sender()
    count = len(scene.arrived())
    scene.turn()
    [found] = scene.arrived()[count:]
    assert isinstance(found.body, HandedRows)
    assert {"3a": 2} == rows_of(found.body.write)


@pytest.mark.parametrize(
    "change",
    [
        lambda status: replace(status, topic_id="an earlier topic"),
        lambda status: replace(status, group="n7"),
        lambda status: replace(status, log_lost=True),
        lambda status: replace(status, accepted=(replace(status.accepted[0], birth=9),)),
    ],
    ids=["another topic", "another group", "a lost log", "another birth"],
)
def test_only_members_of_this_very_topic_show_what_was_accepted(change: Callable[[Status], Status]) -> None:
    """A status of another log proves nothing."""
    scene = Scene()
    scene.turn()
    scene.accept()
    scene.statuses = [change(status) for status in scene.statuses]
    assert scene.turn() is None
    assert not scene.sender.handed_over(scene.view)


def test_a_topic_that_is_missing_is_waited_for() -> None:
    """The change that ends its group names another one; until then it is asked for once in a while, and logged once."""
    scene = Scene()
    scene.log.hidden.add(scene.taker.topic)
    with capture_logs() as logs:
        for _ in range(3):
            assert scene.turn() is None
            scene.time.now_s += TARGET_RETRY_S
        assert scene.turn() is None
    assert ["hand-over not sent"] == [each["event"] for each in logs if each["log_level"] == "warning"]
    scene.log.hidden.clear()
    assert [] == scene.arrived()
    scene.turn()
    assert [] == scene.arrived()
    scene.time.now_s += TARGET_RETRY_S
    scene.turn()
    assert [] != scene.arrived()


def test_a_topic_that_takes_nothing_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """A refused record is sent again from the accepted one on, and sooner than one that is only late."""
    scene = Scene()
    scene.donor.append(rows_write({"3a": 1}))
    store = scene.log.store

    def refuse(topic: str, value: bytes, key: bytes | None, headers: Any) -> int:
        if topic == scene.taker.topic:
            raise AppendFailed("the topic is closed")
        return store(topic, value, key, headers)

    appender = scene.log.appender

    class Reporting:
        """Reports a refusal, as Kafka does."""

        def __init__(self, *, repeats: bool = False) -> None:
            self.inner = appender(repeats=repeats)

        def append(self, topic: str, value: bytes, **how: Any) -> None:
            """See Appender."""
            try:
                refuse(topic, value, None, how["headers"])
            except AppendFailed as error:
                how["on_delivery"](None, error)

        def close(self, _flush_s: float) -> None:
            """See Appender."""

    monkeypatch.setattr(scene.log, "appender", Reporting)
    scene.turn()
    assert scene.turn() is None
    assert [] == scene.arrived()
    monkeypatch.setattr(scene.log, "appender", appender)
    scene.sender.close()
    scene.time.now_s += TARGET_RETRY_S
    scene.turn()
    scene.accept()
    assert scene.turn() is not None


def test_a_topic_that_was_created_again_gets_everything() -> None:
    """Nothing of what was sent to the one before is in it."""
    scene = Scene()
    scene.turn()
    count = len(scene.arrived())
    scene.log.delete_topic(scene.taker.topic)
    scene.log.create_topic(scene.taker.topic, {})
    scene.time.now_s += hand_over_sender.IDENTITY_CHECK_S
    scene.turn()
    assert count == len(scene.arrived())


def test_nothing_is_opened_while_nothing_is_due(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group that gave its slots up long ago costs its leader nothing."""
    scene = Scene()
    scene.turn()
    scene.accept()
    scene.note(scene.turn())
    scene.sender = scene.new_sender()
    for name in ("reader", "appender", "describe"):
        monkeypatch.setattr(scene.log, name, lambda *_, **__: pytest.fail("the log was asked"))
    assert scene.sender.turn(scene.view) is None
