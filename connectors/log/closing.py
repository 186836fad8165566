"""Closes a topic for good: whoever appends is refused from then on, so its end is final.

Kafka acknowledges records into a topic until the moment of its deletion. So a topic is closed before it is drained
and deleted. No record is refused before the brokers have the setting, which takes a moment.
"""

from __future__ import annotations

import time
from contextlib import closing

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.port import Log, LogUnavailable, RecordTooLarge
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import format_headers

SIZE_SETTING = "max.message.bytes"
CLOSED_BYTES = "0"
"""The value of a closed topic: not even an empty record fits."""
PROBE = b"closing"
"""A record that no build decodes: readers count it and ignore it."""
CLOSE_TIMEOUT_S = 10.0
PROBE_TIMEOUT_S = 3.0
PROBE_PAUSE_S = 0.05


def close_topic(log: Log, topic: str, timeout_s: float = CLOSE_TIMEOUT_S) -> int:
    """Close a topic and return its end, which is final. A closed topic stays so, and the call may be repeated.

    A probe may be appended before the topic is closed. Raises TopicMissing, AccessDenied, TopicSettingsRefused,
    LogUnavailable.
    """
    log.configure(topic, {SIZE_SETTING: CLOSED_BYTES})
    deadline = Deadline(timeout_s)
    end = -1
    while True:
        # Twice, with the same end: a record that the broker had accepted before the first refusal may be written
        # behind it.
        if _refuses(log, topic):
            before, end = end, log.describe(topic).end
            if before == end:
                return end
        else:
            end = -1
        if deadline.passed():
            raise LogUnavailable(
                f"topic {topic} takes records {timeout_s:g} s after it was closed", action="check its settings"
            )
        time.sleep(PROBE_PAUSE_S)


def is_closed(log: Log, topic: str) -> bool:
    """Whether a topic has the setting of a closed one. Raises TopicMissing, AccessDenied, LogUnavailable."""
    return (log.configuration(topic).settings or {}).get(SIZE_SETTING) == CLOSED_BYTES


def _refuses(log: Log, topic: str) -> bool:
    """Whether a record of ours is refused because of its size."""
    outcome: list[HeadraceError | None] = []
    with closing(log.appender(repeats=True)) as appender:
        appender.append(
            topic, PROBE, headers=format_headers(), on_delivery=lambda _offset, error: outcome.append(error)
        )
        appender.flush(PROBE_TIMEOUT_S)
    if outcome and isinstance(outcome[0], RecordTooLarge):
        return True
    if outcome and outcome[0] is not None and not isinstance(outcome[0], LogUnavailable):
        raise outcome[0]
    return False
