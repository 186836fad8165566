"""Whether the topics of groups that ended are gone."""

from __future__ import annotations

from collections.abc import Iterable

from headrace.connectors.clock import SYSTEM_CLOCK, Clock
from headrace.connectors.deadline import GracePeriod
from headrace.connectors.log.port import Log, TopicMissing
from headrace.connectors.log.topics import Topics
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey

LOOK_INTERVAL_S = 1.0
DELETED_AFTER_S = 3.0
"""How long a topic must be missing while the membership log is there. A broker that has just started knows neither."""


class EndedTopics:
    """Looks for the topics of ended groups. Owned by one thread.

    `absent` are those that were missing at the newest look, perhaps because the log has just started.
    """

    def __init__(self, log: Log, topics: Topics, clock: Clock = SYSTEM_CLOCK) -> None:
        self._log = log
        self._topics = topics
        self._clock = clock
        self._absence = GracePeriod(clock.monotonic_s, DELETED_AFTER_S)
        self._gone: set[GroupKey] = set()
        self.absent: frozenset[GroupKey] = frozenset()
        self._look_at_s = 0.0

    def missing(self, keys: Iterable[GroupKey]) -> frozenset[GroupKey]:
        """Those whose topics the log reports as missing right now, perhaps because it has just started.

        Raises LogUnavailable.
        """
        return frozenset(key for key in keys if self._is_missing(key))

    def gone(self, keys: Iterable[GroupKey]) -> frozenset[GroupKey]:
        """Those whose topics were missing for long enough. It looks once an interval, and never raises."""
        # What is gone stays so: a later topic of the name would be another log.
        wanted = frozenset(keys)
        self._gone &= wanted
        self.absent &= wanted
        if self._clock.monotonic_s() >= self._look_at_s:
            self._look_at_s = self._clock.monotonic_s() + LOOK_INTERVAL_S
            self._gone |= {key for key in wanted - self._gone if self._is_gone(key)}
        return frozenset(self._gone)

    def _is_gone(self, key: GroupKey) -> bool:
        topic = self._topics.forward(key.group, key.birth)
        try:
            # In this order: a broker that knows this topic has loaded its metadata before the other look.
            loaded = not self._lacks(self._topics.membership)
            missing = self._is_missing(key)
        except HeadraceError:
            self._absence.unknown(topic)
            return False
        self.absent = self.absent | {key} if missing else self.absent - {key}
        if missing and loaded:
            return self._absence.missing(topic)
        self._absence.unknown(topic)
        return False

    def _is_missing(self, key: GroupKey) -> bool:
        return self._lacks(self._topics.forward(key.group, key.birth))

    def _lacks(self, topic: str) -> bool:
        try:
            self._log.describe(topic)
        except TopicMissing:
            return True
        return False
