"""Finds the accepted gap of a log that has lost records, or the whole log again, and lets its group continue."""

from __future__ import annotations

from collections.abc import Iterator

import structlog

from headrace.connectors.clock import Clock
from headrace.connectors.log.append import append_one
from headrace.connectors.log.port import Log
from headrace.connectors.periodic import PeriodicTask
from headrace.consumers.recovery.coordinator import RecoveryCoordinator
from headrace.consumers.recovery.environment import RecoveryEnvironment
from headrace.consumers.recovery.log_gap import (
    GapRefused,
    GapSeeker,
    follows_cursor,
    joins,
    last_common_offset,
    new_gap,
    runs_of,
)
from headrace.consumers.recovery.wrong_data import WrongData
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import Event, State
from headrace.consumers.replication.group_registry import forget_gone
from headrace.consumers.replication.group_state import LogBase
from headrace.schemas.errors import HeadraceError
from headrace.schemas.messages import Message, ProducerPosition, encode_message

SEEK_INTERVAL_S = 1.0
REGAIN_INTERVAL_S = 5.0
"""How often a lost log is looked at for the record that was read last: each look opens a reader."""
_log = structlog.get_logger(__name__)


class GapSearch:
    """One thread that searches the logs of blocked groups. `accept` may be called by any thread."""

    def __init__(
        self,
        log: Log,
        environment: RecoveryEnvironment,
        coordinator: RecoveryCoordinator,
        wrong_data: WrongData,
        clock: Clock,
    ) -> None:
        self._log = log
        self._environment = environment
        self._coordinator = coordinator
        self._wrong_data = wrong_data
        self._clock = clock
        self._seekers: dict[str, GapSeeker] = {}
        self._regain_s: dict[str, float] = {}
        self._task = PeriodicTask("gap-search", SEEK_INTERVAL_S, self.turn)

    def start(self) -> None:
        """Begin."""
        self._task.start()

    def stop(self) -> None:
        """Stop, and close the readers of the searches."""
        self._task.stop()
        # A reader that its thread still uses must not be closed under it.
        if not self._task.alive:
            for topic in list(self._seekers):
                self._forget(topic)

    def accept(self, topic: str, resume_offset: int | None) -> LogBase:
        """Accept that a log lost records: one more record names the offset where it continues.

        Raises GapRefused, and the errors of `append_one`.
        """
        group = self._environment.groups[topic]
        state = group.replica.state
        if group.health.is_wrong:
            raise GapRefused(f"group {group.name} holds wrong data at this node", action="see headrace status")
        if not group.blocked or state.offset != self._environment.durable_offset(topic):
            raise GapRefused(f"group {group.name} has not lost its log at this node", action="see headrace status")
        # Of those that lost it this member may have most, and of a log that was cut before: another has what is lost.
        if self._is_there_again(topic, group):
            raise GapRefused(
                f"the log of group {group.name} is there again, with all that this node has read of it",
                action="wait some seconds: this node continues by itself",
            )
        gap = new_gap(
            state,
            self._environment.topic_id(topic),
            self._log.describe(topic),
            lambda: self._last_common(topic, group),
            resume_offset,
        )
        # The time as the batch: a second gap that this node accepts must not count as a repeat of its first.
        position = ProducerPosition(f"{self._environment.node}/gap", self._clock.wall_ns(), 0)
        append_one(self._log, topic, encode_message(Message(position, gap)))
        _log.warning("gap accepted", group=group.name, resume_offset=gap.resume_offset, version=state.version)
        return LogBase.of(gap)

    def _last_common(self, topic: str, group: Group) -> int | None:
        runs = runs_of(group.history(), group.replica.state)
        found = (last_common_offset(self._log, topic, run) for run in runs)
        return next((offset for offset in found if offset is not None), None)

    def turn(self) -> None:
        """One step: searches the log of every blocked group as far as it is now."""
        for seeker in forget_gone(self._seekers, self._environment.groups):
            seeker.close()
        forget_gone(self._regain_s, self._environment.groups)
        for topic, group in self._reserved():
            try:
                if group.blocked:
                    self._seek(topic, group)
                else:
                    self._forget(topic)
            except (HeadraceError, OSError) as error:
                # What was found and not recorded is behind the reader: the next search begins again.
                self._forget(topic)
                _log.warning("gap not searched", group=group.name, error=str(error))
            finally:
                self._coordinator.release(topic)

    def _reserved(self) -> Iterator[tuple[str, Group]]:
        """The groups that nobody else decides on, each reserved for its turn."""
        for topic in list(self._environment.groups):
            if not self._coordinator.reserve(topic):
                continue
            # Looked up once it is reserved: nobody replaces it from here on, or lets it go.
            if (group := self._environment.groups.get(topic)) is not None:
                yield topic, group
            else:
                self._coordinator.release(topic)

    def _seek(self, topic: str, group: Group) -> None:
        seeker = self._seekers.get(topic)
        if seeker is not None and seeker.topic_id != self._log.describe(topic).topic_id:
            self._forget(topic)
            seeker = None
        if seeker is None:
            seeker = self._seekers[topic] = GapSeeker(self._log, topic)
        # Only an idle group may change its state: what was read before the log was lost is applied first.
        if not self._environment.is_idle(topic):
            return
        # Behind the gap that is known already, accepted or not yet joined: else the search would find that one for
        # ever.
        base = seeker.seek(group.health.conditions.gap or group.replica.state.base, self._task.stopping.is_set)
        if base is not None:
            self._cross(topic, group, base)
        elif self._is_regained(topic, group):
            _log.warning("log is there again", group=group.name, version=group.replica.state.version)
            group.health.report(Event.REGAIN)
            self._environment.reassign(topic)

    def _is_regained(self, topic: str, group: Group) -> bool:
        """Whether it is time to look, and the log that an idle group has lost is there again."""
        health, now_s = group.health, self._clock.monotonic_s()
        if not health.holds(State.UNNEEDED) or now_s < self._regain_s.get(topic, 0.0):
            return False
        self._regain_s[topic] = now_s + REGAIN_INTERVAL_S
        return self._is_there_again(topic, group)

    def _is_there_again(self, topic: str, group: Group) -> bool:
        if not group.health.holds(State.LOST) or group.health.is_wrong:
            return False
        log, cursor = self._log.describe(topic), self._environment.cursor(topic)
        if log.topic_id != self._environment.topic_id(topic) or cursor.needs >= log.end:
            return False
        # Where the log was trimmed meanwhile a member that has read on shows that this data is a part of its own.
        trimmed = cursor.offset < log.begin
        return self._is_prefix(topic, group) if trimmed else follows_cursor(self._log, topic, log, cursor)

    def _is_prefix(self, topic: str, group: Group) -> bool:
        """Whether another member has read what this group has read, and follows the log of it."""
        state, environment = group.replica.state, self._environment
        return any(
            environment.chain_of(status.http, group.name, state.version) == state.chain
            for status in environment.live(group)
            if status.node != environment.node
            and status.topic_id == environment.topic_id(topic)
            and status.version > state.version
            and not status.log_lost
        )

    def _cross(self, topic: str, group: Group, base: LogBase) -> None:
        """Continue behind a gap from its anchor, or take the files of a member that could."""
        # Durable before the group continues: a restart compares the topic's id, and joins the journal's
        # records at the gap.
        self._environment.record_gap(topic, base)
        if group.health.is_wrong or not joins(base, group.replica.state):
            why = f"its log continues behind version {base.version}, which is not the newest here"
            self._wrong_data.mark(topic, why, gap=base)
            group.health.report(Event.SKIP)
            return
        self._environment.join_gap(topic, base)
        group.health.report(Event.JOIN)
        self._environment.reassign(topic)

    def _forget(self, topic: str) -> None:
        if (seeker := self._seekers.pop(topic, None)) is not None:
            seeker.close()
