"""Reads what the topics of a centre show of its senders."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from headrace.connectors.log.kafka_group import read_partitions
from headrace.connectors.log.port import Log, TopicMissing
from headrace.connectors.log.topics import Topics
from headrace.consumers.sync.centre_status import sender_documents
from headrace.consumers.sync.manifest_rules import is_answerable, is_sender
from headrace.consumers.sync.owner_log import read_owners
from headrace.consumers.sync.topics import NotACentre
from headrace.schemas.framing import FrameInvalid
from headrace.schemas.sync_records import SyncManifest, SyncVerdict, decode_manifest, decode_verdict


def centre_documents(log: Log, topics: Topics, bootstrap: str, kafka: Mapping[str, str]) -> list[dict[str, Any]]:
    """One entry for each sender of a centre. Raises NotACentre, LogUnavailable."""
    try:
        names = {sender: each.name for sender, each in read_owners(log, topics).senders.items()}
        return sender_documents(_manifests(topics, bootstrap, kafka), _verdicts(topics, bootstrap, kafka), names)
    except TopicMissing as error:
        raise NotACentre.of(topics.cluster) from error


def _manifests(topics: Topics, bootstrap: str, kafka: Mapping[str, str]) -> Iterator[SyncManifest]:
    for record in read_partitions(bootstrap, topics.sync_manifest, kafka):
        with suppress(FrameInvalid):
            manifest = decode_manifest(record.value)
            # No receiver answers others.
            if is_answerable(manifest):
                yield manifest


def _verdicts(topics: Topics, bootstrap: str, kafka: Mapping[str, str]) -> Iterator[tuple[SyncVerdict, int]]:
    for record in read_partitions(bootstrap, topics.sync_verdict, kafka):
        with suppress(FrameInvalid):
            verdict = decode_verdict(record.value)
            if is_sender(verdict.sender):
                yield verdict, record.timestamp_ms
