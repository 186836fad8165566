"""Creates the topics of a cluster, and checks that they stay as the cluster needs them.

A setting that would lose records is corrected where this account may, else refused by name. The number of
copies is the user's: too few of them are a warning.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import structlog

from headrace.connectors.log.closing import CLOSED_BYTES, SIZE_SETTING
from headrace.connectors.log.port import (
    AccessDenied,
    Log,
    TopicConfiguration,
    TopicMissing,
    TopicSettingsRefused,
)
from headrace.connectors.log.topic_settings import (
    MEMBERSHIP,
    STATUS,
    TopicSetting,
    TopicSettings,
    created_with,
    wrong_settings,
)
from headrace.schemas.errors import HeadraceError

# From this size on a cluster of brokers can hold three copies.
BROKERS_FOR_COPIES = 3
MIN_INSYNC = "min.insync.replicas"
_log = structlog.get_logger(__name__)


class TopicUnsuitable(HeadraceError):
    """A topic that the cluster would lose records in, and that this account may not change."""


@dataclass(frozen=True, slots=True)
class TopicCopies:
    """How many brokers hold each topic, and how many of them must confirm a record; 0 = the broker's default."""

    count: int = 0
    min_insync: int = 0


BROKER_DEFAULT = TopicCopies()


class ClusterTopics:
    """The topics that `ensure` was called for. `warnings` may be read by any thread."""

    def __init__(self, log: Log, copies: TopicCopies = TopicCopies()) -> None:
        self._log = log
        self._copies = copies
        self._needed: dict[str, TopicSettings] = {}
        self._remarked: dict[str, list[str]] = {}
        self._lock = threading.Lock()
        self.warnings: tuple[str, ...] = ()

    def ensure(self, needed: Mapping[str, TopicSettings]) -> None:
        """Create the topics that are missing, and correct the others.

        Raises TopicUnsuitable, AccessDenied, TopicSettingsRefused, LogUnavailable.
        """
        with self._lock:
            for topic, settings in needed.items():
                self._needed[topic] = settings
                self._ensure(topic)

    def _ensure(self, topic: str) -> None:
        try:
            found = self._log.configuration(topic)
        except TopicMissing:
            self._log.create_topic(topic, created_with(self._wanted(topic)), copies=self._copies.count)
            self._check(topic)
            return
        self._remarked[topic] = list(self._remarks(self._corrected(topic, found)))
        if found.partitions > 1 and self._log.describe(topic).end == 0:
            raise TopicUnsuitable(
                f"topic {topic} has {found.partitions} partitions, and a log has one order only with 1",
                action="delete the topic, it is empty, and start the node again: it creates it",
            )

    def forget(self, topic: str) -> None:
        """Check a topic no longer: its group has ended."""
        with self._lock:
            self._needed.pop(topic, None)
            self._remarked.pop(topic, None)

    def check(self) -> None:
        """Correct what has changed since, and renew the warnings. Raises LogUnavailable."""
        with self._lock:
            for topic in self._needed:
                self._check(topic)
        self.show()

    def _check(self, topic: str) -> None:
        try:
            found = self._corrected(topic, self._log.configuration(topic))
            self._remarked[topic] = [*self._remarks(found), *self._lacks(topic)]
        except TopicMissing:
            # Whoever reads it reports that; a topic created a moment ago may not be visible yet.
            self._remarked.pop(topic, None)
            self._renew(topic)
        except (TopicUnsuitable, AccessDenied) as error:
            self._remarked[topic] = [str(error)]

    def _renew(self, topic: str) -> None:
        """Create a topic that has gone, if nothing is lost with it: nodes send their statuses again and again."""
        if self._needed[topic] is STATUS:
            try:
                self._log.create_topic(topic, created_with(self._wanted(topic)), copies=self._copies.count)
            except (AccessDenied, TopicSettingsRefused) as error:
                # A warning, as for the other topics, which are checked all the same.
                self._remarked[topic] = [f"does not exist any more, and was not created again: {error}"]
            else:
                _log.warning("topic created again", topic=topic)

    def show(self) -> None:
        """Renew the warnings, and log what is new among them."""
        # One line for all topics of one trouble.
        topics: dict[str, list[str]] = {}
        with self._lock:
            for topic, texts in self._remarked.items():
                for text in texts:
                    topics.setdefault(text, []).append(topic)
        lines = tuple(f"{', '.join(sorted(named))}: {text}" for text, named in sorted(topics.items()))
        for line in lines:
            if line not in self.warnings:
                _log.warning("topic settings", warning=line)
        self.warnings = lines

    def _wanted(self, topic: str) -> TopicSettings:
        """What the topic must have, with the minimum of this cluster's settings."""
        needed, minimum = self._needed[topic], self._copies.min_insync
        if not minimum:
            return needed
        return {**needed, MIN_INSYNC: TopicSetting(str(minimum), "it is not that of the cluster's settings")}

    def _corrected(self, topic: str, found: TopicConfiguration) -> TopicConfiguration:
        """The configuration without what was wrong in it. Raises TopicUnsuitable."""
        wrong = wrong_settings(self._wanted(topic), found.settings or {})
        if not wrong or found.settings is None:
            return found
        listed = ", ".join(f"{name} is {found.settings[name]} ({each.why})" for name, each in wrong.items())
        values = {name: each.value for name, each in wrong.items()}
        try:
            self._log.configure(topic, values)
        except (AccessDenied, TopicSettingsRefused) as error:
            raise TopicUnsuitable(
                f"topic {topic} has settings that the cluster cannot work with: {listed}", action=_alter(topic, values)
            ) from error
        _log.warning("topic settings corrected", topic=topic, found=listed, now=values)
        return replace(found, settings={**found.settings, **values})

    def _lacks(self, topic: str) -> Iterable[str]:
        """Of a log that is always read from its first record: that it does not begin there."""
        if self._needed[topic] is MEMBERSHIP and (begin := self._log.describe(topic).begin) > 0:
            yield (
                f"begins at offset {begin}; nodes and clients that start need the records before it (restore them, "
                "and restart no node before that)"
            )

    def _remarks(self, found: TopicConfiguration) -> Iterable[str]:
        """What is allowed and still dangerous."""
        if found.settings is None:
            yield "settings could not be checked (this account needs the right DescribeConfigs on the topic)"
        if (found.settings or {}).get(SIZE_SETTING) == CLOSED_BYTES:
            yield f"closed, so nobody can write to it ({SIZE_SETTING} is {CLOSED_BYTES}; raise it unless its group ends)"
        if found.partitions > 1:
            yield f"{found.partitions} partitions, of which only partition 0 is read and written"
        copies, min_insync = found.replication_factor, int((found.settings or {}).get(MIN_INSYNC, "0"))
        if copies == 1 and found.brokers >= BROKERS_FOR_COPIES:
            yield (
                f"one copy on {found.brokers} brokers, so one lost disk loses the topic "
                "(kafka-reassign-partitions adds copies, cluster.topic_replication_factor is for new topics)"
            )
        elif self._copies.count not in (0, copies):
            yield f"{copies} copies instead of {self._copies.count} (kafka-reassign-partitions)"
        if copies >= BROKERS_FOR_COPIES and min_insync == 1:
            yield (
                f"{MIN_INSYNC} is 1, so an acknowledged record may have one copy of {copies} "
                "(set cluster.topic_min_insync_replicas to 2)"
            )


def _alter(topic: str, values: Mapping[str, str]) -> str:
    # Brackets: a list in a value would be taken for more settings.
    settings = ",".join(f"{name}=[{value}]" if "," in value else f"{name}={value}" for name, value in values.items())
    return (
        "give this account the right AlterConfigs on it, or change it: "
        f"kafka-configs --alter --entity-type topics --entity-name {topic} --add-config {settings}"
    )
