"""Quorum writes on a log in memory: which members count as copies, and what a missed quorum reports."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest

from headrace.connectors.log.append import append_one
from headrace.producers import writer as writer_room
from headrace.producers.acks import QuorumInvalid, QuorumTimeout, QuorumTooLarge
from headrace.producers.sender import Sender
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.messages import Delete
from headrace.schemas.presence import status_key
from headrace.schemas.receipts import WrittenRecords, receipt_of, value_digest
from headrace.schemas.records import encode_status
from tests.unit.producers.scene import NODES, TOPICS, FollowedAppender, Scene, readings, status_of
from tests.unit.statuses import newer


@pytest.mark.parametrize(("quorum", "error"), [(4, QuorumTooLarge), (-1, QuorumInvalid)])
def test_an_impossible_quorum_is_refused_at_once(scene: Scene, quorum: int, error: type[HeadraceError]) -> None:
    """A quorum above the number of members is refused, never reduced."""
    with pytest.raises(error, match=f"quorum {quorum}"):
        scene.writer(quorum=quorum)


def single_group(scene: Scene) -> tuple[pa.Table, str]:
    """A row, and the group that takes it."""
    table = readings(["a"], [0], v=[1])
    with scene.writer() as writer:
        writer.write(table, ["host"])
    return table, scene.messages()[0][0]


def test_a_quorum_is_reached_when_enough_live_members_hold_the_rows(scene: Scene) -> None:
    """The write returns once two members report the record as durable."""
    table, group = single_group(scene)
    appender = FollowedAppender(scene, {group: ("n1", "n2")}, late=("n2",))
    with scene.writer(appender=appender, quorum=2, quorum_timeout_ms=20_000) as writer:
        writer.write(table, ["host"])
        assert {TOPICS.forward(group): 1} == writer.newest()


def test_a_write_waits_for_no_group_but_its_own(scene: Scene) -> None:
    """A group whose members do not confirm an earlier write delays no write to another group."""
    groups: dict[str, pa.Table] = {}
    with scene.writer() as writer:
        for number in range(50):
            table = readings([f"h{number}"], [0], v=[1])
            counts = {name: len(scene.log.topic(TOPICS.forward(name)).records) for name in NODES}
            writer.write(table, ["host"])
            grown = next(name for name in NODES if len(scene.log.topic(TOPICS.forward(name)).records) > counts[name])
            groups.setdefault(grown, table)
    (_short, short_rows), (held, held_rows), *_ = groups.items()
    appender = FollowedAppender(scene, {held: NODES})
    with scene.writer(appender=appender, quorum=2, quorum_timeout_ms=200) as writer:
        with pytest.raises(QuorumTimeout):
            writer.write(short_rows, ["host"])
        writer.write(held_rows, ["host"])


def test_a_missed_quorum_is_an_unknown_state_that_names_lagging_members(scene: Scene) -> None:
    """One member holds it, one is behind, one has sent no status: the rows are in the log, and the state is unknown."""
    table, group = single_group(scene)
    scene.broadcast("n2", group, 0)
    appender = FollowedAppender(scene, {group: ("n1",)})
    writer = scene.writer(appender=appender, quorum=2, quorum_timeout_ms=300)
    with writer, pytest.raises(QuorumTimeout) as raised:
        writer.write(table, ["host"])
    assert {group: {"n1": "holds it", "n2": "holds up to offset 0 of 1", "n3": "has sent no status"}} == {
        name: dict(sorted(members.items())) for name, members in raised.value.lagging.items()
    }
    assert 1 == raised.value.rows
    assert (
        "1 rows are in the log but were not confirmed by 2 members within 300 ms after that: " in raised.value.message
    )


def test_a_missed_quorum_has_also_the_rows_behind_it_that_are_not_in_the_log(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large call ends at its first block without a quorum: only the rows of that one are in the log."""
    monkeypatch.setattr(writer_room, "QUORUM_BLOCK_ROWS_MAX", 2)
    with scene.writer(quorum=2, quorum_timeout_ms=100) as writer, pytest.raises(QuorumTimeout) as raised:
        writer.write(readings(["a"] * 5, list(range(5)), v=[1] * 5), ["host"])
    assert raised.value.message.startswith("2 rows are in the log but were not confirmed by 2 members")
    assert raised.value.message.endswith("; the 3 rows behind them were not written")
    assert (2, 2) == (raised.value.rows, len(scene.rows()))


