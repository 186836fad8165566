"""What a node broadcasts: what is new at once, everything again before anybody takes the node for dead."""

from __future__ import annotations

from dataclasses import replace

from consumers.replication.broadcast import REPEAT_S, Said
from consumers.replication.status import INTERVAL_MS
from tests.unit.test_replication_parts import STATUS

ONE = replace(STATUS, group="one")
TWO = replace(ONE, group="two")


def test_only_the_group_that_changed_is_said_again() -> None:
    """A status that differs in its time of sending alone says nothing; one with a new durable offset does."""
    said = Said()
    assert [ONE, TWO] == said.news([ONE, TWO], 0.0)
    later, moved = replace(ONE, sent_boot_ns=8), replace(TWO, durable_offset=13, sent_boot_ns=8)
    assert [moved] == said.news([later, moved], 0.01)
    assert [] == said.news([later, moved], 0.02)


def test_everything_is_said_again_within_the_interval() -> None:
    """A group that never changes is heard at least every interval, however often another one makes the node speak."""
    said = Said()
    said.news([ONE, TWO], 0.0)
    assert [] == said.news([ONE, TWO], REPEAT_S - 0.001)
    assert [ONE, TWO] == said.news([ONE, TWO], REPEAT_S)
    assert 2 * REPEAT_S <= INTERVAL_MS / 1_000


def test_what_was_not_sent_is_news_still() -> None:
    """A status that the log did not take is tried again at the next turn."""
    said = Said()
    said.news([ONE, TWO], 0.0)
    said.forget("one")
    assert [ONE] == said.news([ONE, TWO], 0.01)
