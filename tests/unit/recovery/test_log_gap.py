"""Where a log that has lost records continues: which gap counts, and who continues behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from headrace.connectors.log.append import append_one
from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import Record
from headrace.consumers.recovery.gap_search import REGAIN_INTERVAL_S
from headrace.consumers.recovery.log_gap import (
    GapRefused,
    GapSeeker,
    follows_cursor,
    gap_document,
    joins,
    last_common_offset,
    new_gap,
    parse_gap,
    runs_of,
)
from headrace.consumers.replication.group_health import Event, State
from headrace.consumers.replication.group_state import GapRecord, GroupState, LogBase
from headrace.consumers.replication.hash_chain import next_chain, record_digest
from headrace.consumers.replication.log_prefix import Cursor
from headrace.schemas.messages import NO_CHAIN, Anchor, Gap, Message, ProducerPosition, encode_message
from tests.unit.recovery.test_steps import TOPIC, Recovery, append_records

CHAIN = b"c" * 16
DIGEST_4, DIGEST_5 = (record_digest(f"no message {number}".encode()) for number in (4, 5))


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
    renewed = new_gap(state, "another topic", described, lambda: 2, None)
    assert 0 == renewed.resume_offset
    # The topic is another one, so the anchor is at none of its offsets.
    assert (-1, state.offset) == (renewed.anchor.offset, gap.anchor.offset)


@pytest.mark.parametrize("offset", [1, 7])
def test_a_gap_ends_within_the_log(log: MemoryLog, offset: int) -> None:
    """Below its beginning records would be missing, beyond its end nobody knows what comes."""
    append_records(log, 6)
    log.trim(TOPIC, 2)
    with pytest.raises(GapRefused, match="is not in the log"):
        new_gap(GroupState(), "t", log.describe(TOPIC), lambda: None, offset)
    for accepted in (2, 6):
        assert accepted == new_gap(GroupState(), "t", log.describe(TOPIC), lambda: None, accepted).resume_offset


@pytest.mark.parametrize(
    ("cursor", "follows"),
    [
        (Cursor(6, 5, DIGEST_5, 0), True),
        (Cursor(6, 5, DIGEST_5), True),
        (Cursor(0, -1, NO_CHAIN), False),
        # Another record, the same one under another leader, one that is trimmed, and one beyond the end.
        (Cursor(6, 5, DIGEST_4, 0), False),
        (Cursor(6, 5, DIGEST_5, 1), False),
        (Cursor(2, 1, record_digest(b"no message 1"), 0), False),
        (Cursor(7, 6, DIGEST_5, 0), False),
        # What a restart has of a record that nobody can compare, and a gap that the log does not reach.
        (Cursor(6, 5, NO_CHAIN), False),
        (Cursor(6, 5, DIGEST_5, 0, GapRecord(6, DIGEST_5, 0)), False),
        # A gap further on: it is there, or another record is in its place.
        (Cursor(5, 4, DIGEST_4, 0, GapRecord(5, DIGEST_5, 0)), True),
        (Cursor(5, 4, DIGEST_4, 0, GapRecord(5, DIGEST_4, 0)), False),
    ],
)
def test_a_log_is_there_again_with_what_was_read_of_it(log: MemoryLog, cursor: Cursor, *, follows: bool) -> None:
    """By the content of the newest record and its epoch, and only where the log has all that is needed."""
    append_records(log, 6)
    log.trim(TOPIC, 2)
    assert follows is follows_cursor(log, TOPIC, log.describe(TOPIC), cursor)


def test_a_log_of_which_nothing_was_read_is_there_again_from_its_first_record(log: MemoryLog) -> None:
    """Also an empty one."""
    assert follows_cursor(log, TOPIC, log.describe(TOPIC), Cursor(0, -1, NO_CHAIN))


def test_a_lost_log_that_is_there_again_is_followed(recovery: Recovery, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by wrong data, nor by a group that is busy; and it is looked at now and then, not in each step.

    Before that look, too, no gap is accepted in it: of a log that was cut, and then gone for a while, another member
    may hold what is lost.
    """
    append_records(recovery.log, 1)
    recovery.node.newest = Cursor(1, 0, record_digest(b"no message 0"), 0)
    with pytest.raises(GapRefused, match="is there again, with all that this node has read"):
        recovery.gap_search.accept(TOPIC, 0)
    assert 1 == recovery.log.describe(TOPIC).end
    with monkeypatch.context() as patch:
        patch.setattr(recovery.node, "is_idle", lambda _topic: False)
        recovery.gap_search.turn()
        assert recovery.health.holds(State.LOST)
    recovery.gap_search.turn()
    assert (None, 1) == (recovery.health.state, recovery.node.reassigned)
    recovery.health.report(Event.LOSE, "again")
    recovery.gap_search.turn()
    assert recovery.health.holds(State.LOST)
    recovery.clock.now_s += REGAIN_INTERVAL_S
    recovery.wrong_data.mark(TOPIC, "a file has changed")
    recovery.gap_search.turn()
    assert recovery.health.holds(State.LOST)


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


def found_in(log: MemoryLog) -> LogBase:
    """The first gap of a log, with the place of its record."""
    found = GapSeeker(log, TOPIC).seek(LogBase())
    assert found is not None
    return found


def test_a_gap_that_was_cut_off_counts_again_when_it_is_accepted_again(log: MemoryLog) -> None:
    """The schedule: the log is cut before the record of a gap that a member continued behind, and the same anchor is
    accepted once more, at another offset.
    """
    topic_id = log.describe(TOPIC).topic_id
    append_records(log, 4)
    append_gap(log, topic_id, 3, 7, CHAIN)
    base = found_in(log)
    assert base.record is not None
    assert 4 == base.record.offset
    assert GapSeeker(log, TOPIC).seek(base) is None
    log.truncate(TOPIC, 4)
    append_records(log, 2)
    again = append_gap(log, topic_id, 3, 7, CHAIN)
    found = GapSeeker(log, TOPIC).seek(base)
    assert found == again == base
    assert found.record is not None
    assert 6 == found.record.offset


