"""Kafka's error codes as errors of the log port."""

from __future__ import annotations

from confluent_kafka import KafkaError

from headrace.connectors.log.port import (
    AppendFailed,
    AppendUnknown,
    LogTruncated,
    LogUnavailable,
    RecordTooLarge,
    TopicMissing,
)
from headrace.schemas.errors import HeadraceError

MISSING = {
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,
    KafkaError._UNKNOWN_PARTITION,
    KafkaError.UNKNOWN_TOPIC_ID,
}
# The broker does not answer. librdkafka repeats these by itself, so they never mean more than "not now".
UNREACHABLE = {KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN, KafkaError._RESOLVE}
TRUNCATED = {KafkaError.OFFSET_OUT_OF_RANGE, KafkaError._AUTO_OFFSET_RESET}
REFUSED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.INVALID_RECORD,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.POLICY_VIOLATION,
}


def log_error(error: KafkaError, topic: str) -> HeadraceError:
    """The error of a request about a topic, or of reading it."""
    if error.code() in MISSING:
        return TopicMissing(
            f"topic {topic} does not exist",
            action="check the cluster's name; topics of a cluster are never deleted by us",
        )
    if error.code() in TRUNCATED:
        return LogTruncated(f"topic {topic} does not hold the offset asked for: {error.str()}")
    return LogUnavailable(f"Kafka: {error.str()}", action="check the broker", retriable=True)


def append_error(error: KafkaError, topic: str, size_bytes: int) -> HeadraceError:
    """The error of appending a record; AppendUnknown where the record may be in the log all the same."""
    if error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
        return RecordTooLarge(
            f"a record of {size_bytes} bytes is more than topic {topic} takes", action="send smaller batches"
        )
    if error.code() in MISSING:
        return TopicMissing(
            f"topic {topic} does not exist", action="start the cluster's nodes first, or check its name"
        )
    if error.code() in REFUSED:
        return AppendFailed(f"topic {topic} refused a record: {error.str()}")
    # Any other code, a timeout above all, may come after the broker has written the record.
    return AppendUnknown(
        f"a record to {topic} was not confirmed: {error.str()}", action="read the log back before sending it again"
    )
