"""What our librdkafka clients are set to. A user's settings are librdkafka's, verbatim, and win over ours."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

COMMIT_TIMEOUT_MS = 6_000
CONSUMER_QUEUE_KBYTES = 65_536


def client_settings(bootstrap: str) -> dict[str, Any]:
    """What all clients have in common."""
    return {
        "bootstrap.servers": bootstrap,
        "client.id": "headrace",
        "socket.keepalive.enable": True,
        "reconnect.backoff.max.ms": 1_000,
        "topic.metadata.refresh.interval.ms": 10_000,
        "topic.metadata.propagation.max.ms": 3_000,
        "log_level": 2,
    }


def consumer_settings(bootstrap: str, name: str, settings: Mapping[str, str], **ours: Any) -> dict[str, Any]:
    """A consumer that joins no group, commits nothing, and never goes elsewhere when an offset is gone. `ours` win over what all consumers have."""
    return {
        **client_settings(bootstrap),
        "group.id": name,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "auto.offset.reset": "error",
        # Nobody joins a group here; it is also how long a commit waits for a broker that is gone.
        "session.timeout.ms": COMMIT_TIMEOUT_MS,
        "isolation.level": "read_committed",
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 50,
        "fetch.queue.backoff.ms": 5,
        "fetch.error.backoff.ms": 50,
        "fetch.max.bytes": 32 * 1024 * 1024,
        "max.partition.fetch.bytes": 16 * 1024 * 1024,
        "receive.message.max.bytes": 96 * 1024 * 1024,
        "queued.max.messages.kbytes": CONSUMER_QUEUE_KBYTES,
        **ours,
        **settings,
    }
