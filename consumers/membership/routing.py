"""What the membership log has decided, for writers: the slot table, groups that end, and members that stay.

A thread looks at the log once a second while rows are written, and sleeps otherwise: an idle client costs nothing. The
first row after a pause waits for a look, since its groups may have ended meanwhile. While a change is in its first
phase the thread takes what comes ten times a second: clients that write the same row should learn of a table together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from headrace.connectors.clock import SYSTEM_CLOCK, Clock
from headrace.connectors.deadline import Deadline
from headrace.connectors.log.port import Log, LogUnavailable, TopicMissing
from headrace.connectors.log.topics import Topics
from headrace.connectors.periodic import LOG_JOIN_TIMEOUT_S
from headrace.consumers.membership.bootstrap import READ_TIMEOUT_S, read_membership
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.membership_follower import LOOK_INTERVAL_S, MembershipFollower, MembershipLogLost
from headrace.consumers.membership.running_change import RunningChange
from headrace.producers.cluster import Route, groups_of
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import FormatTooNew
from headrace.schemas.group_changes import GroupKey

IDLE_S = 10.0
"""So long after its newest use the thread looks on."""
STALE_S = 3.0
"""A route that was not confirmed for so long is looked up again before rows are written by it."""
STALE_WAIT_S = 2.0
"""How long a write waits for that at most: without Kafka it takes the route that is known."""
RETRY_S = 0.1
TAKE_INTERVAL_S = 0.1
"""How often records are taken from the open reader while a new table is about to count."""


def route_of(state: MembershipState, topic_exists: Callable[[GroupKey], bool]) -> Route:
    """The route of writers in a state of the membership log.

    A group that the running change adds is written to once it has a topic: until then the groups that give its slots
    take the rows and hand them over.
    """
    table, change = state.table, state.change
    assert table is not None, "a cluster exists"
    if change is None:
        return Route(table, tuple(GroupKey(*each) for each in table.ended))
    # Looked up in the first phase too: these topics are known then when the first row for them comes.
    exist = [topic_exists(group) for group in groups_of(change.table) if group.group not in change.base.headers]
    if not change.formal or not all(exist):
        return Route(change.base, _ending(change), _electorates(change), pending=change.formal)
    return Route(change.table, _ending(change), _electorates(change), moving=True)


def _ending(change: RunningChange) -> tuple[GroupKey, ...]:
    """The groups that a change ends."""
    return tuple(group for group in groups_of(change.base) if group.group not in change.table.headers)


def _electorates(change: RunningChange) -> dict[GroupKey, tuple[tuple[str, ...], ...]]:
    found: dict[GroupKey, tuple[tuple[str, ...], ...]] = {}
    for group in groups_of(change.base):
        before = change.base.group(group.group)
        if group.group not in change.table.headers:
            # Its members keep it until everything was handed over; from the new table on the one that leaves
            # counts for nothing.
            found[group] = (tuple(each for each in before if not change.formal or each in change.table.nodes),)
        elif (after := change.table.group(group.group)) != before:
            # Until the new table counts the change may be cancelled, so either set may be the members.
            found[group] = (after,) if change.formal else (before, after)
    return found


class MembershipRouting:
    """See Routing. Safe to share between threads.

    `prepare` is called with the topic of each group that a change brings, before rows are routed to it.
    """

    def __init__(
        self, log: Log, topics: Topics, timeout_s: float = READ_TIMEOUT_S, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        """Reads the log to its end. Raises NoCluster, FormatTooNew, LogUnavailable."""
        self._log = log
        self._topics = topics
        self._clock = clock
        self._looked_s = clock.monotonic_s()
        _, state = read_membership(log, topics, timeout_s)
        self._known: set[GroupKey] = set()
        self.prepare: Callable[[str], None] = lambda _topic: None
        self.newest: Route = route_of(state, self._has_topic)
        self._follower = MembershipFollower(log, topics.membership, clock=clock)
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._wanted = self._done = 0
        self._used_s = self._waited_s = float("-inf")

    @property
    def route(self) -> Route:
        """See Routing. Raises FormatTooNew, MembershipLogLost."""
        self._check()
        now_s = self._used_s = self._clock.monotonic_s()
        if now_s - self._looked_s >= LOOK_INTERVAL_S:
            self._wake(now_s)
        return self.newest

    def look(self, timeout_s: float) -> Route:
        """See Routing. Raises FormatTooNew, MembershipLogLost, LogUnavailable."""
        if not self._look_now(timeout_s):
            raise LogUnavailable(
                f"the membership log was not read to its end in {timeout_s:.1f} s: {self._follower.fault or 'no answer'}",
                action="check the broker",
                retriable=True,
            )
        return self.newest

    def close(self) -> None:
        """See Routing. A second call does nothing."""
        with self._changed:
            self._closed = True
            thread, self._thread = self._thread, None
            self._changed.notify_all()
        if thread is not None:
            thread.join(LOG_JOIN_TIMEOUT_S)
        if thread is None or not thread.is_alive():
            self._follower.close()

    def _check(self) -> None:
        if self._follower.stopped:
            raise FormatTooNew(self._follower.stopped, action="upgrade this client")
        if self._follower.lost:
            raise MembershipLogLost(self._follower.lost, action="check the cluster's name, and connect again")

    def _wake(self, now_s: float) -> None:
        """Let the thread look on; wait for it where the route may be of long ago."""
        if now_s - self._looked_s < STALE_S or now_s - self._waited_s < STALE_S:
            self._start()
            return
        # Once in a while and not for each block: without Kafka rows are queued as before.
        self._waited_s = now_s
        self._look_now(STALE_WAIT_S)
        self._check()

    def _look_now(self, timeout_s: float) -> bool:
        """Whether a look that began after this call reached the end of the log."""
        self._start()
        with self._changed:
            self._wanted += 1
            wanted = self._wanted
            self._changed.notify_all()
            done = self._changed.wait_for(
                lambda: self._done >= wanted or self._closed or self._follower.failure, timeout_s
            )
        self._check()
        return bool(done) and self._done >= wanted

    def _start(self) -> None:
        with self._changed:
            if self._thread is None and not self._closed:
                self._thread = threading.Thread(target=self._run, name="membership-routing", daemon=True)
                self._thread.start()
            elif self._clock.monotonic_s() - self._looked_s > LOOK_INTERVAL_S:
                self._changed.notify_all()

    # The thread.

    def _run(self) -> None:
        while True:
            with self._changed:
                if self._wanted == self._done and not self._closed:
                    self._changed.wait(self._interval_s)
                if self._closed:
                    return
                wanted, due = self._wanted, self._used or self._wanted > self._done
            if due and not self._turn(wanted):
                with self._changed:
                    if not self._closed:
                        self._changed.wait(RETRY_S if not self._follower.failure else LOOK_INTERVAL_S)

    @property
    def _used(self) -> bool:
        return self._clock.monotonic_s() - self._used_s < IDLE_S

    @property
    def _interval_s(self) -> float | None:
        if not self._used:
            return None
        return TAKE_INTERVAL_S if self._expects_table else LOOK_INTERVAL_S

    @property
    def _expects_table(self) -> bool:
        change = self._follower.state.change
        return change is not None and not change.formal

    def _turn(self, wanted: int) -> bool:
        """Take what has come, or look where that is due; whether to wait as long as usual for the next turn."""
        looked_ago_s = self._clock.monotonic_s() - self._looked_s
        if wanted > self._done or not self._expects_table or looked_ago_s >= LOOK_INTERVAL_S:
            return self._look_to_end(wanted)
        self._follower.expect()
        return not self._follower.turn() or self._publish(wanted, self._looked_s)

    def _look_to_end(self, wanted: int) -> bool:
        """One look, to the end of the log; whether it got there."""
        follower, began_s = self._follower, self._clock.monotonic_s()
        follower.caught_up = False
        while not follower.caught_up:
            follower.look_soon()
            follower.turn()
            if follower.failure or follower.fault or self._closed:
                with self._changed:
                    self._changed.notify_all()
                return False
        return self._publish(wanted, began_s)

    def _publish(self, done: int, looked_s: float) -> bool:
        follower = self._follower
        try:
            found = route_of(follower.state, self._has_topic) if follower.state.table is not None else self.newest
        except HeadraceError as error:
            follower.fault = str(error)
            return False
        with self._changed:
            # By a newer table, or by the same one with other members.
            self.newest = found
            self._done, self._looked_s = done, looked_s
            self._changed.notify_all()
        return True

    def _has_topic(self, group: GroupKey) -> bool:
        if group not in self._known:
            topic = self._topics.forward(group.group, group.birth)
            try:
                self._log.describe(topic)
            except TopicMissing:
                return False
            self.prepare(topic)
            self._known.add(group)
        return True


def open_routing(
    log: Log, topics: Topics, deadline: Deadline, on_wait: Callable[[LogUnavailable], None] = lambda _: None
) -> MembershipRouting:
    """The routing of a cluster, waiting for a log that does not answer. Raises NoCluster, FormatTooNew, LogUnavailable."""
    while True:
        try:
            return MembershipRouting(log, topics, max(1.0, deadline.left_s()))
        except LogUnavailable as error:
            if deadline.passed():
                raise
            on_wait(error)
            # Some errors come at once.
            time.sleep(RETRY_S)
