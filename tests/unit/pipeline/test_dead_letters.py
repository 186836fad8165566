"""Dead letters: listed, shown, and replayed into the forward logs, on a log in memory."""

from __future__ import annotations

from collections.abc import Generator

import pytest

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import LogUnavailable, read_to_end
from headrace.connectors.log.topics import DLQ_TIMESTAMP_HEADER
from headrace.pipeline import dead_letter_replay
from headrace.pipeline.dead_letter_queue import (
    DeadLetter,
    DeadLetterQueues,
    QueueEmpty,
    QueueUnknown,
    ReplayContended,
    dead_letter_of,
    records_of,
)
from headrace.pipeline.dead_letter_replay import DeadLetterReplay, Replayed
from headrace.pipeline.failures import TooManyRejected
from headrace.pipeline.job import IngestJob
from headrace.schemas.messages import Write, decode_message
from headrace.schemas.payload import decode_rows
from tests.unit.pipeline.harness import START_MS, TOPICS, influx_job, json_job, new_log, raw_batch, run_attempt

QUEUE = "dlq.raw"


def refused(log: MemoryLog, *values: str | bytes, first_offset: int = 0) -> None:
    """Ingest these messages as JSON, which makes dead letters of all that are none."""
    run_attempt(log, json_job(), [raw_batch(values, first_offset, keys=[b"k"] * len(values))])


def letters(log: MemoryLog) -> list[DeadLetter]:
    """What is in the queue."""
    return list(map(dead_letter_of, records_of(log, DeadLetterQueues(log, TOPICS).queue(QUEUE))))


def replay(log: MemoryLog, job: IngestJob | None = None, share_max: float = 1.0) -> Replayed:
    """One replay to its end, as line protocol if no job is given."""
    queue = DeadLetterQueues(log, TOPICS).queue(QUEUE)
    steps = DeadLetterReplay(log, TOPICS, queue, job or influx_job(), share_max).run()
    return sum(steps, Replayed())


def written(log: MemoryLog) -> dict[tuple[str, int], float]:
    """The last value of each series and time in the forward logs, of field `v`."""
    found: dict[tuple[str, int], float] = {}
    for group in ("n1", "n2"):
        for record in read_to_end(log, TOPICS.forward(group), timeout_s=5):
            body = decode_message(record.value).body
            assert isinstance(body, Write)
            rows = decode_rows(body.rows)
            keys = zip(rows.column(0).to_pylist(), rows.column(1).to_pylist(), strict=True)
            found |= dict(zip(keys, rows.column("v").to_pylist(), strict=True))
    return found


def test_the_queue_has_bytes_and_reasons() -> None:
    """Key and value are those of the raw message, with the place that it had and the first bad line."""
    log = new_log()
    refused(log, b"t,host=a v=1 1\n\xff\x00", first_offset=5)
    [letter] = letters(log)
    assert (b"k", b"t,host=a v=1 1\n\xff\x00") == (letter.key, letter.value)
    assert ("raw", 0, 5, 1, START_MS + 5) == (
        letter.topic,
        letter.partition,
        letter.source_offset,
        letter.line,
        letter.timestamp_ms,
    )
    assert "(and 1 more bad lines)" in letter.reason
    [summary] = DeadLetterQueues(log, TOPICS).summaries()
    assert (QUEUE, 1, 0, 0) == (summary.topic, summary.records, summary.oldest_ms, summary.newest_ms)


def test_a_replay_writes_what_can_be_read_and_keeps_the_rest() -> None:
    """What is refused again stays with its new reason and its first place; a second replay takes that alone."""
    log = new_log()
    refused(log, "t,host=a v=1 1", "no reading", "t,host=a v=2 2")
    assert Replayed(3, 2, 1) == replay(log)
    assert {("t,host=a", 1): 1.0, ("t,host=a", 2): 2.0} == written(log)
    [left] = letters(log)
    assert ("raw", 1, b"no reading", b"k") == (left.topic, left.source_offset, left.value, left.key)
    assert "JSON" not in left.reason
    assert 1 == DeadLetterQueues(log, TOPICS).summaries()[0].records
    assert Replayed(1, 0, 1) == replay(log)
    assert 2 == len(written(log))
    assert 5 == log.describe(QUEUE).end, "no record of the topic is lost"


def test_lines_without_a_time_keep_that_of_their_message() -> None:
    """A line that ingest has written already is written over with itself, and no second row comes of it."""
    log = new_log()
    message = "t,host=a v=1\nt,host=b v=x"
    run_attempt(log, influx_job(), [raw_batch([message], 7)])
    first = written(log)
    assert {("t,host=a", (START_MS + 7) * 1_000_000): 1.0} == first
    assert Replayed(1, 1, 1) == replay(log)
    assert first == written(log)


def test_a_letter_without_headers_is_replayed_too() -> None:
    """Others may write to the topic; a line without a time is refused then, since nobody knows its time."""
    log = new_log()
    appender = log.appender()
    for value in (b"t,host=a v=1 1", b"t,host=a v=2"):
        appender.append(QUEUE, value)
    assert [(None, -1, -1)] * 2 == [(each.topic, each.partition, each.source_offset) for each in letters(log)]
    assert Replayed(2, 1, 1) == replay(log)
    [left] = letters(log)
    assert (b"t,host=a v=2", QUEUE, 1) == (left.value, left.topic, left.source_offset)
    assert Replayed(1, 0, 1) == replay(log)


