"""What a query on a raw topic reads next, on topics in memory."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.connectors.log.kafka_partitions import NO_OFFSET, PartitionedTopic
from headrace.pipeline.failures import RawDataLost
from headrace.pipeline.raw_offsets import (
    EARLIEST,
    LATEST,
    OffsetRange,
    OffsetsInvalid,
    Start,
    document_of,
    next_offsets,
    offset_ranges,
    offsets_of,
)
from headrace.pipeline.raw_planner import RawPlanner


@dataclass
class Topic:
    """A raw topic: begin and end of each partition, and the offset of any time."""

    begins_at: dict[int, int]
    ends: dict[int, int]
    topic_id: str = "one"
    times: dict[int, int] = field(default_factory=dict)
    closed: bool = False

    def state(self, topic: str) -> PartitionedTopic:
        """See PartitionLog."""
        return PartitionedTopic(self.topic_id, dict(self.ends))

    def begins(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        """See PartitionLog."""
        return {partition: self.begins_at[partition] for partition in partitions}

    def at_time(self, topic: str, partitions: Collection[int], timestamp_ms: int) -> dict[int, int]:
        """See PartitionLog."""
        return {partition: self.times.get(partition, NO_OFFSET) for partition in partitions}

    def close(self) -> None:
        """See PartitionLog."""
        self.closed = True


def planner(topic: Topic, start: Start | None = None, **more: object) -> RawPlanner:
    """A planner that waits for nothing."""
    given_start = start or Start()
    return RawPlanner("raw", topic, given_start, sleep=lambda _s: None, idle_wait_s=0.0, **more)  # type: ignore[arg-type]


def two_partitions() -> Topic:
    """One that was trimmed, and one from its first message."""
    return Topic({0: 5, 1: 0}, {0: 105, 1: 10})


def test_a_new_query_reads_all_that_the_topic_holds() -> None:
    """The first batch begins where each partition does, and ends where it does; then there is nothing new."""
    planned = planner(two_partitions())
    assert {0: 105, 1: 10} == planned.latest()
    assert {0: 5, 1: 0} == planned.initial()
    assert [OffsetRange("raw", 0, 5, 105), OffsetRange("raw", 1, 0, 10)] == planned.ranges(
        planned.initial(), planned.latest()
    )
    assert {0: 105, 1: 10} == planned.latest()


def test_batches_are_limited_and_reach_every_partition() -> None:
    """A limit is divided by what is left, at least one message each; the last batch ends at the fixed end."""
    topic = two_partitions()
    planned = planner(topic, messages_max=22, until={0: 105, 1: 10})
    ends = [planned.latest()]
    topic.ends = {0: 1_000, 1: 1_000, 2: 50}
    while (following := planned.latest()) != ends[-1]:
        ends.append(following)
    assert {0: 25, 1: 2} == ends[0]
    assert {0: 105, 1: 10} == ends[-1]
    assert 5 <= len(ends) <= 6


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        (Start(EARLIEST), {0: 5, 1: 0}),
        (Start(LATEST), {0: 105, 1: 10}),
        (Start(offsets={0: 50, 1: EARLIEST}), {0: 50, 1: 0}),
        (Start(offsets={0: LATEST, 1: 3}), {0: 105, 1: 3}),
        (Start(timestamp_ms=7, or_latest=True), {0: 60, 1: 10}),
    ],
)
def test_a_query_begins_where_its_options_name(start: Start, expected: dict[int, int]) -> None:
    """By a rule, by offsets, or by a time, as Spark's Kafka source does."""
    topic = two_partitions()
    topic.times = {0: 60}
    assert expected == planner(topic, start).initial()


@pytest.mark.parametrize(
    ("start", "word"),
    [
        (Start(offsets={0: 50}), "partitions 0, and topic raw has 0, 1"),
        (Start(offsets={0: 50, 1: 0, 2: 0}), "partitions 0, 1, 2, and topic raw has 0, 1"),
        (Start(offsets={0: 4, 1: 0}), "4 for partition 0"),
        (Start(offsets={0: 5, 1: 11}), "11 for partition 1"),
        (Start(timestamp_ms=7), "no message at or after 7 ms"),
    ],
)
def test_a_begin_that_the_topic_does_not_have_is_refused(start: Start, word: str) -> None:
    """Never moved to another offset in silence."""
    with pytest.raises(OffsetsInvalid, match=word):
        planner(two_partitions(), start).latest()


