"""How far the groups of a node are in their logs: where these end, and whether a group has reached its end since this
start.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple

from headrace.connectors.clock import SYSTEM_CLOCK, Clock
from headrace.consumers.node.data_age import DataAge
from headrace.consumers.recovery.progress import LogProgress
from headrace.consumers.replication.failure_detector import OFFLINE_MS
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_registry import ByTopic
from headrace.consumers.replication.health import Progress
from headrace.consumers.replication.log_consumer import LogConsumer


class EndAsked(NamedTuple):
    """What is known right before a log is asked for its end.

    `restarts`: how often the group began to follow its log again. `elsewhere`: see LogPositions.
    """

    restarts: int
    elsewhere: float | None


class LogPositions:
    """The positions of all groups of one node, by the topic of their log. Safe to share between threads.

    `elsewhere` is the newest offset that another member has read of a log; infinite for one that it has lost, and None
    while a node does not know the statuses of others, and serves nothing.
    """

    def __init__(
        self,
        groups: Mapping[str, Group],
        log_consumer: LogConsumer,
        ends: Mapping[str, int],
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._clock = clock
        # What is known of one group changes together: whoever finds it at the end of its log looks at several values.
        self._lock = threading.Lock()
        self._groups = groups
        self._log_consumer = log_consumer
        self._ends = ByTopic(ends)
        self._ends_known = set(ends)
        self._restarts: Counter[str] = Counter()
        self._log_answered_s = self._clock.monotonic_s()
        self._reached: set[str] = set()
        self.elsewhere: Callable[[str], float | None] = lambda _topic: -1
        self._whole: set[str] = set()
        """The logs that held all that other members have read of them, when they were asked last."""
        self._held_back: dict[str, int] = {}
        self._log_progress = ByTopic({topic: LogProgress(log_consumer.position(topic), clock) for topic in groups})
        self.data_age = DataAge(groups, log_consumer, clock)

    def end(self, topic: str) -> int:
        """The end of a forward log when it was read last."""
        return self._ends[topic]

    def ask(self, topic: str) -> EndAsked:
        """Called right before a log is asked for its end."""
        return EndAsked(self._restarts[topic], self.elsewhere(topic))

    def admit(self, topic: str, end: int) -> None:
        """A group comes, whose log ends at an offset."""
        self.dismiss(topic)
        with self._lock:
            self._ends[topic] = end
            self._ends_known.add(topic)
            self._log_progress[topic] = LogProgress(self._log_consumer.position(topic), self._clock)

    def dismiss(self, topic: str) -> None:
        """A group has gone."""
        with self._lock:
            self._forget_end(topic)
            for known in (self._ends, self._log_progress, self._held_back):
                known.pop(topic, None)

    def note_end(self, topic: str, end: int, asked: EndAsked) -> None:
        """The log has answered, and ends at an offset."""
        self._log_answered_s = self._clock.monotonic_s()
        with self._lock:
            # The answer may take seconds, and the data of the group may be replaced meanwhile: see `restart`.
            if asked.restarts != self._restarts[topic]:
                return
            self._ends[topic] = end
            self._ends_known.add(topic)
            whole = asked.elsewhere is not None and end > asked.elsewhere
            (self._whole.add if whole else self._whole.discard)(topic)
            self._log_progress[topic].note(self._log_consumer.position(topic))

    def note_held_back(self, topic: str, offsets: int) -> None:
        """Note how many offsets of a log are held back by an open transaction."""
        self._held_back[topic] = offsets

    def held_back(self, topic: str) -> int:
        """Offsets that are unreadable because of an open transaction, when checked last."""
        return self._held_back.get(topic, 0)

    def progress(self, topic: str) -> Progress | None:
        """The progress of a group's recovery, None while there is nothing to recover."""
        recovery = self._groups[topic].health.conditions.recovery
        if recovery is not None:
            return recovery.progress()
        if self.caught_up(topic):
            return None
        return self._log_progress[topic].progress(self._log_consumer.position(topic), self._ends[topic])

    @property
    def log_answers(self) -> bool:
        """Whether the log has answered within the last 3 s."""
        return self._clock.monotonic_s() - self._log_answered_s < OFFLINE_MS / 1_000

    def caught_up(self, topic: str) -> bool:
        """Whether the group has reached the end of its log since this start, and applied what it read."""
        # Once reached it stays so: under load a follower is always some records behind, and must not leave
        # sync for that.
        if topic not in self._reached:
            elsewhere = self.elsewhere(topic)
            with self._lock:
                # A log that was cut before an accepted gap is not the one that the count of its records rests on.
                end = max(self._ends[topic], self._log_consumer.needed_end(topic))
                position = self._log_consumer.position(topic)
                applied = self._groups[topic].applied.offset >= self._log_consumer.durable_offset(topic)
                # The schedule: the log is cut, and the disk of a member is replaced. It reads what is left, and would
                # serve without the rows that others hold.
                whole = elsewhere is None or position > elsewhere or topic in self._whole
                if position >= end and applied and whole and topic in self._ends_known:
                    if elsewhere is None:
                        return True
                    self._reached.add(topic)
        return topic in self._reached

    def restart(self, topic: str) -> None:
        """The group begins to follow its log again: it is in sync only once it has reached the end."""
        with self._lock:
            self._forget_end(topic)
            self._log_progress[topic] = LogProgress(self._log_consumer.position(topic), self._clock)

    def _forget_end(self, topic: str) -> None:
        # Counted, and never forgotten: an answer about the end that is still on its way must not count for the next
        # group of this topic.
        self._restarts[topic] += 1
        self._reached.discard(topic)
        self.data_age.restart(topic)
        # The end that is known was read before this node's data was replaced: the files of another member may reach
        # it, and still not what this node has served since.
        self._ends_known.discard(topic)
        self._whole.discard(topic)

    def lag_reason(self, topic: str) -> str:
        """What keeps a group that has not caught up from the end of its log."""
        return self._log_progress[topic].reason(self._log_consumer.position(topic), self._ends[topic])
