"""Whether the topic of a group that ended is gone: an absence must last, since a broker may just have started."""

from __future__ import annotations

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.ended_topics import DELETED_AFTER_S, LOOK_INTERVAL_S, EndedTopics
from headrace.schemas.group_changes import GroupKey
from tests.manual_clock import ManualClock

TOPICS = Topics("c")
BIRTH = GroupKey("n3", 2)
TOPIC = TOPICS.forward("n3", 2)


def test_an_absence_that_lasts_is_final() -> None:
    """A log that does not answer, or knows no topic, shows nothing, and a topic that returns was never gone."""
    log, clock = MemoryLog(), ManualClock()
    for topic in (TOPIC, TOPICS.membership):
        log.create_topic(topic, {})
    topics = EndedTopics(log, TOPICS, clock)

    def looks(count: int) -> tuple[bool, bool]:
        """(absent, gone) after some looks."""
        for _ in range(count):
            clock.now_s += LOOK_INTERVAL_S
            gone = topics.gone([BIRTH])
        return BIRTH in topics.absent, BIRTH in gone

    most = int(DELETED_AFTER_S / LOOK_INTERVAL_S)
    assert (False, False) == looks(most + 2)
    log.hidden = {TOPIC}
    assert (True, False) == looks(most)
    log.hidden = {TOPIC, TOPICS.membership}
    assert (True, False) == looks(most + 2)
    log.hidden = {TOPIC}
    assert (True, False) == looks(most)
    assert {BIRTH} == topics.missing([BIRTH])
    log.hidden = set()
    assert (False, False) == looks(1)
    log.delete_topic(TOPIC)
    assert (True, False) == looks(most)
    log.unavailable = True
    assert (True, False) == looks(2)
    log.unavailable = False
    assert (True, False) == looks(most)
    assert (True, True) == looks(1)
    # A later topic of the name is another log.
    log.create_topic(TOPIC, {})
    assert BIRTH in topics.gone([BIRTH])
    assert frozenset() == topics.gone([])
