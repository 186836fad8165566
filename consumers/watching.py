"""Watches the logs of a node beside the thread that reads them: where they end, whether they are still the same topics, what holds them back, and
which tables there are. Publishes progress for lag tools.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

import structlog

from connectors.log.port import Log, TopicMissing
from consumers.membership.tables import TableLog
from consumers.replication.absence import Absence
from consumers.replication.gap import choices
from consumers.replication.group import Group
from consumers.replication.turns import Turns
from consumers.standing import Standing
from schemas.errors import HeadraceError

INTERVAL_S = 1.0
COMMIT_TURNS = 5
HELD_BACK_TURNS = 15
RETRY_S = 1.0
TABLES_WAIT_S = 0.2
_log = structlog.get_logger(__name__)


class Watching:
    """The two threads of it. `consumer` is the name that lag tools show; `each_turn` is called once a second."""

    def __init__(
        self,
        log: Log,
        consumer: str,
        tables: TableLog,
        groups: Mapping[str, Group],
        topic_ids: Mapping[str, str],
        durable_offset: Callable[[str], int],
        standing: Standing,
        each_turn: Callable[[], None],
    ) -> None:
        self._log = log
        self._consumer = consumer
        self._tables = tables
        self._groups = groups
        self._topic_ids = topic_ids
        self._durable_offset = durable_offset
        self._standing = standing
        self._each_turn = each_turn
        self._absence = Absence()
        self._held_back_end: dict[str, int] = {}
        self._turn = 0
        self._following = Turns("tables", 0.0, self._follow_tables)
        self._looking = Turns("ends", INTERVAL_S, self._look_at_ends)

    def start(self) -> None:
        """Begin."""
        self._following.start()
        self._looking.start()

    def stop(self) -> None:
        """Stop, and publish progress a last time."""
        self._following.stop()
        self._looking.stop()
        self._commit()

    def _follow_tables(self) -> None:
        try:
            self._tables.follow(TABLES_WAIT_S)
        except HeadraceError as error:
            _log.warning("table log not readable", error=str(error))
            self._following.stopping.wait(RETRY_S)

    def _look_at_ends(self) -> None:
        self._turn += 1
        for topic, group in self._groups.items():
            with suppress(HeadraceError):
                self._look(topic, group)
        self._each_turn()
        if self._turn % COMMIT_TURNS == 0:
            self._commit()

    def _look(self, topic: str, group: Group) -> None:
        try:
            state = self._log.describe(topic)
        except TopicMissing as error:
            if self._absence.missing(topic):
                group.lose(f"{error}; {choices(group.name)}, once there is such a topic again")
            return
        self._absence.present(topic)
        self._standing.note_end(topic, state.end)
        if state.topic_id != self._topic_ids[topic]:
            group.lose(f"topic {topic} was made again under this node; {choices(group.name)}")
        if self._turn % HELD_BACK_TURNS == 0:
            self._look_for_open_transactions(topic, state.end)

    def _look_for_open_transactions(self, topic: str, end: int) -> None:
        """What stands behind an open transaction is read by nobody, and no error says so: look again and again, and tell once it lasts."""
        held_back = max(0, self._log.written_end(topic) - end)
        lasts = held_back > 0 and self._held_back_end.get(topic) == end
        self._held_back_end[topic] = end
        self._standing.note_held_back(topic, held_back if lasts else 0)

    def _commit(self) -> None:
        if self._standing.log_answers:
            self._log.commit(self._consumer, {topic: self._durable_offset(topic) + 1 for topic in self._groups})
