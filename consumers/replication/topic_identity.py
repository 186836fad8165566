"""Whether the topics that a node reads are still those that its data came from.

A topic that was deleted and created again under its name is another log. A reader that was away meanwhile gets no
error once that log is longer than its position.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.connectors.clock import Clock
from headrace.connectors.log.port import Log

# As long as Kafka holds a fetch at most (FOLLOW_SETTINGS): a reader that is connected asks at least as often, and
# gets an error while the topic is missing.
SILENCE_S = 0.5


class TopicIdentities:
    """Compares topics with the ids of `node.json`, at once where a reader may have missed a deletion.

    Owned by the consuming thread. `ids` may get other values at any time; a topic without one is not compared.
    """

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._read_ns: dict[str, int] = {}
        self.ids: Mapping[str, str] = {}

    def is_same(self, topic: str, topic_id: str) -> bool:
        """Whether the topic, which has this id now, is that of the data."""
        self._read_ns[topic] = self._clock.boot_ns()
        return self.ids.get(topic, topic_id) == topic_id

    def recreated(self, topics: Iterable[str]) -> list[str]:
        """Those of the topics that are other logs now, of which records have just arrived.

        Only a topic that was silent is looked up. Raises TopicMissing, LogUnavailable.
        """
        # After the records were read: a topic that has its old id now had it when they were read.
        silent_ns, now_ns = int(SILENCE_S * 1e9), self._clock.boot_ns()
        found = []
        for topic in topics:
            if now_ns - self._read_ns.get(topic, now_ns) < silent_ns:
                self._read_ns[topic] = now_ns
            elif not self.is_same(topic, self._log.describe(topic).topic_id):
                found.append(topic)
        return found
