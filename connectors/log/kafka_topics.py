"""Requests to Kafka that create, configure, trim and delete topics, find their bounds, and publish how far they are read."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    OffsetSpec,
)
from confluent_kafka.cimpl import NewTopic

from headrace.connectors.log.kafka_admin import ANSWER_TIMEOUT_S, REQUEST_TIMEOUT_S
from headrace.connectors.log.kafka_errors import DENIED, REFUSED, UNREACHABLE
from headrace.connectors.log.port import AppendFailed, LogUnavailable, TopicConfiguration, TopicSettingsRefused

_REFUSED = {KafkaError.INVALID_CONFIG, KafkaError.POLICY_VIOLATION}
BROKERS_DEFAULT = -1
COMMIT_TIMEOUT_S = 3.0
_EARLIEST: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
_LATEST: OffsetSpec = OffsetSpec.latest()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class NewLog:
    """A topic that is wanted; `copies` 0 = the brokers' default."""

    topic: str
    settings: Mapping[str, str]
    copies: int = 0
    partitions: int = 1


def create_topic(client: AdminClient, new: NewLog) -> None:
    """Create a topic. Raises KafkaException, TopicSettingsRefused, LogUnavailable."""
    topic, settings, copies = new.topic, new.settings, new.copies
    wanted = NewTopic(topic, new.partitions, copies or BROKERS_DEFAULT, config=dict(settings))
    try:
        client.create_topics([wanted], request_timeout=REQUEST_TIMEOUT_S)[topic].result(ANSWER_TIMEOUT_S)
    except KafkaException as error:
        code = error.args[0].code()
        if code == KafkaError.TOPIC_ALREADY_EXISTS:
            return
        if code in _REFUSED:
            raise _refused(topic, settings, error) from error
        # Retriable: the brokers of a cluster that starts appear one after the other.
        if code == KafkaError.INVALID_REPLICATION_FACTOR:
            raise LogUnavailable(
                f"Kafka cannot hold {copies} copies of topic {topic}: {error.args[0].str()}",
                action="start more brokers, or set cluster.topic_replication_factor",
                retriable=True,
            ) from error
        raise


def delete_topic(client: AdminClient, topic: str) -> None:
    """Delete a topic. Raises KafkaException, TopicSettingsRefused."""
    try:
        client.delete_topics([topic], request_timeout=REQUEST_TIMEOUT_S)[topic].result(ANSWER_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() in {KafkaError.TOPIC_DELETION_DISABLED, *_REFUSED}:
            raise TopicSettingsRefused(
                f"Kafka refuses to delete topic {topic}: {error.args[0].str()}",
                action="set delete.topic.enable=true on its brokers, or delete the topic another way",
            ) from error
        raise


def topic_names(client: AdminClient, prefix: str) -> list[str]:
    """The names of all topics that begin with a prefix, sorted. Raises KafkaException."""
    return sorted(name for name in client.list_topics(timeout=REQUEST_TIMEOUT_S).topics if name.startswith(prefix))


def configuration(client: AdminClient, topic: str) -> TopicConfiguration:
    """How a topic is kept. Raises KafkaException."""
    metadata = client.list_topics(topic, timeout=REQUEST_TIMEOUT_S)
    found = metadata.topics[topic]
    if found.error is not None:
        raise KafkaException(found.error)
    copies = min(len(each.replicas) for each in found.partitions.values())
    return TopicConfiguration(len(found.partitions), copies, len(metadata.brokers), _settings(client, topic))


def _settings(client: AdminClient, topic: str) -> dict[str, str] | None:
    resource = _resource(topic)
    try:
        answers = client.describe_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
        return {name: entry.value for name, entry in answers[resource].result(ANSWER_TIMEOUT_S).items()}
    except KafkaException as error:
        # A right of its own, which no node needs as long as nobody changes its topics.
        if error.args[0].code() in DENIED:
            return None
        raise


def configure(client: AdminClient, topic: str, settings: Mapping[str, str]) -> None:
    """Change settings of a topic. Raises KafkaException, TopicSettingsRefused."""
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    resource = _resource(topic, entries)
    try:
        answers = client.incremental_alter_configs([resource], request_timeout=REQUEST_TIMEOUT_S)
        answers[resource].result(ANSWER_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() in _REFUSED:
            raise _refused(topic, settings, error) from error
        raise


def _resource(topic: str, entries: list[ConfigEntry] | None = None) -> ConfigResource:
    return ConfigResource(ConfigResource.Type.TOPIC, topic, incremental_configs=entries)


def _refused(topic: str, settings: Mapping[str, str], error: KafkaException) -> TopicSettingsRefused:
    wanted = ", ".join(f"{name}={value}" for name, value in settings.items())
    return TopicSettingsRefused(
        f"Kafka refuses the settings {wanted} of topic {topic}: {error.args[0].str()}",
        action="allow them in the policy of the Kafka cluster",
    )


def trim(client: AdminClient, topic: str, before: int) -> None:
    """Delete every record below an offset. Raises KafkaException, AppendFailed."""
    partition = TopicPartition(topic, 0, before)
    try:
        client.delete_records([partition], request_timeout=REQUEST_TIMEOUT_S)[partition].result(ANSWER_TIMEOUT_S)
    except KafkaException as error:
        if error.args[0].code() in REFUSED:
            raise AppendFailed(f"topic {topic} may not be trimmed: {error.args[0].str()}") from error
        raise


def commit(client: AdminClient, name: str, offsets: Mapping[str, int]) -> None:
    """Commit offsets of topics for a consumer group without members. Raises KafkaException without an answer."""
    # A consumer has no limit for it: without a broker it waits for the end of its session, or in its `close`.
    group = ConsumerGroupTopicPartitions(name, [TopicPartition(topic, 0, offset) for topic, offset in offsets.items()])
    try:
        client.alter_consumer_group_offsets([group], request_timeout=COMMIT_TIMEOUT_S)[name].result(ANSWER_TIMEOUT_S)
    except KafkaException as error:
        # Any other client would be refused too, as one without the right on the group.
        if error.args[0].code() in UNREACHABLE:
            raise


def begin(client: AdminClient, topic: str) -> Future[Any]:
    """The offset at which a topic begins, as `offset` of what comes."""
    return _offset(client, topic, _EARLIEST, IsolationLevel.READ_COMMITTED)


def end(client: AdminClient, topic: str, isolation: IsolationLevel = IsolationLevel.READ_COMMITTED) -> Future[Any]:
    """The offset at which a topic ends, as `offset` of what comes."""
    return _offset(client, topic, _LATEST, isolation)


def _offset(client: AdminClient, topic: str, which: OffsetSpec, isolation: IsolationLevel) -> Future[Any]:
    partition = TopicPartition(topic, 0)
    answers = client.list_offsets({partition: which}, isolation_level=isolation, request_timeout=REQUEST_TIMEOUT_S)
    return answers[partition]
