"""The raw messages of an offset range, read by librdkafka in the process that parses them.

Spark only plans the ranges. If it read them too, each message would pass from its JVM to Python as a row of
its own, which takes longer than reading. No Python code runs per message here: `map` applies functions
written in C.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from operator import itemgetter

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from headrace.connectors.log.kafka_errors import TRUNCATED, log_error, read_error
from headrace.connectors.log.kafka_settings import consumer_settings
from headrace.connectors.log.port import LogUnavailable, RecordUndeliverable
from headrace.pipeline.failures import raw_data_lost
from headrace.pipeline.job import IngestJob
from headrace.pipeline.raw_offsets import OffsetRange
from headrace.schemas.errors import HeadraceError

MESSAGES_PER_CALL = 1_000
"""The messages of one call stay in the processor's cache while their columns are made."""
POLL_S = 0.5
STALL_TIMEOUT_S = 5.0
STALL_TIMEOUT_S_MAX = 40.0
WATERMARK_TIMEOUT_S = 10.0
READER_SETTINGS = {
    # The planned messages exist already; the next range must not wait for a fetch behind the end of this one.
    "fetch.wait.max.ms": 5,
    # Small fetches waste little beyond the end of the range, and their messages are still in the processor's
    # cache when used.
    "max.partition.fetch.bytes": 2 * 1024 * 1024,
    "queued.min.messages": 20_000,
    "queued.max.messages.kbytes": 16_384,
}
RAW_SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", pa.timestamp("ms", "UTC")),
    ]
)
_TIME = itemgetter(1)
_readers: dict[tuple[str, str, tuple[tuple[str, str], ...]], OffsetRangeReader] = {}


def offset_range_reader(job: IngestJob) -> OffsetRangeReader:
    """This process's reader of the job's topic."""
    key = (job.bootstrap, job.cluster, job.settings)
    if key not in _readers:
        name = f"headrace-{job.cluster}-ingest"
        settings = consumer_settings(job.bootstrap, name, dict(job.settings), **READER_SETTINGS)
        _readers[key] = OffsetRangeReader(lambda: Consumer(settings))
    return _readers[key]