def test_an_added_partition_is_read_from_its_first_message() -> None:
    """It is in the next batch; one that has lost its first messages is data loss."""
    topic = two_partitions()
    planned = planner(topic)
    before = planned.latest()
    topic.ends[2], topic.begins_at[2] = 0, 0
    assert before == planned.latest()
    topic.ends[2] = 7
    after = planned.latest()
    assert [OffsetRange("raw", 2, 0, 7)] == planned.ranges(before, after)
    topic.begins_at[2] = 1
    with pytest.raises(RawDataLost):
        planned.ranges(before, after)


def restarted(topic: Topic, ends: list[dict[int, int]], start: Start | None = None) -> RawPlanner:
    """The planner of a query with these batches in its checkpoint, asked as Spark asks it: first for the last end."""
    planned = planner(topic, start)
    planned.resume(ends[-1])
    return planned


@pytest.mark.parametrize("start", [Start(), Start(offsets={0: EARLIEST, 1: 0}), Start(timestamp_ms=7)])
def test_a_partition_is_added_while_the_first_batch_is_unfinished(start: Start) -> None:
    """Spark asks for the beginning again, which has that partition and the batch has not: the next batch reads it,
    from its first message on, once, and again so when that one is unfinished too.
    """
    topic = two_partitions()
    topic.times = {0: 5, 1: 0}
    first = planner(topic, start).latest()
    topic.begins_at[2], topic.ends = 0, {0: 107, 1: 10, 2: 7}
    topic.times[2] = 3
    planned = restarted(topic, [first], start)
    assert [OffsetRange("raw", 0, 5, 105), OffsetRange("raw", 1, 0, 10)] == planned.ranges(planned.initial(), first)
    second = planned.latest()
    expected = [OffsetRange("raw", 0, 105, 107), OffsetRange("raw", 2, 0, 7)]
    assert expected == planned.ranges(first, second)
    again = restarted(topic, [first, second], start)
    assert expected == again.ranges(first, second)
    assert second == again.latest()


def test_a_start_at_the_end_loses_nothing_with_its_first_batch() -> None:
    """That batch is empty, and stays so when it is planned again behind later messages: the next one has these."""
    topic = two_partitions()
    planned = planner(topic, Start(LATEST))
    begin = planned.initial()
    topic.ends = {0: 120, 1: 10}
    first = planned.latest()
    assert begin == first == {0: 105, 1: 10}
    again = restarted(topic, [first], Start(LATEST))
    assert [] == again.ranges(again.initial(), first)
    assert [OffsetRange("raw", 0, 105, 120)] == again.ranges(first, again.latest())


def test_of_a_start_at_a_time_only_what_begins_at_the_end_is_empty() -> None:
    """The first batch has the messages from that time on, which `availableNow` takes for all that there is."""
    topic = two_partitions()
    topic.times = {0: 60}
    start = Start(timestamp_ms=7, or_latest=True)
    planned = planner(topic, start)
    begin = planned.initial()
    topic.ends = {0: 120, 1: 15}
    first = planned.latest()
    assert [OffsetRange("raw", 0, 60, 120)] == planned.ranges(begin, first)
    topic.times = {0: 60, 1: 12}
    again = restarted(topic, [first], start)
    assert [OffsetRange("raw", 0, 60, 120)] == again.ranges(again.initial(), first)
    assert [OffsetRange("raw", 1, 10, 15)] == again.ranges(first, again.latest())


def test_a_first_batch_whose_messages_are_gone_is_no_empty_one() -> None:
    """They were trimmed before it was finished: the start has moved, and nobody has read them for certain."""
    topic = two_partitions()
    first = planner(topic).latest()
    topic.begins_at[0], topic.ends[0] = 110, 120
    again = restarted(topic, [first])
    with pytest.raises(OffsetsInvalid, match="partition 0"):
        again.ranges(again.initial(), first)


