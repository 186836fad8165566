"""Whether the topics that a node reads are still those that its data came from.

A topic that was deleted and created again under its name is another log. A reader gets no error once that log is
longer than its position.
"""

from __future__ import annotations

from collections.abc import Mapping

from headrace.connectors.clock import Clock
from headrace.connectors.log.port import Log, TopicState

UNCONFIRMED_S = 0.5
"""How long an answer about a topic's id counts at most."""
# A log that was made again reaches a reader's position only if so many records are appended that soon. Below the
# position that UNCONFIRMED_S allows, an answer therefore counts for a shorter time, and not at all at the beginning.
GROWTH_PER_S = 2_000


class TopicIdentities:
    """Compares topics with the ids of `node.json` behind a fetch, and before what was fetched is taken.

    Owned by the consuming thread. `ids` may get other values at any time; a topic without one is not compared.
    """

    def __init__(self, log: Log, clock: Clock) -> None:
        self._log = log
        self._clock = clock
        self._asked_ns: dict[str, int] = {}
        self.ids: Mapping[str, str] = {}

    def describe(self, topic: str) -> TopicState:
        """See Log. The answer confirms what was fetched before it was asked for."""
        asked_ns = self._clock.boot_ns()
        state = self._log.describe(topic)
        self._asked_ns[topic] = asked_ns
        return state

    def is_same(self, topic: str, topic_id: str) -> bool:
        """Whether a topic with this id is that of the data."""
        return self.ids.get(topic, topic_id) == topic_id

    def recreated(self, offsets: Mapping[str, int]) -> list[str]:
        """Those of the topics that are other logs now. `offsets`: of the first record that was just fetched of each.

        Raises TopicMissing, LogUnavailable.
        """
        # An id never returns: a topic that has its old id now had it when the records were fetched.
        return [
            topic
            for topic, offset in offsets.items()
            if self._is_due(topic, offset) and not self.is_same(topic, self.describe(topic).topic_id)
        ]

    def _is_due(self, topic: str, offset: int) -> bool:
        if topic not in self._asked_ns:
            return True
        counts_s = min(UNCONFIRMED_S, offset / GROWTH_PER_S)
        return self._clock.boot_ns() - self._asked_ns[topic] >= counts_s * 1e9
