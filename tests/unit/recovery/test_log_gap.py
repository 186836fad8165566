"""Where a log that has lost records continues: which gap counts, and who continues behind it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.connectors.log.append import append_one
from headrace.connectors.log.memory import MemoryLog
from headrace.consumers.recovery.log_gap import GapRefused, GapSeeker, joins, last_common_offset, new_gap
from headrace.consumers.replication.group_health import Event, State
from headrace.consumers.replication.group_state import GroupState, LogBase
from headrace.consumers.replication.hash_chain import next_chain, record_digest
from headrace.schemas.messages import NO_CHAIN, Anchor, Gap, Message, ProducerPosition, encode_message
from tests.unit.recovery.test_steps import TOPIC, Recovery, append_records

CHAIN = b"c" * 16


@pytest.fixture
def log() -> MemoryLog:
    """An empty log."""
    made = MemoryLog()
    made.create_topic(TOPIC, {})
    return made


@pytest.fixture
def recovery(tmp_path: Path) -> Iterator[Recovery]:
    """A group that has lost its log."""
    made = Recovery(tmp_path)
    made.node.group.mark_log_lost("the log was truncated")
    yield made
    made.gap_search.stop()
    made.node.close()


def append_gap(log: MemoryLog, topic_id: str, offset: int, version: int = 0, chain: bytes = NO_CHAIN) -> LogBase:
    """Append an accepted gap; the base behind it."""
    gap = Gap(topic_id, offset, Anchor(-1, version, chain))
    append_one(log, TOPIC, encode_message(Message(ProducerPosition("n2/gap", log.describe(TOPIC).end, 0), gap)))
    return LogBase.of(gap)


def test_only_the_anchor_itself_continues_behind_a_gap() -> None:
    """Equal versions with another chain are other records."""
    base = LogBase("t", 9, 5, CHAIN)
    assert joins(base, GroupState(version=5, chain=CHAIN))
    assert not joins(base, GroupState(version=5, chain=b"d" * 16))
    assert not joins(base, GroupState(version=4, chain=CHAIN))


def test_a_gap_counts_once_and_in_its_own_topic(log: MemoryLog) -> None:
    """That of an earlier topic was copied with its records; the base of the group, and older ones, are behind it."""
    topic_id = log.describe(TOPIC).topic_id
    append_gap(log, "an earlier topic", 8)
    old, found, later = (append_gap(log, topic_id, offset) for offset in (5, 7, 9))
    assert old == GapSeeker(log, TOPIC).seek(LogBase())
    assert found == GapSeeker(log, TOPIC).seek(old)
    assert later == GapSeeker(log, TOPIC).seek(found)
    assert GapSeeker(log, TOPIC).seek(later) is None


def test_the_newest_common_record_is_found_by_its_content(log: MemoryLog) -> None:
    """A log that was cut at 3 and written on has records at the same offsets, and none of them is counted twice."""
    append_records(log, 6)
    history, chain = [(-1, NO_CHAIN)], NO_CHAIN
    for number in range(6):
        chain = next_chain(chain, record_digest(f"no message {number}".encode()))
        history.append((number, chain))
    log.truncate(TOPIC, 3)
    for number in range(4):
        append_one(log, TOPIC, f"another message {number}".encode())
    assert 2 == last_common_offset(log, TOPIC, history)
    state = GroupState(version=6, offset=5, chain=chain)
    described = log.describe(TOPIC)
    gap = new_gap(state, described.topic_id, described, lambda: last_common_offset(log, TOPIC, history), None)
    assert (3, Anchor(5, 6, chain)) == (gap.resume_offset, gap.anchor)
    assert 0 == new_gap(state, "another topic", described, lambda: 2, None).resume_offset


@pytest.mark.parametrize("offset", [1, 7])
def test_a_gap_ends_within_the_log(log: MemoryLog, offset: int) -> None:
    """Below its beginning records would be missing, beyond its end nobody knows what comes."""
    append_records(log, 6)
    log.trim(TOPIC, 2)
    with pytest.raises(GapRefused, match="is not in the log"):
        new_gap(GroupState(), "t", log.describe(TOPIC), lambda: None, offset)
    for accepted in (2, 6):
        assert accepted == new_gap(GroupState(), "t", log.describe(TOPIC), lambda: None, accepted).resume_offset


def test_wrong_data_joins_no_gap(recovery: Recovery) -> None:
    """It is replaced by files from behind the gap, even when version and chain are those of the anchor."""
    recovery.wrong_data.mark(TOPIC, "a file has changed")
    base = append_gap(recovery.log, recovery.node.topic_id(TOPIC), 1)
    recovery.gap_search.turn()
    assert LogBase() == recovery.node.group.replica.state.base
    assert base == recovery.health.conditions.gap
    assert recovery.health.holds(State.CONDEMNED)
    assert not recovery.health.holds(State.LOST)


def test_a_group_joins_a_gap_when_it_has_applied_everything(
    recovery: Recovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Records of before the loss may still be in its queue."""
    base = append_gap(recovery.log, recovery.node.topic_id(TOPIC), 1)
    with monkeypatch.context() as patch:
        patch.setattr(recovery.node, "is_idle", lambda _topic: False)
        recovery.gap_search.turn()
        assert recovery.health.holds(State.LOST)
    recovery.gap_search.turn()
    assert base == recovery.node.group.replica.state.base
    assert recovery.health.state is None


def test_a_log_that_was_created_again_is_searched_from_its_beginning(recovery: Recovery) -> None:
    """The reader of the old one is at an offset that means nothing in the new one."""
    append_records(recovery.log, 3)
    recovery.gap_search.turn()
    recovery.log.delete_topic(TOPIC)
    recovery.log.create_topic(TOPIC, {})
    append_gap(recovery.log, recovery.node.topic_id(TOPIC), 0)
    recovery.gap_search.turn()
    assert recovery.health.state is None


def test_a_gap_is_accepted_only_by_who_has_lost_its_log_and_holds_the_right_data(
    recovery: Recovery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And has applied everything that it had read: its newest record becomes the anchor."""
    with monkeypatch.context() as patch:
        patch.setattr(recovery.node, "durable_offset", lambda _topic: 4)
        with pytest.raises(GapRefused, match="has not lost its log"):
            recovery.gap_search.accept(TOPIC, 0)
    recovery.wrong_data.mark(TOPIC, "a file has changed")
    with pytest.raises(GapRefused, match="holds wrong data"):
        recovery.gap_search.accept(TOPIC, 0)
    assert 0 == recovery.log.describe(TOPIC).end
    recovery.health.report(Event.SKIP)