def test_lost_messages_end_the_query() -> None:
    """Trimmed before they were read, or a partition or the whole topic that is another one now."""
    topic = two_partitions()
    planned = planner(topic)
    planned.resume({0: 50, 1: 3})
    topic.begins_at[0] = 51
    with pytest.raises(RawDataLost):
        planned.ranges({0: 50, 1: 3}, planned.latest())
    topic.topic_id = "two"
    with pytest.raises(RawDataLost):
        planned.latest()
    other = planner(Topic({0: 0}, {0: 500}))
    other.resume({0: 50, 1: 3})
    with pytest.raises(RawDataLost):
        other.latest()


def test_an_end_that_goes_back_for_a_moment_is_waited_for() -> None:
    """A new leader may know less of what is committed; messages that stay away are lost."""
    topic = two_partitions()
    planned = planner(topic, retreat_wait_s=0.0)
    planned.resume({0: 105, 1: 10})
    topic.ends = {0: 100, 1: 12}
    assert {0: 105, 1: 12} == planned.latest()
    topic.ends = {0: 106, 1: 12}
    assert {0: 106, 1: 12} == planned.latest()
    topic.ends = {0: 100, 1: 12}
    planned.latest()
    with pytest.raises(RawDataLost):
        planned.latest()


def test_an_idle_topic_is_asked_now_and_then() -> None:
    """Spark asks without a pause: the answer takes its time while nothing is new, and none when there is."""
    slept: list[float] = []
    topic = two_partitions()
    planned = RawPlanner("raw", topic, Start(), sleep=slept.append, idle_wait_s=0.05)
    planned.latest()
    assert [] == slept
    planned.latest()
    assert slept
    at_end = RawPlanner("raw", topic, Start(), sleep=lambda _s: pytest.fail("it waits"), until={0: 105, 1: 10})
    assert at_end.latest() == at_end.latest()


def test_the_form_is_that_of_sparks_kafka_source() -> None:
    """Partitions as text, in their order: Spark compares offsets as text."""
    assert '{"raw": {"2": 1, "10": 2}}'.replace('"', "'") == str(document_of("raw", {10: 2, 2: 1}))
    assert {0: 17, 1: 3} == offsets_of({"raw": {"1": 3, "0": 17}}, "raw")


@pytest.mark.parametrize(
    "document", [{"other": {"0": 1}}, {"raw": {"0": 1}, "b": {}}, [], {"raw": 5}, {"raw": {"x": 1}}]
)
def test_offsets_of_another_job_are_refused(document: object) -> None:
    """Another topic, several topics, or no offsets at all."""
    with pytest.raises(OffsetsInvalid):
        offsets_of(document, "raw")


def test_a_range_never_goes_back() -> None:
    """A partition that ends before it begins, or that is gone, is no empty range."""
    assert [] == offset_ranges("raw", {0: 5}, {0: 5})
    for end in ({0: 4}, {1: 9}):
        with pytest.raises(OffsetsInvalid):
            offset_ranges("raw", {0: 5}, end)


@given(
    st.dictionaries(st.integers(0, 20), st.tuples(st.integers(0, 10**9), st.integers(0, 10**9)), min_size=1),
    st.integers(1, 10**9),
)
def test_limited_batches_read_each_message_once(partitions: dict[int, tuple[int, int]], limit: int) -> None:
    """Each batch moves on by about the limit, and never beyond the end."""
    position = {number: min(pair) for number, pair in partitions.items()}
    ends = {number: max(pair) for number, pair in partitions.items()}
    reached = next_offsets(position, ends, limit)
    assert all(position[number] <= reached[number] <= ends[number] for number in ends)
    moved = sum(reached[number] - position[number] for number in ends)
    left = sum(ends[number] - position[number] for number in ends)
    assert moved <= limit + len(partitions)
    assert bool(moved) == bool(left)
    assert ends == next_offsets(position, ends, None)
