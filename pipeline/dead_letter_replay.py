"""Replays dead letters: each raw message goes through the parser once more, and its rows into the forward logs.

A step takes some records, writes their rows, appends the messages that are refused again to the end of the queue with
their new reason, and then moves the position. A replay that is killed repeats its last step: rows are upserts, and a
message may then be in the queue twice.
"""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from headrace.connectors.log.port import Appender, AppendUnknown, Record
from headrace.connectors.log.topics import Topics
from headrace.pipeline.batch_table import has_ended
from headrace.pipeline.cluster_access import ClusterAccess
from headrace.pipeline.dead_letter_limit import exceeds, is_dead_letters, too_many_rejected
from headrace.pipeline.dead_letter_queue import DeadLetter, DeadLetterQueues, Queue, QueueLog, dead_letter_of, polls
from headrace.pipeline.failures import GroupEnded
from headrace.pipeline.ingest_progress import Counts
from headrace.pipeline.ingest_task import ingest_partition
from headrace.pipeline.job import IngestJob
from headrace.pipeline.offset_ranges import RAW_SCHEMA
from headrace.pipeline.sink_records import counts_of
from headrace.schemas.errors import HeadraceError

STEP_RECORDS = 10_000
STEP_BYTES = 32 * 1024 * 1024
POLL_RECORDS = 500
FLUSH_TIMEOUT_S = 300.0
ATTEMPTS_MAX = 5
PARTITIONS_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay did: dead letters that it took, rows that it wrote, messages that were refused again."""

    records: int = 0
    rows: int = 0
    rejected: int = 0

    def __add__(self, other: Replayed) -> Replayed:
        return Replayed(self.records + other.records, self.rows + other.rows, self.rejected + other.rejected)


class DeadLetterReplay:
    """One replay of one dead-letter topic. Owned by one thread."""

    def __init__(self, log: QueueLog, topics: Topics, queue: Queue, job: IngestJob, rejected_share_max: float) -> None:
        """`job` says how the messages are parsed, and where their rows go; its topic does not count."""
        self._log = log
        self._queue = queue
        self._job = job
        self._share_max = rejected_share_max
        self._queues = DeadLetterQueues(log, topics)
        self._access = ClusterAccess(log, topics)
        self._run = uuid.uuid4().hex
        self._batch = 0

    def run(self) -> Iterator[Replayed]:
        """What each step did. The position is moved before a step is given.

        Raises TooManyRejected, ReplayContended, LogUnavailable, AppendUnknown.
        """
        position = self._queue.begin
        reader = self._log.reader({self._queue.topic: position})
        appender = self._log.appender()
        with contextlib.closing(self._access.tables), contextlib.closing(appender), contextlib.closing(reader):
            for records in steps(polls(reader, self._queue, POLL_RECORDS)):
                self._queues.check_own(self._queue, position)
                done = self._step(records, appender)
                position = records[-1].offset + 1
                self._queues.save(self._queue, position, self._run)
                yield done
        if position < self._queue.end:
            # Offsets without a record, as of a transaction's marker.
            self._queues.save(self._queue, self._queue.end, self._run)

    def _step(self, records: Sequence[Record], appender: Appender) -> Replayed:
        for _ in range(ATTEMPTS_MAX):
            self._access.begin_task()
            made = list(self._made(records))
            counts = sum((counts_of(each) for each in made), Counts())
            if exceeds(counts.rows, counts.rejected, self._share_max):
                raise too_many_rejected(counts.rows, counts.rejected, counts.reasons, self._queue.topic)
            failure = _append(appender, made)
            # As in ingest: rows that a group took while it ended may be lost, and are written again.
            if not has_ended(self._access.slot_table, self._access.newest_table()):
                if failure is not None:
                    raise failure
                rejected = sum(each.num_rows for each in made if is_dead_letters(each))
                return Replayed(len(records), counts.rows, rejected)
        raise GroupEnded("data groups ended again and again while rows were written", retriable=True)

    def _made(self, records: Sequence[Record]) -> Iterator[pa.RecordBatch]:
        """The records that these become: forward messages, and dead letters again."""
        for topic, letters in by_source(map(dead_letter_of, records), self._queue.topic):
            self._batch += 1
            job = replace(self._job, topic=topic)
            for made in ingest_partition(iter([raw_messages(letters)]), job, self._access, self._run, self._batch):
                # The queue, also where the topic of the headers has another one.
                yield (
                    made
                    if not is_dead_letters(made)
                    else made.set_column(0, "topic", pa.repeat(pa.scalar(self._queue.topic), made.num_rows))
                )


@dataclass(slots=True)
class _Deliveries:
    """The first error of the deliveries of a step."""

    failure: HeadraceError | None = field(default=None)

    def report(self, _offset: int | None, error: HeadraceError | None) -> None:
        if error is not None and self.failure is None:
            self.failure = error


def _append(appender: Appender, made: Iterable[pa.RecordBatch]) -> HeadraceError | None:
    """Append the records and wait for their delivery; what went wrong."""
    deliveries = _Deliveries()
    for batch in made:
        for record in batch.select(["topic", "key", "value", "headers"]).to_pylist():
            if record["topic"] is not None:
                headers = [(each["key"], each["value"]) for each in record["headers"]]
                appender.append(
                    record["topic"],
                    record["value"] or b"",
                    key=record["key"],
                    headers=headers,
                    on_delivery=deliveries.report,
                )
    if appender.flush(FLUSH_TIMEOUT_S):
        return AppendUnknown("Kafka did not confirm the rows of dead letters", action="start the replay again")
    return deliveries.failure


def steps(polled: Iterable[list[Record]]) -> Iterator[list[Record]]:
    """The records in order, as many at a time as one step takes."""
    step: list[Record] = []
    size_bytes = 0
    for records in polled:
        step += records
        size_bytes += sum(len(each.value) for each in records)
        if len(step) >= STEP_RECORDS or size_bytes >= STEP_BYTES:
            yield step
            step, size_bytes = [], 0
    if step:
        yield step


def by_source(letters: Iterable[DeadLetter], queue: str) -> Iterator[tuple[str, list[DeadLetter]]]:
    """(raw topic, the messages of one of its partitions), in their order there and each once.

    A dead letter that does not say where it came from has its place in the queue instead. Another message at the same
    offset is of a topic that was created again: it and those behind it are given behind the earlier ones.
    """
    found: dict[tuple[str, int], list[dict[int, DeadLetter]]] = {}
    for letter in letters:
        if letter.topic is None or letter.source_offset < 0 or not 0 <= letter.partition < PARTITIONS_MAX:
            letter = replace(letter, topic=queue, partition=0, source_offset=letter.offset)
        assert letter.topic is not None
        lives = found.setdefault((letter.topic, letter.partition), [{}])
        known = lives[-1].get(letter.source_offset)
        if known is not None and _content(known) != _content(letter):
            lives.append({})
        lives[-1][letter.source_offset] = letter
    for (topic, _), lives in found.items():
        for by_offset in lives:
            yield topic, [by_offset[offset] for offset in sorted(by_offset)]


def _content(letter: DeadLetter) -> tuple[bytes | None, bytes, int]:
    return letter.key, letter.value, letter.timestamp_ms


def raw_messages(letters: Sequence[DeadLetter]) -> pa.RecordBatch:
    """The raw messages of one partition, as ingest reads them."""
    columns = [
        [each.key for each in letters],
        [each.value for each in letters],
        [each.partition for each in letters],
        [each.source_offset for each in letters],
        [each.timestamp_ms for each in letters],
    ]
    arrays = [pa.array(column, kind) for column, kind in zip(columns, RAW_SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=RAW_SCHEMA)
