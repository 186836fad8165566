"""Topics that cannot be read: tried again, less often after every failure."""

from __future__ import annotations

import math

from headrace.consumers.replication.excluded_topics import DELAY_S_MAX, ExcludedTopics
from tests.manual_clock import ManualClock


def test_the_delay_doubles_up_to_its_limit_and_ends_with_a_success() -> None:
    """Each attempt costs a new reader for all topics."""
    clock = ManualClock()
    excluded, delays = ExcludedTopics(1.0, clock), list[float]()
    for _ in range(7):
        excluded.add(["t"], "no access")
        delays.append(excluded.retry_at_s("t") - clock.now_s)
    assert [1.0, 2.0, 4.0, 8.0, 16.0, DELAY_S_MAX, DELAY_S_MAX] == delays
    clock.now_s += DELAY_S_MAX
    assert ("no access", -math.inf) == (excluded.reason("t"), excluded.retry_at_s("t"))
    excluded.readmit("t")
    excluded.add(["t"], "no access")
    assert 1.0 == excluded.retry_at_s("t") - clock.now_s
