"""What is known of a group that is gone stays true when the logs of other groups are lost and continue."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from headrace.consumers.query.ended_groups import EndedGroups, Gone
from headrace.schemas.group_changes import GroupKey

GONE = GroupKey("x", 2)
TAKER = GroupKey("b", 1)


class Logs:
    """The newest offset in the log of each group. See GroupTopics."""

    def __init__(self) -> None:
        self.newest = {TAKER: 23}
        self.asked = 0

    def is_deleted(self, key: GroupKey) -> bool:
        """See GroupTopics."""
        return key == GONE

    def newest_offset(self, key: GroupKey) -> int:
        """See GroupTopics."""
        self.asked += 1
        return self.newest[key]


class World:
    """A node that has found out that a group is gone; the group that took its rows is here or at another node."""

    def __init__(self, is_here: bool) -> None:
        self.logs = Logs()
        self.here = SimpleNamespace(key="b", applied=SimpleNamespace(offset=23))
        self.there = SimpleNamespace(durable_offset=23)
        local: Any = SimpleNamespace(groups={"b": self.here} if is_here else {})
        remote: Any = SimpleNamespace(holders={}.get, serving={"b": [self.there]}.__getitem__)
        self.groups = EndedGroups(local, remote, self.logs)
        request: Any = SimpleNamespace()
        # What is asked of a group that nobody holds is not looked at.
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("headrace.consumers.query.ended_groups.replace", lambda given, **_: given)
            self.first = self.groups.hand_overs(GONE, request, request, request, [TAKER])

    def read_to(self, offset: int) -> None:
        """The group was read up to there, wherever it is."""
        self.here.applied.offset = self.there.durable_offset = offset


@pytest.mark.parametrize("is_here", [True, False])
def test_the_end_of_a_log_that_was_made_again_is_not_waited_for(is_here: bool) -> None:
    """An accepted gap continues the group in a log of few records: what the old log had behind them never comes."""
    world = World(is_here)
    assert Gone({"b": 23}) == world.first == world.groups.gone(GONE)
    world.logs.newest[TAKER] = 2
    world.read_to(1)
    assert Gone({"b": 2}) == world.groups.gone(GONE)
    # The lower end stays while the new log grows.
    world.logs.newest[TAKER] = 40
    assert Gone({"b": 2}) == world.groups.gone(GONE)


@pytest.mark.parametrize("is_here", [True, False])
def test_a_member_that_is_behind_is_waited_for_up_to_the_end_that_the_log_had(is_here: bool) -> None:
    """Rows that others wrote since are not. Nor is an end given up for a topic that does not show its records."""
    world = World(is_here)
    world.read_to(7)
    for newest in (23, 90, -1):
        world.logs.newest[TAKER] = newest
        assert Gone({"b": 23}) == world.groups.gone(GONE)


def test_logs_that_were_read_so_far_are_not_asked_again() -> None:
    """The usual case costs a query no request to the log."""
    world = World(True)
    asked = world.logs.asked
    assert Gone({"b": 23}) == world.groups.gone(GONE)
    assert asked == world.logs.asked
    assert world.groups.gone(TAKER) is None
