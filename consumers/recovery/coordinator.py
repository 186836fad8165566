"""Recovers groups from the files of another member (docs/internals/recovery.md).

These are groups whose log no longer holds what they need, that are far behind, or whose data is wrong. One
thread plans for them, a small pool copies. A group under recovery is unsynced, reads nothing and keeps the
data it has until a complete, verified copy takes its place.
"""

from __future__ import annotations

import threading
from concurrent.futures import Executor

import structlog

from headrace.connectors.clock import Clock
from headrace.connectors.log.port import Log
from headrace.connectors.periodic import PeriodicTask
from headrace.consumers.recovery.environment import GroupBusy, RecoveryEnvironment
from headrace.consumers.recovery.file_copy import SourceCorrupt, commit_empty, is_committed
from headrace.consumers.recovery.group_copies import GroupCopies
from headrace.consumers.recovery.log_evidence import LogEvidence
from headrace.consumers.recovery.plan import Costs, RecoveryMethod, RecoveryPlan, ReplicaPosition, plan_recovery
from headrace.consumers.recovery.progress import Recovery, TransferStopped
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import Aspect, Event, State
from headrace.consumers.replication.group_state import GapRecord, LogBase
from headrace.consumers.replication.settings import ReplicationLimits
from headrace.schemas.errors import HeadraceError
from headrace.schemas.records import Status

TURN_S = 0.5
# A source that failed may be back at once. One that sent wrong bytes has a fault that its scrubber first has
# to find; with a short exclusion a receiver would copy from it again and again.
FAILED_EXCLUSION_S = 2.0
CORRUPT_EXCLUSION_S = 600.0
_log = structlog.get_logger(__name__)


