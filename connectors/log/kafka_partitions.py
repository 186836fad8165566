"""Identity and readable offsets of a Kafka topic of any number of partitions, as raw topics are."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from headrace.connectors.log.client_check import check_client_settings
from headrace.connectors.log.kafka_admin import ANSWER_TIMEOUT_S, REQUEST_TIMEOUT_S, KafkaAdmin
from headrace.connectors.log.kafka_settings import client_settings

NO_OFFSET = -1
"""What Kafka answers for a time behind the newest record."""


@dataclass(frozen=True, slots=True)
class PartitionedTopic:
    """A topic's identity, and the end of the committed records of each partition; created again it has another id."""

    topic_id: str
    ends: Mapping[int, int]


class PartitionLog(Protocol):
    """What a planner of offset ranges asks of a topic. Raises TopicMissing, LogUnavailable, AccessDenied."""

    def state(self, topic: str) -> PartitionedTopic:
        """The topic as it is now."""
        ...

    def begins(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        """The first offset that each partition still holds."""
        ...

    def at_time(self, topic: str, partitions: Collection[int], timestamp_ms: int) -> dict[int, int]:
        """The first offset at or after a time; NO_OFFSET where there is none."""
        ...

    def close(self) -> None:
        """Release the client."""
        ...


class KafkaPartitions:
    """See PartitionLog. `settings` are librdkafka's, verbatim, and override ours."""

    def __init__(
        self, bootstrap: str, settings: Mapping[str, str] | None = None, timeout_s: float = REQUEST_TIMEOUT_S
    ) -> None:
        """Raises ClientSettingsRefused."""
        check_client_settings(settings or {})
        self._admin = KafkaAdmin({**client_settings(bootstrap), **(settings or {})}, bootstrap)
        self._timeout_s = timeout_s

    def state(self, topic: str) -> PartitionedTopic:
        """See PartitionLog."""

        def state(client: AdminClient) -> PartitionedTopic:
            described = client.describe_topics(TopicCollection([topic]), request_timeout=self._timeout_s)[topic]
            # The list also makes the client cache the leaders of partitions that were added since: an offsets
            # request that has to look one up may crash the process (see kafka_admin.py).
            found = client.list_topics(topic, timeout=self._timeout_s).topics[topic]
            if found.error is not None:
                raise KafkaException(found.error)
            ends = self._offsets(client, topic, found.partitions, OffsetSpec.latest())  # type: ignore[no-untyped-call]
            return PartitionedTopic(str(described.result(ANSWER_TIMEOUT_S).topic_id), ends)

        return self._admin.call(topic, state, exists=False)

    def begins(self, topic: str, partitions: Collection[int]) -> dict[int, int]:
        """See PartitionLog."""
        earliest: OffsetSpec = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
        return self._admin.call(topic, lambda client: self._offsets(client, topic, partitions, earliest))

    def at_time(self, topic: str, partitions: Collection[int], timestamp_ms: int) -> dict[int, int]:
        """See PartitionLog."""
        first: OffsetSpec = OffsetSpec.for_timestamp(timestamp_ms)
        return self._admin.call(topic, lambda client: self._offsets(client, topic, partitions, first))

    def close(self) -> None:
        """See PartitionLog."""
        self._admin.close()

    def _offsets(
        self, client: AdminClient, topic: str, partitions: Collection[int], which: OffsetSpec
    ) -> dict[int, int]:
        wanted: dict[TopicPartition, Any] = {TopicPartition(topic, number): which for number in sorted(partitions)}
        if not wanted:
            return {}
        answers = client.list_offsets(
            wanted, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=self._timeout_s
        )
        return {partition.partition: int(answers[partition].result(ANSWER_TIMEOUT_S).offset) for partition in wanted}
