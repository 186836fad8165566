"""Removes the files of slots that other groups hold, once these have them: the last step of a donor.

Replicas do it at different moments, and no record orders it: nothing that members compare depends on these files
from the cut on. Each group has directories of its own. So a node that holds a slot through another group keeps its
rows, also where it has linked the files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import structlog

from headrace.connectors.periodic import PeriodicTask
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.replication.change_view import ChangeView
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import State
from headrace.consumers.store import Slots

TURN_S = 1.0
_log = structlog.get_logger(__name__)


def releasable(state: MembershipState, header: str, changes: ChangeView) -> frozenset[int]:
    """The slots that a group gave, and that every member of their new group has."""
    # The log of the group is ahead of what this node has read of the membership log: that may be a change that runs.
    if state.table is None or changes.settled_version > state.table.version:
        return frozenset()
    change = state.change
    running = change.table.moved if change is not None and change.formal else ()
    return frozenset(changes.given) - {slot for slot, former in running if former == header}


class SlotRelease:
    """The thread that lets groups of a node release what they gave."""

    def __init__(self, groups: Mapping[str, Group], state: Callable[[], MembershipState]) -> None:
        """`groups` by forward topic."""
        self._groups = groups
        self._state = state
        self._task = PeriodicTask("slot-release", TURN_S, self.turn)

    def start(self) -> None:
        """Begin."""
        self._task.start()

    def stop(self) -> None:
        """Stop after the current turn."""
        self._task.stop()

    def turn(self) -> None:
        """Order the release of what may go and is here. A release that a crash has undone is ordered again."""
        state = self._state()
        for group in self._groups.values():
            changes = group.applied.changes
            given = Slots(releasable(state, group.name, changes), changes.slots_total)
            if not given.numbers or group.store.pending_jobs() or group.health.holds(State.STOPPED, State.LEAVING):
                continue
            if files := [entry for entry in group.store.cut_files() if given.hold_segment(entry)]:
                _log.info("slots released", group=group.name, slots=len(given.numbers), files=len(files))
                group.release(given.numbers)