class RecoveryCoordinator:
    """Plans in one thread, copies in `pool`."""

    def __init__(
        self,
        log: Log,
        environment: RecoveryEnvironment,
        limits: ReplicationLimits,
        pool: Executor,
        clock: Clock,
        costs: Costs | None = None,
    ) -> None:
        self._log = log
        self._environment = environment
        self._groups = environment.groups
        self._limits = limits
        self._pool = pool
        self._clock = clock
        self._costs = costs or Costs()
        self._recoveries: dict[str, Recovery] = {}
        self._reserved: set[str] = set()
        self._copying: set[str] = set()
        self._installing: set[str] = set()
        self._reserving = threading.Lock()
        self._excluded_until_s: dict[tuple[str, str, LogBase | None], float] = {}
        self._task = PeriodicTask("recovery-planner", TURN_S, self.turn)
        self._evidence = LogEvidence(log, environment)
        self._copies = GroupCopies(log, environment, self._evidence, self._task.stopping)

    def start(self) -> None:
        """Begin to plan."""
        self._task.start()

    def stop(self) -> None:
        """Stop; copies continue at the next start of the node."""
        self._task.stop()
        self._pool.shutdown(wait=True)

    def _begin(self, topic: str, group: Group, why: str) -> Recovery:
        """From now on a group recovers."""
        health, limit = group.health, self._limits.recovery_bytes_per_second
        recovery = Recovery(why, health.is_wrong, self._task.stopping, limit, self._clock)
        health.recover(why, recovery)
        # Whatever is wrong was logged by who found it; a member that was down for long recovers, too.
        _log.info("group recovers", group=group.name, why=why)
        self._recoveries[topic] = recovery
        self._environment.reassign(topic)
        return recovery

    def reserve(self, topic: str) -> bool:
        """Reserve a group: nobody else decides on its recovery, or replaces it, until `release`.

        False when it is reserved.
        """
        # Without it a copy could be installed by the pool while the planner, which looked at the old group,
        # begins another.
        with self._reserving:
            if topic in self._reserved:
                return False
            self._reserved.add(topic)
            return True

    def release(self, topic: str) -> None:
        """End a reservation."""
        with self._reserving:
            self._reserved.discard(topic)

    def cancel(self, topic: str) -> None:
        """End the copy of a group that goes, at its next chunk; then it can be reserved."""
        if (recovery := self._recoveries.get(topic)) is not None:
            recovery.cancel()

    def forget(self, topic: str) -> None:
        """Forget a reserved group that has gone, and end its reservation."""
        self._recoveries.pop(topic, None)
        self._installing.discard(topic)
        for key in list(self._excluded_until_s):
            if key[0] == topic:
                self._excluded_until_s.pop(key, None)
        self.release(topic)

    def turn(self) -> None:
        """One step: begins the recoveries that are due, and plans for every group under recovery."""
        for topic in list(self._groups):
            if not self.reserve(topic):
                continue
            copies = False
            try:
                # Looked up once it is reserved: nobody replaces it from here on, or lets it go.
                if (group := self._groups.get(topic)) is not None:
                    copies = self._plan_group(topic, group)
            except HeadraceError as error:
                self._note_failure(topic, str(error))
            finally:
                if not copies:
                    self.release(topic)

    def _note_failure(self, topic: str, error: str) -> None:
        if (recovery := self._recoveries.get(topic)) is not None:
            recovery.note_failure(error)

    def _plan_group(self, topic: str, group: Group) -> bool:
        """Whether a copy was begun, which keeps the reservation until it ends."""
        # Wrong data whose mark is not durable: see WrongData.
        if group.health.holds(State.WRONG):
            return False
        recovery = self._recovery_of(topic, group)
        if len(self._copying) >= self._limits.recoveries_max:
            return False
        if recovery is not None:
            return self._plan(topic, group, recovery)
        if group.follows and not self._environment.caught_up(topic):
            self._plan_shortcut(topic, group)
        return False

    def _recovery_of(self, topic: str, group: Group) -> Recovery | None:
        """The recovery that the health of a group asks for, begun if necessary."""
        health, recovery = group.health, self._recoveries.get(topic)
        current = recovery if recovery is not None and health.conditions.recovery is recovery else None
        # Wrong data outranks a recovery for another reason: that one may end by following the log on top of
        # the wrong data.
        if health.is_wrong and (current is None or not current.wrong):
            return self._begin(topic, group, health.cause(Aspect.DATA))
        if health.holds(State.TRIMMED) and current is None:
            return self._begin(topic, group, health.cause(Aspect.LOG))
        return current

    def _plan(self, topic: str, group: Group, recovery: Recovery) -> bool:
        live = self._sources(topic, group)
        plan = self._planned(topic, group, recovery, live)
        # A committed copy wins over any new plan: it was verified, and a crash at the swap would install it
        # all the same. So does one that a failing disk left half installed: its group has been stopped.
        if self._is_decided(topic, group) or plan.method in (RecoveryMethod.FILES, RecoveryMethod.REBUILD):
            group.health.report(Event.COPY)
            self._copying.add(topic)
            url = next((status.http for status in live if status.node == plan.source), "")
            self._pool.submit(self._recover, topic, group, recovery, plan, url)
            return True
        if plan.method is RecoveryMethod.LOG:
            group.health.report(Event.RESUME)
            self._environment.reassign(topic)
        else:
            recovery.note_waiting(plan.reason)
            group.health.report(Event.STARVE, plan.reason)
        return False

    def _is_decided(self, topic: str, group: Group) -> bool:
        return topic in self._installing or is_committed(self._environment.directory, group.directory_name)

    def _plan_shortcut(self, topic: str, group: Group) -> None:
        """Files may be the cheaper method for a group that still reads its log."""
        plan = self._planned(topic, group, None, self._sources(topic, group))
        if plan.method is RecoveryMethod.FILES:
            self._begin(topic, group, plan.reason)

    def _planned(self, topic: str, group: Group, recovery: Recovery | None, live: list[Status]) -> RecoveryPlan:
        position = self._position_of(topic, group, recovery)
        plan = plan_recovery(position, live, self._costs)
        # The schedule: a log is cut while this node is down, and written on for long. Files of a member that was behind
        # the cut are whole, and of the log as it is: with them nobody would know of the records that only this node
        # has. Whoever reads the log on finds that it is lost.
        if plan.method is RecoveryMethod.FILES and not position.wrong and self._evidence.lost_records(topic):
            return RecoveryPlan(RecoveryMethod.LOG)
        return plan

    def _position_of(self, topic: str, group: Group, recovery: Recovery | None) -> ReplicaPosition:
        log, applied = self._log.describe(topic), group.applied
        wrong = recovery is not None and recovery.wrong
        return ReplicaPosition(
            node=self._environment.node,
            next_offset=self._environment.durable_offset(topic) + 1,
            log_begin=log.begin,
            log_bytes=applied.log_bytes,
            wrong=wrong,
            trusted=group.health.conditions.trusted if recovery is not None else None,
            whole=wrong and group.log_is_whole(log.begin) and self._evidence.has_all_that_was_read(topic, log),
        )

    def _sources(self, topic: str, group: Group) -> list[Status]:
        """Live members that follow the same topic, have an address, and are not excluded.

        With an accepted gap ahead, only those whose files include it.
        """
        now, gap = self._clock.monotonic_s(), self._gap_ahead(topic, group)
        known = group.health.conditions.gap
        return [
            status
            for status in self._environment.live(group)
            if status.topic_id == self._environment.topic_id(topic)
            and status.http
            and self._excluded_until_s.get((topic, status.node, known), 0.0) <= now
            # One that was behind the cut counts the log as it is, up to the gap, and has nothing of what the log lost.
            # Its files would take the place of the only data that the log continues behind.
            and (gap is None or status.sealed_offset >= gap.offset)
        ]

    def _gap_ahead(self, topic: str, group: Group) -> GapRecord | None:
        known = group.health.conditions.gap
        return known.record if known is not None else self._environment.cursor(topic).gap

    def _recover(self, topic: str, group: Group, recovery: Recovery, plan: RecoveryPlan, url: str) -> None:
        # Files that a log without the gap proves wrong may be those that it continues behind.
        exclusion_s, gap = FAILED_EXCLUSION_S, group.health.conditions.gap
        try:
            if not self._is_decided(topic, group):
                if plan.method is RecoveryMethod.REBUILD:
                    commit_empty(self._environment.directory, group.directory_name)
                else:
                    self._copies.make(topic, group, recovery, plan.source, url)
            # From here on only the installation may be repeated: a disk that fails within it leaves the group
            # stopped, and its old data partly moved.
            self._installing.add(topic)
            self._environment.install(topic)
            self._installing.discard(topic)
            if plan.method is RecoveryMethod.REBUILD:
                _log.info("emptied, to be rebuilt from its log", group=group.name)
            else:
                _log.info("recovered from files", group=group.name, source=plan.source, bytes=recovery.bytes_total)
            return
        except TransferStopped:
            return
        except GroupBusy as error:
            # A later turn installs a copy that is committed, and else looks again.
            recovery.note_failure(str(error))
            return
        except SourceCorrupt as error:
            exclusion_s = CORRUPT_EXCLUSION_S
            recovery.note_failure(f"{plan.source}: {error}")
        except (HeadraceError, OSError) as error:
            recovery.note_failure(f"{plan.source}: {error}")
        except Exception as error:
            recovery.note_failure(f"{plan.source}: {error!r}")
            _log.exception("recovery failed", group=group.name)
        finally:
            self._copying.discard(topic)
            self.release(topic)
        self._excluded_until_s[topic, plan.source, gap] = self._clock.monotonic_s() + exclusion_s
        _log.warning("copy not complete", group=group.name, source=plan.source, reason=recovery.reason)
