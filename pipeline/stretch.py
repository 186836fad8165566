"""The raw messages of one stretch of a topic partition, read by librdkafka in the process that parses them.

Spark only plans: which offsets a micro-batch has. Were it to read too, every message would pass from its JVM to Python as a row of its own, which
takes longer than reading. No Python code runs for each message here: what is done to all of them is done by `map` over functions written in C.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import pyarrow as pa
from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from connectors.log.kafka_errors import MISSING, TRUNCATED, log_error
from connectors.log.kafka_settings import consumer_settings
from connectors.log.port import LogUnavailable
from pipeline.failures import raw_data_lost
from pipeline.job import IngestJob
from schemas.errors import HeadraceError

MESSAGES_PER_CALL = 1_000
"""The messages of one call stay in the processor's cache while their columns are made."""
POLL_S = 0.5
PATIENCE_S = 5.0
PATIENCE_S_MAX = 40.0
QUESTION_TIMEOUT_S = 10.0
READER_SETTINGS = {
    # What is read is there already; the next stretch must not wait for an answer about the end of this one.
    "fetch.wait.max.ms": 5,
    # Little is fetched that lies beyond the stretch, and what is fetched is used soon.
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
_opened: dict[tuple[str, str, tuple[tuple[str, str], ...]], StretchReader] = {}


@dataclass(frozen=True, slots=True)
class Stretch:
    """The messages of a topic partition from offset `begin` up to, and not with, `end`."""

    topic: str
    partition: int
    begin: int
    end: int


def stretch_reader(job: IngestJob) -> StretchReader:
    """This process's reader of the job's topic."""
    key = (job.bootstrap, job.cluster, job.settings)
    if key not in _opened:
        name = f"headrace-{job.cluster}-ingest"
        settings = consumer_settings(job.bootstrap, name, dict(job.settings), **READER_SETTINGS)
        _opened[key] = StretchReader(lambda: Consumer(settings))
    return _opened[key]


class StretchReader:
    """Reads one stretch after the other with one consumer, made when it is first needed. Used by one task at a time.

    A consumer that hands out nothing is replaced, for librdkafka's can stand still for good when a broker restarts (librdkafka issue 4492). Each one
    is given twice the time of the one before: over a slow line a single fetch may take long.
    """

    def __init__(
        self,
        make_consumer: Callable[[], Consumer],
        *,
        patience_s: float = PATIENCE_S,
        patience_s_max: float = PATIENCE_S_MAX,
    ) -> None:
        self._make_consumer = make_consumer
        self._patience_s = patience_s
        self._patience_s_max = patience_s_max
        self._consumer: Consumer | None = None

    def read(self, stretch: Stretch) -> Iterator[pa.RecordBatch]:
        """All messages of a stretch, in pieces of `RAW_SCHEMA` as they come; never an empty one.

        Raises RawDataLost when the topic does not hold the stretch, LogUnavailable when it hands out nothing for long, TopicMissing.
        """
        position, patience_s = stretch.begin, self._patience_s
        try:
            consumer = self._assigned(stretch, position)
            heard_s = time.monotonic()
            while position < stretch.end:
                piece, reached = _next_piece(consumer, stretch, position)
                if reached > position:
                    position = reached
                    if piece is not None:
                        yield piece
                    # Whoever takes a piece may take long about it, and that is not Kafka's silence.
                    heard_s, patience_s = time.monotonic(), self._patience_s
                elif time.monotonic() - heard_s >= patience_s:
                    if patience_s >= self._patience_s_max:
                        raise self._silence(stretch, position)
                    patience_s = min(2 * patience_s, self._patience_s_max)
                    self.close()
                    consumer = self._assigned(stretch, position)
                    heard_s = time.monotonic()
        except KafkaException as error:
            self.close()
            raise log_error(error.args[0], stretch.topic) from error
        except BaseException:
            self.close()
            raise
        consumer.unassign()

    def close(self) -> None:
        """Close the consumer; the next stretch makes another one."""
        if self._consumer is not None:
            self._consumer.close()
            self._consumer = None

    def _assigned(self, stretch: Stretch, position: int) -> Consumer:
        consumer = self._consumer = self._consumer or self._make_consumer()
        consumer.assign([TopicPartition(stretch.topic, stretch.partition, position)])
        return consumer

    def _silence(self, stretch: Stretch, position: int) -> HeadraceError:
        """Why nothing comes."""
        begin, end = self._held(stretch)
        if begin > position or 0 <= end < stretch.end:
            return raw_data_lost(stretch.topic)
        return LogUnavailable(
            f"Kafka hands out nothing of topic {stretch.topic}, partition {stretch.partition}, from offset {position}",
            action="check the broker",
            retriable=True,
        )

    def _held(self, stretch: Stretch) -> tuple[int, int]:
        """The first offset that the topic partition holds and the one behind its last, -1 each when Kafka does not say."""
        consumer = self._make_consumer()
        try:
            asked = TopicPartition(stretch.topic, stretch.partition)
            return consumer.get_watermark_offsets(asked, timeout=QUESTION_TIMEOUT_S)
        except KafkaException:
            return -1, -1
        finally:
            consumer.close()


def _next_piece(consumer: Consumer, stretch: Stretch, position: int) -> tuple[pa.RecordBatch | None, int]:
    """(the messages that are there, None for none; the position behind them), after a moment at most."""
    first = consumer.poll(POLL_S)
    if first is None:
        return None, position
    # A thousand messages that live for a moment are no reason to look for garbage among all objects, every time.
    gc.disable()
    try:
        messages = [first, *consumer.consume(MESSAGES_PER_CALL - 1, 0)]
        if any(map(Message.error, messages)):
            messages, position = _without_errors(messages, stretch, position)
        return _piece(messages, stretch, position)
    finally:
        gc.enable()


def _without_errors(messages: list[Message], stretch: Stretch, position: int) -> tuple[list[Message], int]:
    """(the messages that are messages; the position, behind what no message shows when the end of the topic was reached)."""
    good: list[Message] = []
    for message in messages:
        error = message.error()
        if error is None:
            good.append(message)
        elif error.code() == KafkaError._PARTITION_EOF:
            # The end lies past transaction markers, which no message shows. What follows it in this piece lies past it too.
            position = max(position, message.offset() or 0)
        elif error.code() in TRUNCATED:
            raise raw_data_lost(stretch.topic)
        elif error.code() in MISSING:
            raise log_error(error, stretch.topic)
    return good, position


def _piece(messages: list[Message], stretch: Stretch, position: int) -> tuple[pa.RecordBatch | None, int]:
    """(the messages of the stretch as columns, None for none; the position behind all that were looked at)."""
    if not messages:
        return None, position
    offsets = np.fromiter(map(Message.offset, messages), np.int64, len(messages))
    position = max(position, int(offsets[-1]) + 1)
    if position > stretch.end:
        offsets = offsets[: np.searchsorted(offsets, stretch.end)]
        messages = messages[: len(offsets)]
        if not messages:
            return None, position
    assert stretch.begin <= offsets[0], "Kafka handed out a message before the one that was asked for"
    times_ms = np.fromiter(map(_TIME, map(Message.timestamp, messages)), np.int64, len(messages))
    columns = [
        pa.array(list(map(Message.key, messages)), pa.binary()),
        pa.array(list(map(Message.value, messages)), pa.binary()),
        pa.repeat(pa.scalar(stretch.partition, pa.int32()), len(messages)),
        pa.array(offsets),
        pa.array(times_ms).cast(RAW_SCHEMA.field("timestamp").type),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=RAW_SCHEMA), position