@pytest.mark.parametrize("offset", [2, 3])
def test_a_gap_of_another_anchor_counts_only_where_the_base_was_cut_off(log: MemoryLog, offset: int) -> None:
    """Behind the base it came too late: of two gaps for one place the first in the log counts."""
    topic_id = log.describe(TOPIC).topic_id
    append_records(log, 4)
    append_gap(log, topic_id, 3, 7, CHAIN)
    base = found_in(log)
    append_gap(log, topic_id, offset, 9, CHAIN)
    assert GapSeeker(log, TOPIC).seek(base) is None
    log.truncate(TOPIC, 4)
    second = append_gap(log, topic_id, offset, 9, CHAIN)
    assert second == GapSeeker(log, TOPIC).seek(base)
    assert second == GapSeeker(log, TOPIC).seek(replace(base, record=None)), "its place is not known to a copy"


def test_a_gap_before_the_base_is_behind_the_group(log: MemoryLog) -> None:
    """It was accepted for an earlier loss, and the base was accepted behind it."""
    topic_id = log.describe(TOPIC).topic_id
    append_records(log, 2)
    append_gap(log, topic_id, 1, 4, CHAIN)
    append_records(log, 2)
    append_gap(log, topic_id, 4, 8, CHAIN)
    base = GapSeeker(log, TOPIC).seek(found_in(log))
    assert base is not None
    assert 8 == base.version
    log.truncate(TOPIC, 5)
    assert GapSeeker(log, TOPIC).seek(base) is None


def test_a_search_finds_a_gap_behind_its_position(log: MemoryLog) -> None:
    """The log is cut and written on while it is searched: its reader is behind the gap that was accepted then."""
    append_records(log, 9)
    seeker = GapSeeker(log, TOPIC)
    assert seeker.seek(LogBase()) is None
    log.truncate(TOPIC, 2)
    gap = append_gap(log, log.describe(TOPIC).topic_id, 2)
    append_records(log, 20)
    assert gap == (seeker.seek(LogBase()) or seeker.seek(LogBase()))


def test_a_search_ends_where_the_log_ended_when_it_began(log: MemoryLog, monkeypatch: pytest.MonkeyPatch) -> None:
    """Writers append without a pause: one search without an end would keep all groups of a node from theirs."""
    append_records(log, 3)
    seeker, polls = GapSeeker(log, TOPIC), list[int]()
    poll = seeker._reader.poll

    def fed(records_max: int, timeout_s: float) -> list[Record]:
        append_records(log, 1)
        polls.append(1)
        assert len(polls) < 10
        return poll(records_max, timeout_s)

    monkeypatch.setattr(seeker._reader, "poll", fed)
    assert seeker.seek(LogBase()) is None
    gap = append_gap(log, log.describe(TOPIC).topic_id, 2)
    assert gap == seeker.seek(LogBase()), "the next one continues"


def test_a_gap_and_its_place_outlive_a_restart(log: MemoryLog) -> None:
    """A node of an earlier build did not note the place."""
    append_gap(log, log.describe(TOPIC).topic_id, 0, 7, CHAIN)
    base = found_in(log)
    restored = parse_gap(json.loads(json.dumps(gap_document(base))))
    assert (base, base.record) == (restored, restored.record)
    earlier = {name: value for name, value in gap_document(base).items() if name != "record"}
    assert (base, None) == (parse_gap(earlier), parse_gap(earlier).record)


def test_a_log_that_is_cut_behind_a_gap_continues_there(log: MemoryLog) -> None:
    """Offsets begin again at a gap: a record before it never counts as common with one behind it."""
    chain, history = NO_CHAIN, [(-1, NO_CHAIN)]
    for offset in (0, 1, 2, 3):
        chain = next_chain(chain, record_digest(f"old {offset}".encode()))
        history.append((offset, chain))
    log.create_topic("again", {})
    base = LogBase("again", 0, 4, chain)
    for offset in range(3):
        value = f"no message {offset}".encode()
        chain = next_chain(chain, record_digest(value))
        history.append((offset, chain))
        append_one(log, TOPIC, value)
    state = GroupState(version=7, offset=2, chain=chain, base=base)
    log.truncate(TOPIC, 2)
    runs = runs_of(history, state)
    assert [[(-1, base.chain), *history[5:]], history[:1]] == [list(run) for run in runs]
    assert 1 == last_common_offset(log, TOPIC, runs[0])
    assert [history] == runs_of(history, GroupState(version=7)), "a log without a gap"
    assert [history[5:]] == runs_of(history[5:], state), "records before the gap are forgotten"
    kept = runs_of(history, replace(state, base=LogBase("t", 3, 4, chain)))[1]
    assert history[:4] == kept, "before a gap of the same topic, and below the place where it continues"


def test_a_log_that_lost_all_behind_a_gap_begins_again(log: MemoryLog) -> None:
    """It had nothing before: what is there now is new."""
    described = log.describe(TOPIC)
    state = GroupState(version=7, offset=2, chain=CHAIN, base=LogBase(described.topic_id, 0, 4, CHAIN))
    assert 0 == new_gap(state, described.topic_id, described, lambda: None, None).resume_offset
    with pytest.raises(GapRefused, match="unknown offset"):
        new_gap(replace(state, base=LogBase("another", 0, 4)), described.topic_id, described, lambda: None, None)
