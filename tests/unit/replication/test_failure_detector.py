"""The failure detector: who is alive by the broker's time, and which members hold a record."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.consumers.replication.failure_detector import OFFLINE_MS, FailureDetector, StatusTime
from headrace.schemas.receipts import RECEIPT_BYTES, WrittenRecords, receipt_of, value_digest
from headrace.schemas.records import Role, Status, decode_status
from tests.golden_values import DIRECTORY
from tests.unit.statuses import STATUS


def receipt(offset: int, value: bytes = b"a record") -> bytes:
    """The receipt of a record."""
    return receipt_of(offset, value_digest(value))


def written(*offsets: int) -> WrittenRecords:
    """Records at these offsets."""
    return WrittenRecords(max(offsets), tuple(receipt(offset) for offset in offsets))


def test_offline_is_three_seconds_of_the_brokers_time() -> None:
    """A node is offline when the newest status read is 3 s younger than its own newest.

    A node without a status is offline too.
    """
    detector = FailureDetector()
    detector.observe(1_000, STATUS)
    detector.observe(3_999, replace(STATUS, node="n2"))
    assert [True, True, False] == [detector.alive("g", node) for node in ("n1", "n2", "n3")]
    detector.observe(4_000, replace(STATUS, node="n2"))
    assert [False, True] == [detector.alive("g", node) for node in ("n1", "n2")]
    assert [3_000, 0, -1] == [detector.silent_ms("g", node) for node in ("n1", "n2", "n3")]


def test_a_member_is_idle_while_it_is_in_sync_and_takes_no_role() -> None:
    """From the first such status of its process on, to the newest; any other status ends that."""
    detector, idle = FailureDetector(), replace(STATUS, role=Role.UNSYNCED, eligible=True)
    behind, former = replace(idle, eligible=False), replace(idle, incarnation="before")
    expected = []
    for number, status in enumerate((behind, former, idle, idle, idle, behind, idle, idle, STATUS, idle)):
        detector.observe(1_000 + 500 * number, status)
        expected.append(detector.idle_ms("g", "n1"))
    assert [0, 0, 0, 500, 1_000, 0, 0, 500, 0, 0] == expected
    assert 0 == detector.idle_ms("g", "n2")


def test_copies_count_only_live_members_of_the_same_topic() -> None:
    """A quorum counts live members that hold the offset durably and follow the topic of the record."""
    detector = FailureDetector()
    status = replace(STATUS, receipts=b"".join(receipt(offset) for offset in range(21)))
    detector.observe(1_000, status)
    detector.observe(1_000, replace(status, node="n2", durable_offset=11))
    detector.observe(1_000, replace(status, node="n3", topic_id="an older topic"))
    detector.observe(1_000, replace(status, node="n4"))
    members = ("n1", "n2", "n3")
    assert [2, 1, 0] == [detector.durable_copies("g", members, "t", written(offset)) for offset in (11, 12, 13)]
    detector.observe(9_000, replace(status, node="n2", durable_offset=20))
    assert detector.durable_copies("g", members, "t", written(11)) == 1


def test_a_copy_has_shown_every_record_that_was_written() -> None:
    """A durable offset alone, a receipt of another record there, and some of several receipts are no copy."""
    detector = FailureDetector()
    detector.observe(1_000, STATUS)
    assert not detector.holds("g", "n1", "t", written(12))
    detector.observe(1_001, replace(STATUS, receipts=receipt(11) + receipt(12, b"another record")))
    assert not detector.holds("g", "n1", "t", written(12))
    assert not detector.holds("g", "n1", "t", written(11, 12))
    detector.observe(1_002, replace(STATUS, receipts=receipt(12)))
    assert detector.holds("g", "n1", "t", written(11, 12))
    # Nothing known of what was written is nothing that a member can hold.
    assert not detector.holds("g", "n1", "t", WrittenRecords())
    detector.observe(1_003, decode_status((DIRECTORY / "0.1.0/status.bin").read_bytes()))
    assert not detector.holds("n2", "n1", "topic-id", written(12))


def test_a_member_is_no_copy_while_it_is_out_of_sync_or_has_lost_its_log() -> None:
    """Whatever it has shown before."""
    for status in (replace(STATUS, eligible=False), replace(STATUS, log_lost=True)):
        detector = FailureDetector()
        detector.observe(1_000, replace(STATUS, receipts=receipt(12)))
        assert detector.holds("g", "n1", "t", written(12))
        detector.observe(1_001, status)
        assert not detector.holds("g", "n1", "t", written(12))


def test_receipts_are_those_of_one_data_directory() -> None:
    """A restart keeps them. Data that was replaced, another topic and a lower durable offset do not."""
    shown = replace(STATUS, receipts=receipt(12))
    for after, holds in (
        (replace(STATUS, incarnation="another", durable_offset=14), True),
        (replace(STATUS, store="another"), False),
        (replace(STATUS, durable_offset=11), False),
    ):
        detector = FailureDetector()
        detector.observe(1_000, shown)
        detector.observe(1_001, after)
        detector.observe(1_002, replace(after, durable_offset=20))
        assert holds == detector.holds("g", "n1", "t", written(12))


def test_receipts_are_bounded_and_the_newest_are_kept() -> None:
    """Of ten thousand receipts of which each status repeats some, the newest hundred at least are remembered."""
    detector = FailureDetector(receipts_kept=100)
    for offset in range(0, 10_000, 10):
        shown = b"".join(receipt(each) for each in range(max(0, offset - 5), offset + 10))
        detector.observe(1_000 + offset, replace(STATUS, durable_offset=offset + 9, receipts=shown))
    assert detector.holds("g", "n1", "t", written(*range(9_900, 10_000)))
    assert not detector.holds("g", "n1", "t", written(9_000))
    assert sum(map(len, detector._receipts.values())) <= 2 * 100 * RECEIPT_BYTES
    assert FailureDetector(receipts_kept=0)._receipts == {}


class Topic:
    """A status topic with a broker whose clock can be set, and a receiver that reads it as it grows.

    `now_ms` is real time, of the receiver as well; `broker_ms` the error of the broker's clock.
    """

    def __init__(self) -> None:
        self.detector, self.now_ms, self.broker_ms = FailureDetector(), 1_000_000, 0
        self.unread: list[tuple[int, Status]] = []
        self.reads = True

    def run(self, duration_ms: int, nodes: tuple[str, ...]) -> list[tuple[str, ...]]:
        """The nodes send every 500 ms, in turns; returns the sets of nodes that were online, each once."""
        seen = []
        for now_ms in range(self.now_ms, self.now_ms + duration_ms, 100):
            self.now_ms = now_ms + 100
            for index, node in enumerate(nodes):
                if now_ms // 100 % 5 == index:
                    self.unread.append((now_ms + self.broker_ms, replace(STATUS, node=node)))
            if self.reads:
                seen += self.read()
        return list(dict.fromkeys(seen))

    def read(self) -> list[tuple[str, ...]]:
        """Read what was not read, and list who is online after each status."""
        seen = []
        for timestamp_ms, status in self.unread:
            self.detector.observe(timestamp_ms, status, self.now_ms)
            seen.append(self.online())
        self.unread = []
        return seen

    def online(self) -> tuple[str, ...]:
        """The nodes that are online now."""
        return tuple(node for node in ("n1", "n2", "n3") if self.detector.alive("g", node))


ALL = ("n1", "n2", "n3")
STEPS_MS = (-600_000, 600_000, -4_000, 4_000, 31_536_000_000, -31_536_000_000)


@pytest.mark.parametrize("step_ms", STEPS_MS)
def test_a_step_of_the_brokers_clock_takes_nobody_offline(step_ms: int) -> None:
    """Back or forth by minutes, seconds or a year, and back again: all nodes stay online at every status."""
    topic = Topic()
    topic.run(20_000, ALL)
    for error_ms in (step_ms, 0, step_ms, 2 * step_ms, 0):
        topic.broker_ms = error_ms
        assert [ALL] == topic.run(7_000, ALL)


@pytest.mark.parametrize("step_ms", STEPS_MS)
def test_a_dead_node_is_found_and_stays_dead_through_steps_of_the_brokers_clock(step_ms: int) -> None:
    """It is offline within 3 s and an interval after its last status, whenever the clock is set."""
    topic = Topic()
    topic.run(20_000, ALL)
    topic.run(1_000, ("n1", "n2"))
    topic.broker_ms = step_ms
    topic.run(3_000, ("n1", "n2"))
    assert topic.online() == ("n1", "n2")
    topic.broker_ms = 0
    assert [("n1", "n2")] == topic.run(20_000, ("n1", "n2"))
    assert topic.run(1_000, ALL)[-1] == ALL


def test_a_reader_that_lags_takes_nobody_for_dead_and_finds_who_died_meanwhile() -> None:
    """A receiver that was stopped for 30 s reads them at once: the times of the topic count, not those of receipt."""
    topic = Topic()
    topic.run(20_000, ALL)
    topic.reads = False
    topic.run(30_000, ALL)
    assert [ALL] == list(dict.fromkeys(topic.read()))
    topic.run(10_000, ALL)
    topic.run(20_000, ("n1", "n2"))
    topic.reads = True
    topic.read()
    assert topic.online() == ("n1", "n2")


def test_what_was_in_the_topic_before_its_reader_is_as_old_as_its_timestamps() -> None:
    """A node that died before this one started is offline from the first look on, also behind a step of the clock."""
    detector = FailureDetector()
    for timestamp_ms in range(0, 10_000, 500):
        detector.observe(timestamp_ms, replace(STATUS, node="n3"))
    for timestamp_ms in range(10_000, 20_000, 500):
        detector.observe(timestamp_ms - 600_000, STATUS)
    detector.observe(20_000 - 600_000, STATUS, 77)
    assert [True, False] == [detector.alive("g", node) for node in ("n1", "n3")]


@pytest.mark.parametrize("stopped_ms", [3_500, 60_000])
def test_a_node_that_died_while_a_reader_that_was_just_opened_was_stopped_is_offline(stopped_ms: int) -> None:
    """The first status is as old as the reader may be: it has nothing before it to be compared with."""
    topic = Topic()
    topic.detector = FailureDetector(time=StatusTime(opened_ms=topic.now_ms))
    topic.reads = False
    topic.run(100, ("n3",))
    topic.run(stopped_ms, ("n1", "n2"))
    topic.reads = True
    topic.read()
    assert topic.online() == ("n1", "n2")


@pytest.mark.parametrize("step_ms", STEPS_MS)
def test_a_step_of_the_brokers_clock_right_behind_the_opening_of_a_reader_takes_nobody_offline(step_ms: int) -> None:
    """What the first status may have waited is no more than the interval in which each node sends again."""
    topic = Topic()
    topic.detector = FailureDetector(time=StatusTime(opened_ms=topic.now_ms - 500))
    assert topic.run(1_000, ALL)[-1] == ALL
    topic.broker_ms = step_ms
    assert [ALL] == topic.run(7_000, ALL)


def test_drift_between_the_clocks_of_broker_and_receiver_is_followed() -> None:
    """A broker's clock that falls behind by a second an hour leaves no room for a step forward a day later."""
    topic = Topic()
    topic.run(20_000, ALL)
    for _ in range(24 * 6):
        topic.broker_ms -= 170
        topic.now_ms += 590_000
        topic.run(10_000, ALL)
    topic.broker_ms += 600_000
    assert [ALL] == topic.run(7_000, ALL)


