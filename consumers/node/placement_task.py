"""Follows what the membership log decides about the groups of this node: opens, closes, ends and deletes them.

Which groups a node holds is decided in `consumers/membership/placement.py`. A turn waits for no thread of a group:
what is not done now is tried again at the next one. While the membership log is not followed, all stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import structlog

from headrace.connectors.clock import SYSTEM_CLOCK, Clock
from headrace.connectors.periodic import LOG_JOIN_TIMEOUT_S, PeriodicTask
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.cluster_topics import ClusterTopics
from headrace.consumers.membership.ended_topics import EndedTopics
from headrace.consumers.membership.membership_follower import MembershipFollower
from headrace.consumers.membership.placement import (
    closable_ends,
    early_groups,
    groups_of_table,
    is_exiled,
    joining_reason,
    leaving_reason,
    wanted_groups,
)
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.node.group_ending import GroupEnding
from headrace.consumers.node.group_lifecycle import GroupLifecycle
from headrace.consumers.node.local_groups import LocalGroups
from headrace.consumers.node.readiness import Readiness
from headrace.consumers.recovery.environment import GroupBusy
from headrace.consumers.replication.founding import Founding
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey

TURN_S = 0.25
EXILE_WAIT_S = 20.0
"""How long a removed node waits for queries that still read the files of its groups, before it ends all the same."""
_log = structlog.get_logger(__name__)


class PlacementTask:
    """The thread of a node for its placement; `turn` is one step of it.

    `on_table` is called with each new slot table, and `on_exile` once nothing is left for a removed node. Both are
    set before the start, and called by this thread.
    """

    def __init__(
        self,
        follower: MembershipFollower,
        lifecycle: GroupLifecycle,
        local: LocalGroups,
        readiness: Readiness,
        topics: EndedTopics,
        cluster_topics: ClusterTopics,
        ending: GroupEnding,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._follower = follower
        self.lifecycle = lifecycle
        self._local = local
        self._readiness = readiness
        self._topics = topics
        self._topics_of_cluster = cluster_topics
        self._ending = ending
        self._clock = clock
        self._node = local.identity.node
        self._records = 0
        self._table: SlotTable | None = None
        self._settled: MembershipState | None = None
        self.fault = ""
        self._exiled_s: float | None = None
        self._task = PeriodicTask("group-placement", TURN_S, self.turn, LOG_JOIN_TIMEOUT_S)
        self.on_table: Callable[[SlotTable], None] = lambda _table: None
        self.on_exile: Callable[[], None] = lambda: None

    def start(self) -> None:
        """Begin."""
        self._task.start()

    def wake(self) -> None:
        """The membership log has decided something: take the next turn now."""
        self._task.wake()

    def request_stop(self) -> None:
        """Begin to stop, see `PeriodicTask.request_stop`."""
        self._task.request_stop()

    def stop(self) -> None:
        """Stop after the current turn."""
        self._task.stop()
        if not self._task.alive:
            self._ending.close()

    def turn(self) -> None:
        """Follow the newest state of the membership log."""
        state = self._follower.state
        if self._follower.failure or not self._follower.caught_up or state is self._settled:
            return
        try:
            self.step(state)
            self.fault = ""
        except GroupBusy:
            return
        except Exception as error:
            # Whatever it is, it is shown, and tried again at the next turn.
            why = _reason(error)
            if why != self.fault:
                unknown = not isinstance(error, HeadraceError | OSError)
                _log.warning("groups do not follow the membership log", error=why, exc_info=unknown)
            self.fault = why

    def step(self, state: MembershipState) -> None:
        """Do what a state asks for; an older one than before changes nothing.

        Raises GroupBusy while something is left to do, the errors of the log, StoreError and OSError.
        """
        table = state.table
        if table is None or state.records < self._records:
            return
        self._records = state.records
        if table is not self._table:
            self._table = table
            self.on_table(table)
        ends = closable_ends(state)
        gone = self._topics.gone(ends)
        # Nobody follows a topic that is missing. Its data is kept until it is gone: the group may be opened again.
        early = early_groups(state, self._node)
        # Before they are opened, and before anything else is done once they are groups like others.
        self._stand(early=frozenset(map(self._topic, early)))
        wanted = {**wanted_groups(state, self._node, gone | self._topics.absent), **early}
        kept = {**wanted_groups(state, self._node, gone), **early}
        for key in ends:
            # A deleted topic must not be made again, nor a closed one be opened by a check of its settings.
            self._topics_of_cluster.forget(self._topic(key))
        busy = self._follow(table, wanted, state)
        self._ending.table = table
        self._ending.turn([key for key in ends if key not in gone])
        exiled = is_exiled(state, self._node, self._local.identity.born)
        if exiled:
            self._end(busy is None)
        # Last: a disk that refuses it keeps nothing else from being done.
        for key in self._local.left(kept):
            self.lifecycle.delete(key)
        if busy is not None:
            raise busy
        # The topic of a group that ends is deleted without another record.
        self._settled = None if state.ended or exiled else state

    def _follow(
        self, table: SlotTable, wanted: Mapping[GroupKey, Founding], state: MembershipState
    ) -> GroupBusy | None:
        """Open and close groups; returns what is left to do."""
        own = {self._topic(key) for key in groups_of_table(table, self._node)}
        self._note(own, "")
        busy, fault = None, ""
        try:
            self.lifecycle.follow(wanted, state.ended)
        except GroupBusy as error:
            busy = error
        except Exception as error:
            fault = _reason(error)
            raise
        finally:
            self._note(own, fault)
        # Only now: a node that joins is not ready before its groups are there.
        self._stand(joining=joining_reason(state, self._node), leaving=leaving_reason(state, self._node))
        return busy

    def _note(self, own: set[str], fault: str) -> None:
        """Report which groups of the table are not here, and which are here for the running change alone."""
        here = set(self._local.groups)
        topics = ", ".join(sorted(own - here))
        missing = f"groups not open yet: {topics}" + (f" ({fault})" if fault else "") if topics else ""
        self._stand(surplus=frozenset(here - own), missing=missing)

    def _stand(self, **changed: Any) -> None:
        self._readiness.standing = replace(self._readiness.standing, **changed)

    def _topic(self, key: GroupKey) -> str:
        return self._local.topics.forward(key.group, key.birth)

    def _end(self, nothing_left: bool) -> None:
        """This node was removed for good."""
        now_s = self._clock.monotonic_s()
        self._exiled_s = now_s if self._exiled_s is None else self._exiled_s
        if nothing_left or now_s - self._exiled_s >= EXILE_WAIT_S:
            self.on_exile()

    def may_be_gone(self, topic: str) -> bool:
        """Whether the topic of a group may be deleted by now: its group has ended, and hands over late records at most.

        Any thread may ask.
        """
        state, found = self._follower.state, self._local.topics.group_of(topic)
        return found is not None and _may_be_gone(state, GroupKey(*found))


def _reason(error: Exception) -> str:
    return str(error) if isinstance(error, HeadraceError | OSError) else repr(error)


def _may_be_gone(state: MembershipState, key: GroupKey) -> bool:
    return key not in state.founders or key in closable_ends(state)
