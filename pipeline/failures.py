"""Why a query ended: Spark's long stories as one line and what to do about it."""

from __future__ import annotations

import re

from schemas.errors import HeadraceError


class QueryFailed(HeadraceError):
    """The query ended by itself. What it had finished stands; a restart goes on from its checkpoint."""


class RawDataLost(QueryFailed):
    """The raw topic no longer holds messages that the query has not read."""


class KafkaLost(QueryFailed):
    """Kafka stopped answering while the query ran."""


class SparkStumbled(QueryFailed):
    """A known fault of Spark that a new start of the query passes over, nothing lost."""


# Spark 4.1.1 cannot report on a micro-batch that it has run again from its offset log, and ends the query once that batch is committed.
_STUMBLED = (
    "KafkaMicroBatchStream$.metrics",
    'IterableOps.map(scala.Function1)" because the return value of "scala.Option.get()"',
)
_LOST = ("Some data may have been lost", "KAFKA_DATA_LOSS", "OffsetOutOfRangeException", "failOnDataLoss")
_AWAY = (
    "org.apache.kafka.common.errors.TimeoutException",
    "TimeoutException: Timeout of",
    "DisconnectException",
    "Failed to update metadata",
    "LogUnavailable",
    "AppendUnknown",
    "Connection to node",
    "NetworkException",
    "NotLeaderOrFollowerException",
)
_OWN_ERROR = re.compile(r"^(?:schemas|connectors|consumers|pipeline)\.[\w.]+\.(\w+): (.+)$", re.MULTILINE)
_CAUSE = re.compile(r"^(?:Caused by: )?(?:[\w$]+\.)+(\w*(?:Exception|Error)): (.+)$", re.MULTILINE)


def raw_data_lost(topic: str) -> RawDataLost:
    """What becomes of a query whose messages are gone."""
    return RawDataLost(
        f"topic {topic} no longer holds messages that were not read yet: it was trimmed or made again",
        action="keep raw messages longer; to go on without the lost ones start with a new --checkpoint",
    )


def explain(error: Exception, topic: str) -> QueryFailed:
    """The error behind a StreamingQueryException; `retriable` when starting the query again may help."""
    text = str(error)
    own = _OWN_ERROR.findall(text)
    if any(mark in text for mark in _STUMBLED):
        return SparkStumbled("Spark could not report on a batch that it ran again", retriable=True)
    if any(mark in text for mark in _LOST) or any(name == RawDataLost.__name__ for name, _ in own):
        return raw_data_lost(topic)
    if own and not any(name in ("LogUnavailable", "AppendUnknown") for name, _ in own):
        return QueryFailed(own[-1][1])
    if any(mark in text for mark in _AWAY):
        return KafkaLost(
            "Kafka stopped answering", action="check the broker; what was finished is kept", retriable=True
        )
    if "RecordTooLargeException" in text:
        return QueryFailed(
            "a record is larger than its topic takes", action="raise max.message.bytes of the dlq and forward topics"
        )
    if "UnknownTopicOrPartition" in text:
        return QueryFailed(
            f"topic {topic}, or a topic of the cluster, does not exist any more", action="do not delete topics in use"
        )
    causes = _CAUSE.findall(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    told = causes[-1][1] if causes else lines[0] if lines else "no reason given"
    return QueryFailed(f"the query ended: {told[:500]}", action="look into its spark.log")
