"""The replica: versions without gaps, repeats dropped, leadership by the log, seals by size."""

from __future__ import annotations

import pytest

from consumers.replication.replica import ApplyWrite, Ignored, Replica, SealNow
from consumers.replication.state import GroupState
from schemas.framing import FormatTooNew
from schemas.messages import (
    NO_CHAIN,
    Anchor,
    Body,
    Claim,
    Leadership,
    Message,
    ProducerPosition,
    Seal,
    Write,
    encode_message,
)

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

    def take(self, body: Body, producer: str = "p", batch: int = 0, sequence: int = 0) -> list[object]:
        """One message; the actions it leads to."""
        self.offset += 1
        value = encode_message(Message(ProducerPosition(producer, batch, sequence), body))
        return list(self.replica.apply(self.offset, value, (("format", b"1"),)))


@pytest.fixture
def feed() -> Feed:
    """A fresh replica."""
    return Feed(Replica(MEMBERS))


def test_every_record_moves_the_version_by_one(feed: Feed) -> None:
    """Garbage, repeats and lost claims count too, so every replica counts the same."""
    feed.take(write())
    feed.replica.apply(9, b"garbage", ())
    feed.take(write())
    feed.take(Claim(Leadership(7, "n1", "i"), ANCHOR, 5, 5), producer="c")
    assert feed.replica.state.version == 4
    assert {Ignored.UNDECODABLE: 1, Ignored.REPEATED: 1, Ignored.CLAIM_LOST: 1} == dict(feed.replica.ignored)


def test_a_repeat_equal_in_all_is_dropped_and_other_content_is_applied(feed: Feed) -> None:
    """A retried batch that was cut differently is written again; the same message is not."""
    assert [ApplyWrite] == [type(action) for action in feed.take(write(data=b"a"), batch=3)]
    assert [] == feed.take(write(data=b"a"), batch=3)
    assert [ApplyWrite] == [type(action) for action in feed.take(write(data=b"b"), batch=3)]


def test_an_older_batch_of_a_producer_is_dropped(feed: Feed) -> None:
    """A zombie task of an earlier batch changes nothing: the retry has written that batch whole."""
    feed.take(write(data=b"new"), batch=5)
    assert [] == feed.take(write(data=b"old"), batch=4, sequence=9)
    assert feed.replica.ignored[Ignored.SUPERSEDED] == 1
    assert [ApplyWrite] == [type(action) for action in feed.take(write(data=b"old"), producer="other", batch=4)]


def test_the_first_claim_of_an_epoch_wins(feed: Feed) -> None:
    """Epoch exactly current + 1 of a member counts; the second claim of that epoch, a jump and a stranger do not."""
    first, second = Leadership(1, "n1", "a"), Leadership(1, "n2", "b")
    feed.take(Claim(first, ANCHOR, 10, 10_000), producer="a")
    feed.take(Claim(second, ANCHOR, 10, 10_000), producer="b")
    feed.take(Claim(Leadership(3, "n2", "b"), ANCHOR, 10, 10_000), producer="b", batch=1)
    feed.take(Claim(Leadership(2, "n9", "c"), ANCHOR, 10, 10_000), producer="c")
    assert first == feed.replica.state.leader
    feed.take(Claim(Leadership(2, "n2", "b"), ANCHOR, 10, 10_000), producer="b", batch=2)
    assert feed.replica.state.leader == Leadership(2, "n2", "b")


def test_only_the_leader_of_the_newest_claim_seals(feed: Feed) -> None:
    """A restarted leader has a new incarnation, so the word of its former self no longer counts."""
    old = Leadership(1, "n1", "old")
    feed.take(Claim(old, ANCHOR, 1_000, 1_000_000), producer="a")
    feed.take(write(5))
    (seal,) = feed.take(Seal(old, ANCHOR), producer="a", batch=1)
    assert isinstance(seal, SealNow)
    assert (seal.version, 0) == (3, feed.replica.state.unsealed_rows)
    feed.take(Claim(Leadership(2, "n1", "new"), ANCHOR, 1_000, 1_000_000), producer="b")
    assert [] == feed.take(Seal(old, ANCHOR), producer="a", batch=2)
    assert feed.replica.ignored[Ignored.NOT_LEADER] == 1


def test_the_log_seals_by_itself_at_the_size_of_the_claim(feed: Feed) -> None:
    """A backlog longer than the memtable never waits for a Seal that stands behind it; every replica seals at the same record."""
    feed.take(Claim(Leadership(1, "n1", "a"), ANCHOR, 10, 1_000_000), producer="a")
    kinds = [
        [type(action).__name__ for action in feed.take(write(4, b"%d" % number), batch=number)] for number in range(6)
    ]
    assert [["ApplyWrite"], ["ApplyWrite"], ["ApplyWrite", "SealNow"]] * 2 == kinds


def test_state_survives_its_bytes_and_goes_on_alike(feed: Feed) -> None:
    """A replica restored from the state of a seal takes the rest of the log to the same chain, epoch and producers."""
    leader = Leadership(1, "n1", "a")
    feed.take(Claim(leader, ANCHOR, 1_000, 1_000_000), producer="a")
    feed.take(write(data=b"x"), batch=1)
    (seal,) = feed.take(Seal(leader, ANCHOR), producer="a", batch=1)
    assert isinstance(seal, SealNow)
    other = Feed(Replica(MEMBERS, GroupState.from_bytes(seal.state)))
    other.offset = feed.offset
    for one in (feed, other):
        one.take(write(data=b"x"), batch=1)
        one.take(write(data=b"y"), batch=2)
    assert feed.replica.state.to_bytes() == other.replica.state.to_bytes()
    assert other.replica.ignored[Ignored.REPEATED] == 1


def test_a_newer_format_stops_before_it_counts(feed: Feed) -> None:
    """A record that this build is too old to read is not skipped: the version stays where it was."""
    with pytest.raises(FormatTooNew):
        feed.replica.apply(5, b"whatever", (("format", b"2"),))
    assert feed.replica.state.version == 0
