"""What the topics of a cluster must have in Kafka: the only table of it. Every other setting is the user's.

Kafka's defaults delete records after a week. The beginning of a forward log is deleted by its leader only, and
the membership and table logs are always read from their first record.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from headrace.connectors.log.closing import CLOSED_BYTES
from headrace.connectors.log.kafka_settings import RECORD_BYTES_MAX
from headrace.schemas.messages import MESSAGE_BYTES_MAX

# Key, headers and the header of Kafka's batch, far above their sizes.
ENVELOPE_BYTES_MAX = 65_536
STATUS_RETENTION_MS_MIN = 60_000
SMALL_RECORD_BYTES_MAX = 1_000_000
_UNLIMITED = "-1"


@dataclass(frozen=True, slots=True)
class TopicSetting:
    """One setting of a topic: the value it is created with, and what else is right.

    `minimum`: also any value from it on, or none (-1). `free`: anything, the user may change it. `why`: what a
    wrong value does. `closed` is the value of a topic that was closed on purpose: nobody corrects it.
    """

    value: str
    why: str = ""
    minimum: int | None = None
    free: bool = False
    closed: str = ""

    def allows(self, found: str) -> bool:
        """Whether a topic may have this value."""
        if (
            self.free
            or (self.closed and found == self.closed)
            or sorted(found.split(",")) == sorted(self.value.split(","))
        ):
            return True
        return self.minimum is not None and (found == _UNLIMITED or int(found) >= self.minimum)


TopicSettings = Mapping[str, TopicSetting]

_DELETES = "Kafka deletes records that replicas need"
_TIMES = TopicSetting("LogAppendTime", "nodes compare times of the broker, not of producers")
_KEPT = {
    "cleanup.policy": TopicSetting("delete", "compaction removes records that every replica must count"),
    "retention.ms": TopicSetting("-1", _DELETES),
    "retention.bytes": TopicSetting("-1", _DELETES),
    "message.timestamp.type": _TIMES,
}
FORWARD: TopicSettings = MappingProxyType(
    {
        **_KEPT,
        "max.message.bytes": TopicSetting(
            str(RECORD_BYTES_MAX),
            "large writes are refused",
            MESSAGE_BYTES_MAX + ENVELOPE_BYTES_MAX,
            closed=CLOSED_BYTES,
        ),
    }
)
MEMBERSHIP: TopicSettings = MappingProxyType(
    {
        **_KEPT,
        "max.message.bytes": TopicSetting(str(RECORD_BYTES_MAX), "large changes are refused", SMALL_RECORD_BYTES_MAX),
    }
)
TABLE = MEMBERSHIP
STATUS: TopicSettings = MappingProxyType(
    {
        # Only the newest status of a node counts. The active segment is never compacted, so it is closed after a
        # minute.
        "cleanup.policy": TopicSetting("compact,delete", "the topic grows without end"),
        "retention.ms": TopicSetting("3600000", "statuses are gone before they are read", STATUS_RETENTION_MS_MIN),
        "segment.ms": TopicSetting("60000", free=True),
        "min.cleanable.dirty.ratio": TopicSetting("0.1", free=True),
        "message.timestamp.type": _TIMES,
        "max.message.bytes": TopicSetting(str(RECORD_BYTES_MAX), "statuses are refused", ENVELOPE_BYTES_MAX),
    }
)
SYNC_OWNER = MEMBERSHIP
SYNC_MANIFEST: TopicSettings = MappingProxyType(
    {
        **_KEPT,
        # A manifest is needed until its file has a verdict; a receiver that was away for longer gets it again.
        "retention.ms": TopicSetting("604800000", "manifests are gone before they are read", 3_600_000),
        "max.message.bytes": TopicSetting(str(RECORD_BYTES_MAX), "large manifests are refused", SMALL_RECORD_BYTES_MAX),
    }
)
SYNC_CHUNK: TopicSettings = MappingProxyType(
    {
        **SYNC_MANIFEST,
        # Chunks that are gone are sent again, so the disk of the broker decides, not correctness.
        "retention.ms": TopicSetting("86400000", free=True),
        "retention.bytes": TopicSetting("-1", free=True),
        "max.message.bytes": TopicSetting(str(RECORD_BYTES_MAX), "chunks are refused", 2 * 1024 * 1024),
    }
)
SYNC_VERDICT: TopicSettings = MappingProxyType(
    {
        # The newest verdict of a file is kept for ever: a sender that lost its state reads them.
        "cleanup.policy": TopicSetting("compact", "verdicts are deleted, and files are sent twice"),
        "message.timestamp.type": _TIMES,
        "max.message.bytes": TopicSetting(str(RECORD_BYTES_MAX), "large verdicts are refused", ENVELOPE_BYTES_MAX),
    }
)
# The newest position of each dead-letter topic is kept for ever.
REPLAYED = SYNC_VERDICT
# Created by ingest; whoever reads dead letters may keep them for less long.
DEAD_LETTERS: TopicSettings = MappingProxyType(
    {name: TopicSetting(setting.value, free=True) for name, setting in _KEPT.items()}
)


def created_with(settings: TopicSettings) -> dict[str, str]:
    """The settings that a topic is created with."""
    return {name: setting.value for name, setting in settings.items()}


def wrong_settings(settings: TopicSettings, found: Mapping[str, str]) -> dict[str, TopicSetting]:
    """The settings whose value a topic must not have; one that the broker does not know is none of them."""
    return {name: each for name, each in settings.items() if name in found and not each.allows(found[name])}
