"""A node that follows the membership log: what arrives counts once, and no other log is followed in its place."""

from __future__ import annotations

from pathlib import Path

import pytest
from structlog.testing import capture_logs

from headrace.connectors import deadline
from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import TopicState, read_to_end
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.changes import MembershipState, Verdict
from headrace.consumers.membership.membership_follower import LOOK_INTERVAL_S, MembershipFollower
from headrace.schemas.framing import FORMAT, format_headers
from headrace.schemas.membership_records import MetadataClaim
from headrace.schemas.messages import Leadership
from headrace.schemas.records import Create, MembershipRecord, encode_membership, format_of_membership
from tests.manual_clock import ManualClock

TOPIC = Topics("c").membership
CREATE = Create(("n1", "n2", "n3"), 3, 12)
CLAIMS = [MetadataClaim(Leadership(epoch, "n1", "a")) for epoch in range(1, 6)]


class Followed:
    """A log in memory and a follower of it, an interval later at each `turn`."""

    def __init__(self, history_file: Path | None = None, log: MemoryLog | None = None) -> None:
        self.log = log or MemoryLog(clock_ms=lambda: 1_000)
        self.log.create_topic(TOPIC, {})
        self.clock = ManualClock()
        self.follower = MembershipFollower(self.log, TOPIC, history_file, self.clock)

    def append(self, *records: MembershipRecord) -> None:
        """Append records."""
        for record in records:
            headers = format_headers(format_of_membership(record))
            self.log.store(TOPIC, encode_membership("w", record), None, headers)

    def answers(self) -> bool:
        """Whether the log answers."""
        return self.follower.log_answers

    def turn(self, turns: int = 3) -> list[Verdict]:
        """The verdicts on what was read in some turns."""
        found = []
        for _ in range(turns):
            self.clock.now_s += LOOK_INTERVAL_S
            found += [each.verdict for each in self.follower.turn()]
        return found

    def recreate(self, values: list[bytes]) -> None:
        """Delete the topic, and create it again with these records."""
        self.log.delete_topic(TOPIC)
        self.log.create_topic(TOPIC, {})
        for value in values:
            self.log.store(TOPIC, value, None, ())

    def values(self) -> list[bytes]:
        """The values of all records."""
        return [record.value for record in read_to_end(self.log, TOPIC, timeout_s=10)]


@pytest.fixture(autouse=True)
def no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing topic is gone at once."""
    monkeypatch.setattr(deadline, "GONE_AFTER_S", -1.0)


@pytest.fixture
def followed() -> Followed:
    """A cluster whose metadata group has a leader."""
    made = Followed()
    made.append(CREATE, CLAIMS[0])
    made.turn()
    return made


def test_what_arrives_is_read_once_and_with_its_verdict() -> None:
    """Gaps in the offsets and bytes that do not decode are passed."""
    followed = Followed()
    followed.append(CREATE)
    followed.log.store(TOPIC, b"garbage", None, ())
    followed.append(CLAIMS[0], CLAIMS[0])
    followed.log.gap(TOPIC, 3)
    expected = [Verdict.ACCEPTED, Verdict.UNDECODABLE, Verdict.ACCEPTED, Verdict.CLAIM_LOST]
    assert expected == followed.turn(5)
    assert followed.follower.caught_up
    assert (4, 1, 1_000) == (
        followed.follower.state.records,
        followed.follower.state.epoch,
        followed.follower.claimed_ms,
    )
    assert [] == followed.turn()
    followed.append(CLAIMS[1])
    assert [Verdict.ACCEPTED] == followed.turn()


def test_a_foreign_record_is_logged_once_at_a_node(tmp_path: Path) -> None:
    """With its place: it changes nothing. Not again at the next start, and not by a command."""
    followed = Followed(tmp_path / "membership.json")
    followed.append(CREATE)
    followed.log.store(TOPIC, b"garbage", None, ())
    with capture_logs() as logs:
        followed.turn(2)
        for history_file in (tmp_path / "membership.json", None):
            MembershipFollower(followed.log, TOPIC, history_file, followed.clock).read_all()
    assert [("a record cannot be read", TOPIC, 1)] == [(each["event"], each["topic"], each["offset"]) for each in logs]


def test_an_idle_node_looks_once_an_interval(followed: Followed) -> None:
    """Unless it expects a record."""
    followed.append(CLAIMS[1])
    followed.clock.now_s += LOOK_INTERVAL_S
    followed.follower.turn()
    followed.follower.turn()
    followed.append(CLAIMS[2])
    assert [] == followed.follower.turn()
    followed.follower.look_soon()
    assert [Verdict.ACCEPTED] == [each.verdict for each in followed.follower.turn()]


def test_what_is_expected_comes_without_looks(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader waits for it: in each turn, and the end of the log is asked for once an interval."""
    looks: list[str] = []
    describe = followed.log.describe

    def look(topic: str) -> TopicState:
        looks.append(topic)
        return describe(topic)

    monkeypatch.setattr(followed.log, "describe", look)
    for _ in range(20):
        followed.follower.expect()
        assert [] == followed.follower.turn()
    assert [] == looks
    followed.append(CLAIMS[1])
    followed.follower.expect()
    assert [Verdict.ACCEPTED] == [each.verdict for each in followed.follower.turn()]
    followed.clock.now_s += LOOK_INTERVAL_S
    looks.clear()
    followed.follower.expect()
    followed.follower.turn()
    assert [TOPIC] == looks