class OffsetRangeReader:
    """Reads offset ranges one after the other with one consumer, created when it is first needed. Used by one
    task at a time.

    A consumer that delivers nothing is replaced: librdkafka's can stall for good when a broker restarts
    (librdkafka issue 4492). Each further consumer gets twice the time, because a single fetch over a slow
    line may take long.
    """

    def __init__(
        self,
        make_consumer: Callable[[], Consumer],
        *,
        stall_timeout_s: float = STALL_TIMEOUT_S,
        stall_timeout_s_max: float = STALL_TIMEOUT_S_MAX,
    ) -> None:
        self._make_consumer = make_consumer
        self._stall_timeout_s = stall_timeout_s
        self._stall_timeout_s_max = stall_timeout_s_max
        self._consumer: Consumer | None = None

    def read(self, offset_range: OffsetRange) -> Iterator[pa.RecordBatch]:
        """All messages of a range, in batches of `RAW_SCHEMA` as they arrive; never an empty one.

        Raises RawDataLost when the topic no longer holds the range, LogUnavailable when it delivers nothing
        for long, RecordUndeliverable, AccessDenied, TopicMissing.
        """
        position, stall_timeout_s = offset_range.begin, self._stall_timeout_s
        try:
            consumer = self._assigned(offset_range, position)
            progress_s = time.monotonic()
            while position < offset_range.end:
                batch, reached = _next_batch(consumer, offset_range, position)
                if reached > position:
                    position = reached
                    if batch is not None:
                        yield batch
                    # The caller parses the batch before it takes the next: that time is no stall.
                    progress_s, stall_timeout_s = time.monotonic(), self._stall_timeout_s
                elif time.monotonic() - progress_s >= stall_timeout_s:
                    if stall_timeout_s >= self._stall_timeout_s_max:
                        raise self._stalled(offset_range, position)
                    stall_timeout_s = min(2 * stall_timeout_s, self._stall_timeout_s_max)
                    self.close()
                    consumer = self._assigned(offset_range, position)
                    progress_s = time.monotonic()
        except KafkaException as error:
            self.close()
            raise log_error(error.args[0], offset_range.topic) from error
        except BaseException:
            # Also when Spark ends the task early: a consumer in an unknown state must not serve the next task
            # of this worker.
            self.close()
            raise
        consumer.unassign()

    def close(self) -> None:
        """Close the consumer; the next range creates another one."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _assigned(self, offset_range: OffsetRange, position: int) -> Consumer:
        consumer = self._consumer = self._consumer or self._make_consumer()
        consumer.assign([TopicPartition(offset_range.topic, offset_range.partition, position)])
        return consumer

    def _stalled(self, offset_range: OffsetRange, position: int) -> HeadraceError:
        """Why nothing is delivered."""
        begin, end = self._watermarks(offset_range)
        if begin > position or 0 <= end < offset_range.end:
            return raw_data_lost(offset_range.topic)
        return LogUnavailable(
            f"Kafka delivers nothing of topic {offset_range.topic}, partition {offset_range.partition}, from offset {position}",
            action="check the broker",
            retriable=True,
        )

    def _watermarks(self, offset_range: OffsetRange) -> tuple[int, int]:
        """The begin and end offset of the topic partition, -1 each while unknown."""
        # A new consumer: the stalled one may answer from a cache that is as old as its stall.
        consumer = self._make_consumer()
        try:
            partition = TopicPartition(offset_range.topic, offset_range.partition)
            return consumer.get_watermark_offsets(partition, timeout=WATERMARK_TIMEOUT_S)
        except KafkaException:
            return -1, -1
        finally:
            consumer.close()


def _next_batch(consumer: Consumer, offset_range: OffsetRange, position: int) -> tuple[pa.RecordBatch | None, int]:
    """(the messages that have arrived, None for none; the position behind them), after POLL_S at most."""
    first = consumer.poll(POLL_S)
    if first is None:
        return None, position
    # A thousand new objects trigger the garbage collector, which scans all objects and finds none to free.
    gc.disable()
    try:
        messages = [first, *consumer.consume(MESSAGES_PER_CALL - 1, 0)]
        if any(map(Message.error, messages)):
            messages, position = _without_errors(messages, offset_range, position)
        return _as_batch(messages, offset_range, position)
    finally:
        gc.enable()


def _without_errors(messages: list[Message], offset_range: OffsetRange, position: int) -> tuple[list[Message], int]:
    """(the messages without an error; the position, behind transaction markers when the end of the topic was
    reached).
    """
    good: list[Message] = []
    for message in messages:
        error = message.error()
        if error is None:
            good.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            # Transaction markers take offsets and are never delivered: only this event moves the position
            # behind them. Messages that follow it in this batch have higher offsets still.
            position = max(position, message.offset() or 0)
        elif error.code() in TRUNCATED:
            raise raw_data_lost(offset_range.topic)
        else:
            # librdkafka is already behind a message that it could not read. The task fails as a whole, so nothing
            # is counted past it.
            at = max(message.offset() or 0, (good[-1].offset() or 0) + 1 if good else position)
            raised = read_error(error, offset_range.topic, offset_range.partition, at)
            if isinstance(raised, RecordUndeliverable) and raised.offset >= offset_range.end:
                position = max(position, raised.offset)
            elif raised is not None:
                raise raised
    return good, position


def _offsets(messages: list[Message]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """The offsets of messages of one partition, at least one."""
    first, last = messages[0].offset() or 0, messages[-1].offset() or 0
    # They ascend: as many messages as offsets have all of them, unless the topic is compacted or has transactions.
    if last - first == len(messages) - 1:
        return np.arange(first, last + 1, dtype=np.int64)
    return np.fromiter(map(Message.offset, messages), np.int64, len(messages))


def _as_batch(messages: list[Message], offset_range: OffsetRange, position: int) -> tuple[pa.RecordBatch | None, int]:
    """(the messages of the range as columns, None for none; the position behind all messages given)."""
    if not messages:
        return None, position
    offsets = _offsets(messages)
    position = max(position, int(offsets[-1]) + 1)
    if position > offset_range.end:
        offsets = offsets[: np.searchsorted(offsets, offset_range.end)]
        messages = messages[: len(offsets)]
        if not messages:
            return None, position
    assert offset_range.begin <= offsets[0], "Kafka delivered a message before the requested offset"
    times_ms = np.fromiter(map(_TIME, map(Message.timestamp, messages)), np.int64, len(messages))
    columns = [
        pa.array(list(map(Message.key, messages)), pa.binary()),
        pa.array(list(map(Message.value, messages)), pa.binary()),
        pa.repeat(pa.scalar(offset_range.partition, pa.int32()), len(messages)),
        pa.array(offsets),
        pa.Array.from_buffers(RAW_SCHEMA.field("timestamp").type, len(messages), [None, pa.py_buffer(times_ms)]),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA), position
