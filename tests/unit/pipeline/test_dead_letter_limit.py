"""The limit of dead letters: what a task keeps back, and what a driver gets instead."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pytest

from headrace.pipeline import dead_letter_limit
from headrace.pipeline.cluster_access import ClusterAccess
from headrace.pipeline.dead_letter_limit import COUNT, counted_of, exceeds, limited, too_many_rejected
from headrace.pipeline.failures import TooManyRejected, explain
from headrace.pipeline.ingest_progress import Counts
from headrace.pipeline.ingest_task import ingest_partition
from headrace.pipeline.sink_records import COUNTED_SCHEMA, counts_of
from tests.unit.pipeline.harness import TOPICS, influx_job, new_log, raw_batch

GOOD = "\n".join(f"t,host=a v={number} {number}" for number in range(600))
BAD = "\n".join(["nothing"] * 600)


def task(limit: str | None, *messages: str, tasks: int = 1) -> list[pa.RecordBatch]:
    """What one of several tasks gives for these messages."""
    access = ClusterAccess(new_log(), TOPICS)
    access.begin_task()
    made = ingest_partition(
        iter([raw_batch([each], number) for number, each in enumerate(messages)]), influx_job(), access, "q", 0
    )
    found = list(made if limit is None else limited(made, limit, "dlq.raw", tasks))
    assert all(each.schema == COUNTED_SCHEMA for each in found)
    return found


def topics(made: Sequence[pa.RecordBatch]) -> set[str | None]:
    """Topics, by their first part."""
    return {each and each.split(".")[0] for batch in made for each in batch["topic"].to_pylist()}


def counted(made: Sequence[pa.RecordBatch]) -> Counts:
    """What a driver sums up."""
    return sum(map(counts_of, made), Counts())


def test_a_share_is_of_enough_lines() -> None:
    """Fewer than 1,000 lines never exceed it, and half of them is not more than 0.5."""
    assert [False, False, True, True] == [
        exceeds(0, 999, 0.5),
        exceeds(500, 500, 0.5),
        exceeds(499, 501, 0.5),
        exceeds(999, 1, 0.0),
    ]


def test_letters_below_the_limit_pass_with_all_counts() -> None:
    """They come behind the other records."""
    plain, made = task(None, BAD, GOOD, GOOD), task("0.5", BAD, GOOD, GOOD)
    assert {"c", "dlq"} == topics(made)
    assert (600, 1_200) == (counted(made).rejected, counted(made).rows)
    assert counted(plain) == counted(made)
    assert "dlq.raw" == made[-1]["topic"][0].as_py()


def test_letters_above_the_limit_fail_the_task() -> None:
    """None is given before, and none for the counts that a driver asks for then."""
    given: list[pa.RecordBatch] = []
    with pytest.raises(TooManyRejected, match="1,200 of 1,800 lines"):
        given.extend(task("0.5", BAD, BAD, GOOD))
    assert "dlq" not in topics(given)
    made = task(COUNT, BAD, BAD, GOOD)
    assert {None} == topics(made)
    assert Counts() == counted(made)
    counts = counted_of(row for batch in made for row in batch["value"].to_pylist())
    assert (600, 1_200) == (counts.rows, counts.rejected)
    assert 1_200 == sum(counts.reasons.values())


def test_a_task_of_many_has_its_part_of_the_lines() -> None:
    """A wrong option refuses all lines of every partition, few as those of each may be: the driver has to count."""
    assert {"dlq"} == topics(task("0.5", BAD))
    with pytest.raises(TooManyRejected, match="600 of 600 lines"):
        task("0.5", BAD, tasks=2)
    assert {"c", "dlq"} == topics(task("0.5", BAD, GOOD, tasks=8)), "half of them is not too many"
    assert [False, True] == [exceeds(0, 124, 0.5, tasks=8), exceeds(0, 125, 0.5, tasks=8)]


def test_letters_are_held_within_a_limit_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Beyond it the task fails whatever the share is, since only the driver can count then."""
    monkeypatch.setattr(dead_letter_limit, "HELD_BYTES_MAX", 10)
    with pytest.raises(TooManyRejected, match="bytes of dead letters"):
        task("0.5", BAD, GOOD, GOOD)


def test_the_error_survives_spark() -> None:
    """Its text in a traceback gives the error again: one line, the most frequent reason, and what to do."""
    error = too_many_rejected(10, 1_990, {"rare": 5, "no\nJSON": 1_985}, "dlq.raw")
    text = f"boom\nheadrace.pipeline.failures.TooManyRejected: {error}\n\nat org.apache.spark"
    explained = explain(Exception(text), "raw")
    assert isinstance(explained, TooManyRejected)
    assert (error.message, error.action, False) == (explained.message, explained.action, explained.retriable)
    assert "1,990 of 2,000 lines" in error.message
    assert error.message.endswith("most often: no JSON")
    assert "headrace dlq show dlq.raw" in error.action
