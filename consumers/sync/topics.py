"""The topics of senders, made and checked by receivers; and the identity by which senders know a cluster."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.connectors.log.port import AccessDenied, Log, TopicMissing, TopicSettingsRefused
from headrace.connectors.log.topic_settings import (
    SYNC_CHUNK,
    SYNC_MANIFEST,
    SYNC_OWNER,
    SYNC_VERDICT,
    TopicSettings,
    created_with,
    wrong_settings,
)
from headrace.connectors.log.topics import Topics
from headrace.schemas.errors import HeadraceError


class SyncTopicUnsuitable(HeadraceError):
    """A topic of senders that cannot be used as it is, and that this account may not change."""


class NotACentre(HeadraceError):
    """A cluster without the topics of senders: no receiver was ever started."""

    @classmethod
    def of(cls, cluster: str) -> NotACentre:
        """The error for a cluster."""
        return cls(
            f"cluster {cluster} receives no files: it has no topics of senders",
            action="start headrace sync receive there first",
        )


@dataclass(frozen=True, slots=True)
class SyncTopics:
    """The number of partitions that manifests and chunks have."""

    partitions: int


def cluster_identity(log: Log, topics: Topics) -> str:
    """What names a cluster in `stores`: the id of its membership topic. Raises TopicMissing, LogUnavailable."""
    # Not its name: another cluster may have the same one, and one that was made again is another one.
    return log.describe(topics.membership).topic_id


def ensure_sync_topics(log: Log, topics: Topics, partitions: int, copies: int = 0) -> SyncTopics:
    """Create the topics that are missing, and correct the others. `partitions` is for new ones.

    Raises SyncTopicUnsuitable, AccessDenied, TopicSettingsRefused, LogUnavailable.
    """
    manifest = _ensure(log, topics.sync_manifest, SYNC_MANIFEST, partitions, copies)
    # The other one's number and not the setting: a chunk is in the partition of its manifest.
    chunk = _ensure(log, topics.sync_chunk, SYNC_CHUNK, manifest, copies)
    if manifest != chunk:
        fewer = topics.sync_manifest if manifest < chunk else topics.sync_chunk
        raise SyncTopicUnsuitable(
            f"{topics.sync_manifest} has {manifest} partitions and {topics.sync_chunk} has {chunk}",
            action=f"make them equal: kafka-topics --alter --topic {fewer} --partitions {max(manifest, chunk)}",
        )
    for topic, settings in ((topics.sync_verdict, SYNC_VERDICT), (topics.sync_owner, SYNC_OWNER)):
        if _ensure(log, topic, settings, 1, copies) != 1:
            raise SyncTopicUnsuitable(
                f"{topic} has several partitions, and has one order only with 1",
                action="delete it if it is empty, and start again: the receiver creates it",
            )
    return SyncTopics(manifest)


def _ensure(log: Log, topic: str, settings: TopicSettings, partitions: int, copies: int) -> int:
    """The number of partitions of a topic that is as it must be."""
    try:
        found = log.configuration(topic)
    except TopicMissing:
        log.create_topic(topic, created_with(settings), copies=copies, partitions=partitions)
        # Read back: two receivers may create it at once, with different numbers.
        return log.configuration(topic).partitions
    wrong = wrong_settings(settings, found.settings or {})
    if wrong:
        try:
            log.configure(topic, {name: each.value for name, each in wrong.items()})
        except (AccessDenied, TopicSettingsRefused) as error:
            listed = ", ".join(f"{name} is {(found.settings or {})[name]} ({wrong[name].why})" for name in wrong)
            raise SyncTopicUnsuitable(
                f"topic {topic} has settings that senders cannot work with: {listed}",
                action="give this account the right AlterConfigs on it, or correct them",
            ) from error
    return found.partitions
