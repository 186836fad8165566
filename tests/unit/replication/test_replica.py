"""The replica: versions without gaps, repeats dropped, leadership by the log, seals by size."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from headrace.consumers.replication import group_state
from headrace.consumers.replication.actions import ApplyLoad, ApplyWrite, Ignored, SealNow
from headrace.consumers.replication.group_state import GroupState, LogBase, LogHasGap
from headrace.consumers.replication.replica import Replica
from headrace.schemas.framing import FORMAT, FormatTooNew
from headrace.schemas.messages import (
    NO_CHAIN,
    Anchor,
    Body,
    CarriedDelete,
    Claim,
    Gap,
    Leadership,
    Load,
    Message,
    ProducerPosition,
    Seal,
    TableVersion,
    Write,
    encode_message,
)
from tests.poison import encoded, row_batch

ANCHOR = Anchor(-1, 0, NO_CHAIN)
MEMBERS = ("n1", "n2", "n3")


def write(rows: int = 1, data: bytes = b"rows") -> Write:
    """A write whose rows are opaque here."""
    return Write("db", "t", 1, 1, rows, data)


class Feed:
    """Feeds a replica records in log order."""

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.offset = 0

    def apply(self, body: Body, producer: str = "p", batch: int = 0, sequence: int = 0) -> list[object]:
        """Apply one message; returns the actions."""
        self.offset += 1
        value = encode_message(Message(ProducerPosition(producer, batch, sequence), body))
        return list(self.replica.apply(self.offset, value, (("format", b"1"),)))


@pytest.fixture
def feed() -> Feed:
    """A fresh replica."""
    return Feed(Replica(MEMBERS))


def test_every_record_moves_the_version_by_one(feed: Feed) -> None:
    """Garbage, repeats and lost claims count too, so all replicas have equal versions."""
    feed.apply(write())
    feed.replica.apply(9, b"garbage", ())
    feed.apply(write())
    feed.apply(Claim(Leadership(7, "n1", "i"), ANCHOR, 5, 5), producer="c")
    assert feed.replica.state.version == 4
    assert {Ignored.UNDECODABLE: 1, Ignored.REPEATED: 1, Ignored.CLAIM_LOST: 1} == dict(feed.replica.ignored)


def test_an_identical_repeat_is_dropped_and_other_content_is_applied(feed: Feed) -> None:
    """A retried batch with other message borders is written again; the same message is not."""
    assert [ApplyWrite] == [type(action) for action in feed.apply(write(data=b"a"), batch=3)]
    assert [] == feed.apply(write(data=b"a"), batch=3)
    assert [ApplyWrite] == [type(action) for action in feed.apply(write(data=b"b"), batch=3)]


def test_an_older_batch_of_a_producer_is_dropped(feed: Feed) -> None:
    """A zombie task of an earlier batch changes nothing: the retry has written all of that batch."""
    feed.apply(write(data=b"new"), batch=5)
    assert [] == feed.apply(write(data=b"old"), batch=4, sequence=9)
    assert feed.replica.ignored[Ignored.SUPERSEDED] == 1
    assert [ApplyWrite] == [type(action) for action in feed.apply(write(data=b"old"), producer="other", batch=4)]


def test_the_first_claim_of_an_epoch_wins(feed: Feed) -> None:
    """Epoch exactly current + 1 of a member counts.

    The second claim of that epoch, a skipped epoch and a node that is no member do not.
    """
    first, second = Leadership(1, "n1", "a"), Leadership(1, "n2", "b")
    feed.apply(Claim(first, ANCHOR, 10, 10_000), producer="a")
    feed.apply(Claim(second, ANCHOR, 10, 10_000), producer="b")
    feed.apply(Claim(Leadership(3, "n2", "b"), ANCHOR, 10, 10_000), producer="b", batch=1)
    feed.apply(Claim(Leadership(2, "n9", "c"), ANCHOR, 10, 10_000), producer="c")
    assert first == feed.replica.state.leader
    feed.apply(Claim(Leadership(2, "n2", "b"), ANCHOR, 10, 10_000), producer="b", batch=2)
    assert feed.replica.state.leader == Leadership(2, "n2", "b")


def test_only_the_leader_of_the_newest_claim_seals(feed: Feed) -> None:
    """A restarted leader has a new incarnation, so a Seal of its former incarnation does not count."""
    old = Leadership(1, "n1", "old")
    feed.apply(Claim(old, ANCHOR, 1_000, 1_000_000), producer="a")
    feed.apply(write(5))
    (seal,) = feed.apply(Seal(old, ANCHOR), producer="a", batch=1)
    assert isinstance(seal, SealNow)
    assert (seal.version, 0) == (3, feed.replica.state.unsealed_rows)
    feed.apply(Claim(Leadership(2, "n1", "new"), ANCHOR, 1_000, 1_000_000), producer="b")
    assert [] == feed.apply(Seal(old, ANCHOR), producer="a", batch=2)
    assert feed.replica.ignored[Ignored.NOT_LEADER] == 1


def test_a_replica_seals_at_the_size_in_the_claim(feed: Feed) -> None:
    """A backlog larger than the memtable does not wait for a later Seal; every replica seals at the same record."""
    feed.apply(Claim(Leadership(1, "n1", "a"), ANCHOR, 10, 1_000_000), producer="a")
    kinds = [
        [type(action).__name__ for action in feed.apply(write(4, b"%d" % number), batch=number)] for number in range(6)
    ]
    assert [["ApplyWrite"], ["ApplyWrite"], ["ApplyWrite", "SealNow"]] * 2 == kinds


def test_restored_state_continues_equally(feed: Feed) -> None:
    """A replica restored from the state of a seal applies the rest of the log to the same chain, epoch and producers."""
    leader = Leadership(1, "n1", "a")
    feed.apply(Claim(leader, ANCHOR, 1_000, 1_000_000), producer="a")
    feed.apply(write(data=b"x"), batch=1)
    (seal,) = feed.apply(Seal(leader, ANCHOR), producer="a", batch=1)
    assert isinstance(seal, SealNow)
    other = Feed(Replica(MEMBERS, GroupState.from_bytes(seal.state)))
    other.offset = feed.offset
    for one in (feed, other):
        one.apply(write(data=b"x"), batch=1)
        one.apply(write(data=b"y"), batch=2)
    assert feed.replica.state.to_bytes() == other.replica.state.to_bytes()
    assert other.replica.ignored[Ignored.REPEATED] == 1


def test_a_newer_format_stops_before_it_counts(feed: Feed) -> None:
    """A record of a newer format is not skipped: the version stays."""
    with pytest.raises(FormatTooNew):
        feed.replica.apply(5, b"whatever", (("format", str(FORMAT + 1).encode()),))
    assert feed.replica.state.version == 0


def test_the_record_that_reaches_a_limit_seals_whatever_it_is(feed: Feed) -> None:
    """Exactly at the limit of rows, and at that of bytes with a record that nothing can decode."""
    feed.apply(Claim(Leadership(1, "n1", "a"), ANCHOR, 10, 500), producer="a")
    assert [ApplyWrite, SealNow] == [type(action) for action in feed.apply(write(10))]
    assert [] == feed.replica.apply(50, b"x" * 499, ())
    assert [SealNow] == [type(action) for action in feed.replica.apply(51, b"x", ())]


def test_the_limit_of_bytes_counts_rows_as_they_are_in_memory(feed: Feed) -> None:
    """Equal values are next to nothing on the wire, and 80 KB in the memtable."""
    count = 10_000
    data = encoded(row_batch(["t"], [0] * count, [1] * count, {}), "zstd")
    assert len(data) < 8 * count
    feed.apply(Write("db", "t", 1, 1, count, data))
    assert feed.replica.state.unsealed_bytes > 8 * count


def test_a_seal_is_under_the_newest_schema_of_each_table(feed: Feed) -> None:
    """A writer that has an older one may come later."""
    for version in (3, 2):
        feed.apply(Write("db", "t", version, 1, 1, b"rows"), batch=version, producer=str(version))
    assert {("db", "t"): 3} == feed.replica.state.tables


def test_a_gap_is_passed_by_who_is_behind_it_and_stops_all_others(feed: Feed) -> None:
    """One for the same place that comes later changes nothing; one of another topic does, at whatever offset."""
    gap = Gap("topic", 7, Anchor(4, 5, b"c" * 16))
    feed.replica.state.base = LogBase.of(gap)
    (seal,) = feed.apply(gap)
    assert isinstance(seal, SealNow), "the records before it are in no log"
    feed.apply(Gap("topic", 7, Anchor(3, 4, b"d" * 16)), batch=1)
    feed.apply(Gap("topic", 6, Anchor(3, 4, b"d" * 16)), batch=2)
    before = feed.replica.state.to_bytes()
    for other in (Gap("topic", 8, ANCHOR), Gap("another", 7, ANCHOR), Gap("another", 1, ANCHOR)):
        with pytest.raises(LogHasGap):
            feed.apply(other, batch=3)
    assert before == feed.replica.state.to_bytes()


LOAD = Load(
    Leadership(1, "n1", "a"), "c.forward.n9.1", 4, "db", "t", 0, 0, 3, 500, 600, 0, bytes(16), 9, 0, 99, 1_000, 1
)  # fmt: skip


def test_a_file_of_another_log_counts_once(feed: Feed) -> None:
    """By its origin, place and content, whoever sends it: a new leader repeats what its predecessor may have sent.

    That holds in a replica that is restored from the state of a seal.
    """
    feed.apply(Claim(Leadership(1, "n1", "a"), ANCHOR, 1_000, 1_000_000), producer="a")
    assert [ApplyLoad(2, LOAD)] == feed.apply(LOAD, producer="a", batch=1)
    assert {("db", "t"): 1} == feed.replica.state.tables
    feed.replica.state = GroupState.from_bytes(feed.replica.state.to_bytes())
    other = Leadership(2, "n2", "b")
    feed.apply(Claim(other, ANCHOR, 1_000, 1_000_000), producer="b")
    assert [] == feed.apply(LOAD, producer="b", batch=1)
    assert {Ignored.NOT_LEADER: 1} == dict(feed.replica.ignored)
    assert [] == feed.apply(replace(LOAD, leadership=other, held_since=5), producer="b", batch=2)
    assert feed.replica.ignored[Ignored.REPEATED] == 1
    same = replace(LOAD, leadership=other)
    others = replace(same, origin="x"), replace(same, bucket=1), replace(same, generation=1)
    for number, load in enumerate((*others, replace(same, content_digest=b"x" * 16))):
        assert [ApplyLoad(6 + number, load)] == feed.apply(load, producer="b", batch=3 + number)


def test_a_file_waits_for_its_table_only_under_the_leader(feed: Feed) -> None:
    """A record of a former leader must not make a group wait for a version that may never exist."""
    asked: list[object] = []

    def knows_none(_offset: int, _digest: bytes, tables: tuple[TableVersion, ...]) -> bool:
        asked.append(tables)
        return False

    feed.replica.knows_tables = knows_none
    feed.apply(LOAD)
    assert [] == asked
    feed.apply(Claim(LOAD.leadership, ANCHOR, 1_000, 1_000_000), producer="a")
    assert [] == feed.apply(LOAD, producer="a", batch=1)
    assert 1 == len(asked)
    assert feed.replica.ignored[Ignored.REFUSED] == 1


def test_the_memory_of_loaded_files_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest one is forgotten, also by a replica that was restored in between."""
    monkeypatch.setattr(group_state, "LOADS_MAX", 3)
    one, other = GroupState(), GroupState()
    for number in range(5):
        assert one.note_load(bytes([number] * 16))
        assert other.note_load(bytes([number] * 16))
        other = GroupState.from_bytes(other.to_bytes())
    assert one.to_bytes() == other.to_bytes()
    assert [False, False, False, True] == [one.note_load(bytes([number] * 16)) for number in (2, 3, 4, 1)]


@pytest.mark.parametrize(
    "wrong",
    [
        {"origin": ""},
        {"origin": "x" * 1_025},
        {"table": "a\0b"},
        {"schema_version": 0},
        {"era": 4},
        {"era": -1},
        {"first_version": 0},
        {"first_version": 601},
        {"last_version": 10**15},
        {"rows": 0},
        {"min_time_ns": 100},
        {"bucket": -1},
        {"deletes": (CarriedDelete(3, 600),)},
    ],
    ids=str,
)
def test_a_file_that_no_group_can_have_is_ignored(feed: Feed, wrong: dict[str, Any]) -> None:
    """Every replica refuses it by the record alone, also under its leader."""
    feed.apply(Claim(LOAD.leadership, ANCHOR, 1_000, 1_000_000), producer="a")
    assert [] == feed.apply(replace(LOAD, **wrong), producer="a", batch=1)
    assert {Ignored.INVALID: 1} == dict(feed.replica.ignored)