def test_a_clock_that_falls_back_again_and_again_hides_no_dead_node() -> None:
    """The distance of a step back is that of the receipts: set back at every status, time passes nevertheless."""
    topic = Topic()
    topic.run(20_000, ALL)
    for _ in range(60):
        topic.broker_ms -= 10_000
        topic.run(100, ("n1", "n2"))
    assert topic.online() == ("n1", "n2")


def test_a_step_back_in_what_a_stopped_reader_missed_takes_nobody_offline() -> None:
    """The time between two receipts counts for an interval at most, however long the reader was stopped."""
    topic = Topic()
    topic.run(20_000, ALL)
    topic.reads, topic.broker_ms = False, -600_000
    topic.run(30_000, ALL)
    assert [ALL] == list(dict.fromkeys(topic.read()))


def test_the_newest_time_of_the_broker_is_that_of_the_newest_status() -> None:
    """Also behind a step back: the age of a claim and the expiry of rows are measured from it."""
    topic = Topic()
    topic.run(5_000, ALL)
    topic.broker_ms = -600_000
    topic.run(5_000, ALL)
    assert abs(topic.detector.newest_ms - (topic.now_ms - 600_000)) <= 500


@given(
    waited_ms=st.integers(0, 20_000) | st.none(),
    before=st.lists(st.integers(0, 10**6), max_size=20),
    behind=st.lists(st.tuples(st.integers(0, 10**6), st.integers(0, 90_000)), max_size=60),
)
def test_the_time_of_the_topic_never_falls_nor_runs_away(
    waited_ms: int | None, before: list[int], behind: list[tuple[int, int]]
) -> None:
    """Whatever the timestamps: each status adds at most the time of the receiver since the first one, and the slack.

    Behind the first one, time also runs by what that one may have waited, OFFLINE_MS at most.
    """
    now_ms, seen = 25_000, [0]
    clock, lag_ms = (
        StatusTime(opened_ms=None if waited_ms is None else now_ms - waited_ms),
        min(waited_ms or 0, OFFLINE_MS),
    )
    seen += [clock.advance(timestamp_ms, None) for timestamp_ms in before]
    if behind:
        seen.append(clock.advance(behind[0][0], now_ms))
    first_ms = seen[-1]
    for timestamp_ms, passed_ms in behind[1:]:
        now_ms += passed_ms
        seen.append(clock.advance(timestamp_ms, now_ms))
        assert seen[-1] - first_ms <= now_ms - 25_000 + lag_ms + StatusTime.STEP_SLACK_MS
    assert seen == sorted(seen)