def test_another_log_is_noticed_by_one_who_expects(followed: Followed) -> None:
    """Records of a topic that was made again do not count, however soon they come."""
    followed.follower.expect()
    followed.follower.turn()
    followed.recreate([encode_membership("w", CLAIMS[1])] * 4)
    followed.follower.expect()
    assert [] == followed.follower.turn()
    followed.turn()
    for _ in range(3):
        assert "was created again" in followed.follower.lost
        followed.follower.expect()
        followed.follower.turn()
        assert followed.follower.fault


def test_listeners_get_each_state_that_was_read(followed: Followed) -> None:
    """In the thread of the turn; others wait for what they need."""
    seen: list[MembershipState] = []
    followed.follower.subscribe(seen.append)
    followed.append(CLAIMS[1])
    followed.turn()
    assert [2] == [state.epoch for state in seen]
    assert followed.follower.wait_for(lambda state: state.epoch == 2, 0)
    assert not followed.follower.wait_for(lambda state: state.epoch == 3, 0)


def test_a_record_of_a_later_build_stops_the_node_right_before_it(followed: Followed) -> None:
    """What comes behind may build on it. The reason names the record and what to do."""
    followed.append(CLAIMS[1])
    followed.log.store(TOPIC, encode_membership("w", CLAIMS[2]), None, format_headers(FORMAT + 1))
    followed.append(CLAIMS[3])
    assert [Verdict.ACCEPTED] == followed.turn()
    assert "the record at offset 3 of topic c.membership has format" in followed.follower.failure
    assert "upgrade this node" in followed.follower.failure
    assert 2 == followed.follower.state.epoch
    assert [] == followed.turn()


def test_a_log_that_does_not_answer_is_followed_again_later(followed: Followed) -> None:
    """The state stays, and is no reason to serve nothing."""
    assert followed.answers()
    followed.log.unavailable = True
    followed.turn(4)
    assert not followed.answers()
    assert followed.follower.fault
    assert "" == followed.follower.failure
    followed.log.unavailable = False
    followed.append(CLAIMS[1])
    assert [Verdict.ACCEPTED] == followed.turn()
    assert followed.answers()
    assert "" == followed.follower.fault


def test_another_log_under_the_name_is_not_followed(followed: Followed) -> None:
    """However long it is; the same records in the same order are the same log again."""
    values, state = followed.values(), followed.follower.state
    followed.recreate([encode_membership("x", Create(("n1",), 1, 12)), values[1], values[1]])
    assert [] == followed.turn()
    assert "was created again" in followed.follower.failure
    assert state == followed.follower.state
    followed.recreate([*values, encode_membership("w", CLAIMS[1])])
    assert [Verdict.ACCEPTED] == followed.turn()
    assert "" == followed.follower.failure
    assert 2 == followed.follower.state.epoch


def test_a_truncated_log_is_lost(followed: Followed) -> None:
    """It may continue with other records at the same offsets."""
    followed.log.truncate(TOPIC, 1)
    followed.turn()
    assert "truncated" in followed.follower.failure
    followed.append(CLAIMS[1], CLAIMS[2])
    followed.turn()
    assert 1 == followed.follower.state.epoch


def test_a_log_that_is_gone_is_lost(followed: Followed) -> None:
    """Once it was missing for long enough."""
    followed.log.delete_topic(TOPIC)
    followed.turn()
    assert "does not exist any more" in followed.follower.failure


@pytest.mark.parametrize("change", ["shorter", "other"])
def test_a_start_detects_another_log(tmp_path: Path, change: str) -> None:
    """The data directory remembers the records that were read."""
    path = tmp_path / "membership.json"
    before = Followed(path)
    before.append(CREATE, CLAIMS[0])
    before.turn()
    values = before.values()
    before.recreate(values[:-1] if change == "shorter" else [encode_membership("other", CREATE), values[1], values[1]])
    after = Followed(path, before.log)
    after.turn()
    assert "from it" in after.follower.failure
    assert (False, MembershipState()) == (after.follower.caught_up, after.follower.state)
    before.recreate(values)
    after.turn()
    assert ("", 1) == (after.follower.failure, after.follower.state.epoch)
