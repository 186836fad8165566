"""Whether a log still has what this node has read of it: the question behind each recovery that gives up own data."""

from __future__ import annotations

from headrace.connectors.log.port import Log, TopicState
from headrace.consumers.recovery.environment import RecoveryEnvironment
from headrace.consumers.recovery.log_gap import follows_cursor


class LogEvidence:
    """Asks the logs of a node's groups. Safe for any thread."""

    def __init__(self, log: Log, environment: RecoveryEnvironment) -> None:
        self._log = log
        self._environment = environment

    def has_all_that_was_read(self, topic: str, log: TopicState) -> bool:
        """Whether a log, in this state, has what this node has read of it: data that is rebuilt from another is lost."""
        # The schedule: a file of a single node rots, and its topic is made again. The new log has its first record,
        # and nothing of what the other files hold. A group with wrong data does not follow its log, so that nobody
        # else finds out.
        same = log.topic_id == self._environment.topic_id(topic)
        return same and follows_cursor(self._log, topic, log, self._environment.cursor(topic))

    def lost_records(self, topic: str) -> bool:
        """Whether the log lacks the newest record read here, and was not trimmed behind it."""
        log = self._log.describe(topic)
        return self._environment.cursor(topic).offset >= log.begin and not self.has_all_that_was_read(topic, log)