def test_a_member_of_a_newer_build_is_named_as_one(scene: Scene) -> None:
    """It may hold the rows: that it counts for nothing is for this client to cure."""
    table, group = single_group(scene)
    value = newer(encode_status(status_of(group=group, node="n2")))
    append_one(scene.log, TOPICS.status, value, key=status_key(group, "n2"))
    with scene.writer(quorum=2, quorum_timeout_ms=300) as writer, pytest.raises(QuorumTimeout) as raised:
        writer.write(table, ["host"])
    assert "n2 sends statuses that this build cannot read: upgrade this client" in raised.value.message


def test_a_log_that_was_cut_gives_no_quorum_by_what_members_had_of_it(scene: Scene) -> None:
    """Statuses that report the offset of a new record as durable, of the records that were cut off, do not count.

    They look alike before and after the cut: same topic, incarnation and store, a durable offset beyond it.
    """
    table, group = single_group(scene)
    with scene.writer() as writer:
        for _ in range(9):
            writer.write(table, ["host"])
    for node in NODES:
        scene.hold(node, group)
    scene.log.truncate(TOPICS.forward(group), 3)
    with scene.writer(quorum=2, quorum_timeout_ms=300) as writer, pytest.raises(QuorumTimeout) as raised:
        writer.write(table, ["host"])
    assert {"holds offset 3, but has not shown that it is the record written there"} == set(
        raised.value.lagging[group].values()
    )
    # The next record there is held by members that have read it.
    with scene.writer(appender=FollowedAppender(scene, {group: ("n1", "n2")}), quorum=2) as writer:
        writer.write(table, ["host"])


def test_what_an_earlier_call_wrote_is_not_asked_for_again(scene: Scene) -> None:
    """A block that was not confirmed is reported once; the next one needs the receipts of its own records."""
    sender = Sender(scene.cluster.appender, scene.cluster.topic_of, receipts=True)
    for offset in (0, 1):
        [message] = sender.encode([(GroupKey("n1", 1), Delete("db", "t", {}, None, None), 1)])
        sender.append([message])
        sender.flush()
        receipts = (receipt_of(offset, value_digest(message.value)),)
        assert {GroupKey("n1", 1): WrittenRecords(offset, receipts)} == sender.written()


def test_an_offset_that_the_broker_does_not_report_confirms_nothing(scene: Scene) -> None:
    """librdkafka reports a repeated message without its offset: no member can have its receipt."""

    class OffsetlessAppender(FollowedAppender):
        def append(self, topic: str, value: bytes, **given: Any) -> None:
            report = given.pop("on_delivery", None)
            super().append(topic, value, on_delivery=report and (lambda _offset, error: report(-1_001, error)), **given)

    table, group = single_group(scene)
    writer = scene.writer(appender=OffsetlessAppender(scene, {group: NODES}), quorum=2, quorum_timeout_ms=300)
    with writer, pytest.raises(QuorumTimeout):
        writer.write(table, ["host"])


def test_members_out_of_sync_or_without_their_log_are_no_copies(scene: Scene) -> None:
    """A member that holds the very record and reports that it is not in sync, or that its log is lost, does not count."""
    table, group = single_group(scene)
    states: tuple[dict[str, Any], ...] = ({"eligible": False}, {"log_lost": True})
    for state in states:
        appender = FollowedAppender(scene, {group: NODES}, **state)
        writer = scene.writer(appender=appender, quorum=2, quorum_timeout_ms=300)
        with writer, pytest.raises(QuorumTimeout) as raised:
            writer.write(table, ["host"])
        assert {"is not in sync"} == set(raised.value.lagging[group].values())
