"""The failure detector: who is alive by the broker's time, and which members hold a record."""

from __future__ import annotations

from dataclasses import replace

from headrace.consumers.replication.failure_detector import FailureDetector
from tests.unit.statuses import STATUS


def test_offline_is_three_seconds_of_the_brokers_time() -> None:
    """A node is offline when the newest status read is 3 s younger than its own newest.

    A node without a status is offline too.
    """
    detector = FailureDetector()
    detector.observe(1_000, STATUS)
    detector.observe(3_999, replace(STATUS, node="n2"))
    assert [True, True, False] == [detector.alive("g", node) for node in ("n1", "n2", "n3")]
    detector.observe(4_000, replace(STATUS, node="n2"))
    assert [False, True] == [detector.alive("g", node) for node in ("n1", "n2")]
    assert [3_000, 0, -1] == [detector.silent_ms("g", node) for node in ("n1", "n2", "n3")]


def test_copies_count_only_live_members_of_the_same_topic() -> None:
    """A quorum counts live members that hold the offset durably and follow the topic of the record."""
    detector = FailureDetector()
    detector.observe(1_000, STATUS)
    detector.observe(1_000, replace(STATUS, node="n2", durable_offset=11))
    detector.observe(1_000, replace(STATUS, node="n3", topic_id="an older topic"))
    detector.observe(1_000, replace(STATUS, node="n4"))
    members = ("n1", "n2", "n3")
    assert [2, 1, 0] == [detector.durable_copies("g", members, "t", offset) for offset in (11, 12, 13)]
    detector.observe(9_000, replace(STATUS, node="n2", durable_offset=20))
    assert detector.durable_copies("g", members, "t", 11) == 1
