"""Kafka's error codes as errors of the log port."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

from headrace.connectors.log.port import (
    AccessDenied,
    AppendFailed,
    AppendUnknown,
    ClientSettingsRefused,
    LogTruncated,
    LogUnavailable,
    RecordTooLarge,
    RecordUndeliverable,
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
SETTINGS_REFUSED = {KafkaError._INVALID_ARG, KafkaError._CONFLICT}
DENIED = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError._AUTHENTICATION,
}
AUTHENTICATION_FAILED = {KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED}
CONNECTION_REFUSED = AUTHENTICATION_FAILED | {KafkaError._SSL}
"""What a client reports of a connection alone: a call that waits for it only learns that nobody answers."""
# librdkafka is already behind a record when it reports one of these about it.
UNDELIVERABLE = {
    KafkaError._BAD_MSG,
    KafkaError._BAD_COMPRESSION,
    KafkaError._NOT_IMPLEMENTED,
    KafkaError._UNSUPPORTED_FEATURE,
    KafkaError._UNDERFLOW,
    KafkaError._CRIT_SYS_RESOURCE,
    KafkaError.INVALID_MSG,
    KafkaError.INVALID_MSG_SIZE,
    KafkaError.MSG_SIZE_TOO_LARGE,
}
# Reading continues by itself after these. The rights on a consumer group are needed only to show progress to lag
# tools: a reader joins no group, and its client asks for the group's coordinator all the same.
READING_CONTINUES = UNREACHABLE | {
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.REPLICA_NOT_AVAILABLE,
    KafkaError.BROKER_NOT_AVAILABLE,
    KafkaError.REQUEST_TIMED_OUT,
    KafkaError.NETWORK_EXCEPTION,
    KafkaError.FENCED_LEADER_EPOCH,
    KafkaError.UNKNOWN_LEADER_EPOCH,
    KafkaError.OFFSET_NOT_AVAILABLE,
    KafkaError.GROUP_AUTHORIZATION_FAILED,
    KafkaError.COORDINATOR_NOT_AVAILABLE,
    KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
    KafkaError.NOT_COORDINATOR,
    KafkaError._MAX_POLL_EXCEEDED,
    KafkaError._WAIT_COORD,
}


@contextmanager
def translated(topic: str) -> Iterator[None]:
    """Raise what librdkafka raises about a topic as an error of the log port."""
    try:
        yield
    except KafkaException as error:
        raise log_error(error.args[0], topic) from error


def read_error(error: KafkaError, topic: str, partition: int, offset: int) -> HeadraceError | None:
    """The error of reading the record at `offset`; None when reading continues by itself."""
    if error.code() in UNDELIVERABLE and topic:
        return RecordUndeliverable(
            f"the record of topic {topic}, partition {partition}, at offset {offset} cannot be read: {error.str()}",
            topic=topic,
            offset=offset,
            action="make a broker with a good copy the partition's leader (kafka-leader-election); "
            f"if none has one, delete the records before offset {offset + 1} (kafka-delete-records)",
        )
    if error.code() in READING_CONTINUES and not error.fatal():
        return None
    return log_error(error, topic)


def log_error(error: KafkaError, topic: str) -> HeadraceError:
    """The error of a request about a topic, or of reading it."""
    if error.code() in DENIED:
        about = f"topic {topic}" if topic else "every topic"
        return AccessDenied(
            f"Kafka refuses this account the access to {about}: {error.str()}",
            topic=topic,
            action="check its password and its rights (read, write, create and describe on the cluster's topics)",
        )
    if error.fatal() or error.code() == KafkaError._FATAL:
        return LogUnavailable(
            f"the Kafka client failed and is replaced: {error.str()}",
            action="if this returns, look into the broker's log",
            retriable=True,
        )
    if error.code() in SETTINGS_REFUSED:
        return ClientSettingsRefused(
            f"librdkafka refuses its settings: {error.str()}",
            action="correct it where it is given: -X, [kafka] in headrace.toml, HEADRACE__KAFKA__…, or kafka.NAME of Spark",
        )
    if error.code() in MISSING:
        return TopicMissing(
            f"topic {topic} does not exist",
            action="check the cluster's name; for a topic that somebody deleted see headrace status",
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
