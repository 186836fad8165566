"""Monitors the logs of a node beside the thread that reads them.

It notes their ends, their topic ids and open transactions, checks the settings of their topics, follows the
schema log, and commits the node's offsets for lag tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import structlog

from headrace.connectors.clock import SYSTEM_CLOCK, Clock
from headrace.connectors.deadline import GracePeriod
from headrace.connectors.log.port import Log, LogUnavailable, TopicMissing
from headrace.connectors.periodic import LOG_JOIN_TIMEOUT_S, PeriodicTask
from headrace.consumers.membership.cluster_topics import ClusterTopics
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.node.data_directory import Identity
from headrace.consumers.node.readiness import Readiness
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_registry import GroupNotHere, forget_gone
from headrace.consumers.replication.group_state import lost_log_choices
from headrace.consumers.replication.log_consumer import LogConsumer
from headrace.schemas.errors import HeadraceError

INTERVAL_S = 1.0
COMMIT_TURNS = 5
HELD_BACK_TURNS = 15
TOPIC_TURNS = 60
FENCED_TOPIC_TURNS = 5
RETRY_S = 1.0
SCHEMA_WAIT_S = 0.2
_log = structlog.get_logger(__name__)


class LogMonitor:
    """Two threads, one follows the schema log.

    `turn` and `schema_turn` are one step of each. `may_be_gone(topic)`: whether a missing topic is no loss, since its
    group has ended.
    """

    def __init__(
        self,
        log: Log,
        schema_log: SchemaLog,
        groups: Mapping[str, Group],
        identity: Identity,
        log_consumer: LogConsumer,
        readiness: Readiness,
        cluster_topics: ClusterTopics,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._log = log
        self._schema_log = schema_log
        self._groups = groups
        self._identity = identity
        self._log_consumer = log_consumer
        self._positions = readiness.positions
        self._readiness = readiness
        self._absence = GracePeriod(clock.monotonic_s)
        self._cluster_topics = cluster_topics
        self.may_be_gone: Callable[[str], bool] = lambda _topic: False
        self._schema_fault = ""
        self._held_back_end: dict[str, int] = {}
        self._turns = 0
        # A thread of its own: groups wait for the schema that a record names, and must not wait for slow
        # answers about ends.
        self._schema_task = PeriodicTask("schema-log", 0.0, self._follow_schemas, LOG_JOIN_TIMEOUT_S)
        self._end_task = PeriodicTask("log-monitor", INTERVAL_S, self.turn, LOG_JOIN_TIMEOUT_S)

    def start(self) -> None:
        """Begin."""
        self._schema_task.start()
        self._end_task.start()

    def request_stop(self) -> None:
        """Begin to stop, see `PeriodicTask.request_stop`."""
        self._schema_task.request_stop()
        self._end_task.request_stop()

    def stop(self) -> None:
        """Stop, and commit the offsets a last time, unless the log does not answer."""
        self._schema_task.stop()
        self._end_task.stop()
        # A turn that still runs waits for the log, and so would the commit.
        if not self._end_task.alive:
            self._commit()

    def warnings(self) -> list[str]:
        """What is wrong with the cluster's topics and does not keep its groups from serving."""
        return [*([f"table log: {self._schema_fault}"] if self._schema_fault else []), *self._cluster_topics.warnings]

    def _follow_schemas(self) -> None:
        if pause_s := self.schema_turn():
            self._schema_task.stopping.wait(pause_s)

    def schema_turn(self) -> float:
        """Follow the schema log for at most `SCHEMA_WAIT_S`; returns the seconds to wait before the next turn."""
        try:
            self._schema_log.follow(SCHEMA_WAIT_S)
            self._schema_fault = ""
        except HeadraceError as error:
            # Once: a record of a later build, or a Kafka that is away, may last for days.
            if str(error) != self._schema_fault:
                _log.warning("table log not readable", error=str(error))
            self._schema_fault = str(error)
            return RETRY_S
        return 0.0

    def turn(self) -> None:
        """Check the end and the identity of every log."""
        self._turns += 1
        forget_gone(self._held_back_end, self._groups)
        for topic, group in self._groups.items():
            if self._end_task.stopping.is_set():
                return
            # An answer that fails leaves `log_answers` to grow old, which the role decision sees.
            with suppress(HeadraceError):
                self._check_log(topic, group)
        if self._turns % COMMIT_TURNS == 0:
            self._commit()
        self._check_schema_log()
        # A node that is fenced may have lost the topic of statuses.
        if self._turns % (FENCED_TOPIC_TURNS if self._readiness.fenced else TOPIC_TURNS) == 0:
            with suppress(HeadraceError):
                self._cluster_topics.check()

    def _check_schema_log(self) -> None:
        with suppress(HeadraceError):
            self._schema_log.verify()
        self._readiness.note_lost_tables(self._schema_log.lost)

    def _check_log(self, topic: str, group: Group) -> None:
        asked, end_asked = self._positions.data_age.ask(topic), self._positions.ask(topic)
        try:
            state = self._log.describe(topic)
        except TopicMissing as error:
            # A lost log stops its group for good, and a broker that has just started knows no topic for a
            # moment.
            if self._absence.missing(topic) and not self.may_be_gone(topic):
                # Without its action: the name of the cluster was right when the topic was there.
                choices = lost_log_choices(group.name)
                group.mark_log_lost(f"{error.message}; {choices}, once a node that started again has made the topic")
            return
        except LogUnavailable:
            self._absence.unknown(topic)
            raise
        self._absence.present(topic)
        self._positions.note_end(topic, state.end, end_asked)
        if state.topic_id != self._identity.topics.get(topic, state.topic_id):
            group.mark_log_lost(f"topic {topic} was recreated under this node; {lost_log_choices(group.name)}")
        else:
            self._positions.data_age.note(topic, asked, state.end)
        if group.follows and state.end < self._log_consumer.needed_end(topic):
            # A client of librdkafka behind the end of a log that was cut may wait there without an error, and the
            # others would wait for this member to notice. Whether the log is lost is decided where it is opened.
            self._log_consumer.rejoin(topic, None)
        if self._turns % HELD_BACK_TURNS == 0:
            self._check_open_transactions(topic, state.end)

    def _check_open_transactions(self, topic: str, end: int) -> None:
        """Note how many offsets an open transaction holds back."""
        # Readers get no error for them: the log just seems to end. A transaction that is running is normal,
        # so it is shown only when the readable end is the same at two checks.
        held_back = max(0, self._log.written_end(topic) - end)
        lasts = held_back > 0 and self._held_back_end.get(topic) == end
        self._held_back_end[topic] = end
        self._positions.note_held_back(topic, held_back if lasts else 0)

    def _commit(self) -> None:
        # For lag tools only: the node itself continues where its journal ends.
        if self._groups and self._positions.log_answers:
            offsets = dict[str, int]()
            for topic in self._groups:
                with suppress(GroupNotHere):
                    offsets[topic] = self._log_consumer.durable_offset(topic) + 1
            self._log.commit(self._log_consumer.name, offsets)