def test_a_killed_replay_continues_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    """Finished steps are not repeated, and what they have written is as a whole replay writes it."""
    log = new_log()
    refused(log, *(f"t,host=a v={number} {number}" for number in range(10)))
    monkeypatch.setattr(dead_letter_replay, "POLL_RECORDS", 2)
    monkeypatch.setattr(dead_letter_replay, "STEP_RECORDS", 4)
    queue = DeadLetterQueues(log, TOPICS).queue(QUEUE)
    killed = DeadLetterReplay(log, TOPICS, queue, influx_job(), 1.0).run()
    assert Replayed(4, 4, 0) == next(killed)
    assert isinstance(killed, Generator)
    killed.close()
    assert list(range(4, 10)) == [each.offset for each in letters(log)]
    assert Replayed(6, 6, 0) == replay(log)
    assert {("t,host=a", number): float(number) for number in range(10)} == written(log)
    with pytest.raises(QueueEmpty, match=r"dlq\.raw has no dead letters"):
        replay(log)


def test_a_second_replay_beside_the_first_is_an_error() -> None:
    """Each step looks whether the position is still its own."""
    log = new_log()
    refused(log, "t,host=a v=1 1", "t,host=a v=2 2")
    queue = DeadLetterQueues(log, TOPICS).queue(QUEUE)
    other = DeadLetterReplay(log, TOPICS, queue, influx_job(), 1.0)
    replay(log)
    with pytest.raises(ReplayContended, match="another replay"):
        list(other.run())


def test_a_topic_that_was_made_again_was_not_replayed() -> None:
    """The position belongs to the topic's id."""
    log = new_log()
    refused(log, "t,host=a v=1 1")
    replay(log)
    log.delete_topic(QUEUE)
    log.create_topic(QUEUE, {})
    refused(log, "t,host=a v=2 2")
    assert 1 == len(letters(log))


def test_two_messages_of_one_offset_are_both_replayed() -> None:
    """A raw topic that was created again has its offsets twice; of two values the one of the newer topic wins."""
    log = new_log()
    refused(log, "t,host=a v=1 1", "t,host=b v=2 2")
    refused(log, "t,host=c v=3 3", "t,host=b v=4 2")
    refused(log, "t,host=c v=3 3", "t,host=b v=4 2")
    assert Replayed(6, 4, 0) == replay(log)
    assert {("t,host=a", 1): 1.0, ("t,host=b", 2): 4.0, ("t,host=c", 3): 3.0} == written(log)


def test_a_log_that_does_not_answer_makes_no_dead_letter() -> None:
    """Neither a replay nor ingest takes a target that is down for a bad record."""
    log = new_log()
    refused(log, "t,host=a v=1 1")
    queue = DeadLetterQueues(log, TOPICS).queue(QUEUE)
    steps = DeadLetterReplay(log, TOPICS, queue, influx_job(), 1.0).run()
    for hidden in (TOPICS.table, TOPICS.forward("n1"), TOPICS.forward("n2")):
        log.denied.add(hidden)
    with pytest.raises(Exception, match="refuses this account"):
        next(steps)
    log.denied.clear()
    attempt = [raw_batch(["t,host=b v=1 1"])]
    log.denied.add(TOPICS.table)
    with pytest.raises(Exception, match="refuses this account"):
        run_attempt(log, influx_job(), attempt)
    log.denied.clear()
    log.unavailable = True
    with pytest.raises(LogUnavailable):
        run_attempt(log, influx_job(), attempt)
    log.unavailable = False
    assert 1 == log.describe(QUEUE).end
    assert 1 == len(letters(log))
    assert Replayed(1, 1, 0) == replay(log)


def test_a_wrong_format_stops_before_it_fills_the_queue() -> None:
    """With too many lines refused again nothing is written and the position stays."""
    log = new_log()
    refused(log, "\n".join(f"t,host=a v={number} {number}" for number in range(1_200)))
    end = log.describe(QUEUE).end
    with pytest.raises(TooManyRejected, match="1,200 of 1,200 lines") as raised:
        replay(log, json_job(), share_max=0.5)
    assert "--format" in raised.value.action
    assert (end, 1) == (log.describe(QUEUE).end, len(letters(log)))
    assert Replayed(1, 1_200, 0) == replay(log, share_max=0.5)


def test_an_unknown_queue_names_near_ones() -> None:
    """A raw topic's name, and a misspelt one."""
    queues = DeadLetterQueues(new_log(), TOPICS)
    for name in ("raw", "dlq.rwa"):
        with pytest.raises(QueueUnknown) as raised:
            queues.queue(name)
        assert "did you mean dlq.raw?" == raised.value.action
    with pytest.raises(QueueUnknown, match="zebra"):
        queues.queue("zebra")
    with pytest.raises(QueueEmpty):
        queues.queue(QUEUE)


def test_headers_of_earlier_builds_have_no_timestamp() -> None:
    """Such a letter is read like any other, with its time unknown."""
    log = new_log()
    refused(log, "t,host=a v=1")
    [record] = read_to_end(log, QUEUE, timeout_s=5)
    headers = [each for each in record.headers if each[0] != DLQ_TIMESTAMP_HEADER]
    log.appender().append(QUEUE, record.value, key=record.key, headers=headers)
    assert [START_MS, -1] == [each.timestamp_ms for each in letters(log)]
