"""A Python worker's access to the cluster: slot table, table schemas and the clients behind them, opened in
the process that uses them.

Spark reuses a worker process for many tasks, so an access is opened by the first task and kept until one fails.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass

from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.port import Log, TopicMissing
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import read_membership
from headrace.consumers.membership.changes import MembershipState
from headrace.consumers.membership.routing import route_of
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.membership.slot_table import SlotTable
from headrace.pipeline.job import IngestJob
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.tables import DatabaseSchema, FieldType

# Tasks follow each other within a fraction of a second; reading the log for each would dominate.
TABLES_AGE_S_MAX = 1.0

_accesses: dict[tuple[str, str, tuple[tuple[str, str], ...]], ClusterAccess] = {}


@dataclass(frozen=True, slots=True)
class DeclaredColumns:
    """Field types and tags of the tables of a database, by table."""

    fields: dict[str, dict[str, FieldType]]
    tags: dict[str, tuple[str, ...]]


class ClusterAccess:
    """Slot table and table schemas of one cluster. Used by one task at a time."""

    def __init__(self, log: Log, topics: Topics) -> None:
        self._log = log
        self._topics = topics
        self._slot_table: SlotTable | None = None
        self._membership: tuple[str, int, MembershipState] | None = None
        self._tables_read_s = 0.0
        self.tables = SchemaLog(log, topics)

    def close(self) -> None:
        """Close the clients. Errors are not of interest: it is given up."""
        with contextlib.suppress(HeadraceError), contextlib.ExitStack() as stack:
            stack.callback(self._log.close)
            stack.callback(self.tables.close)

    def begin_task(self, slot_table: SlotTable | None = None) -> None:
        """Take the slot table of the task's micro-batch, or the newest; read what may have changed otherwise."""
        now_s = time.monotonic()
        self._slot_table = slot_table or self.newest_table()
        if now_s - self._tables_read_s > TABLES_AGE_S_MAX:
            self.tables.refresh()
            self._tables_read_s = now_s

    def newest_table(self) -> SlotTable:
        """The table by which rows are routed now. Raises NoCluster, FormatTooNew, LogUnavailable."""
        topic = self._log.describe(self._topics.membership)
        if self._membership is None or self._membership[:2] != (topic.topic_id, topic.end):
            _, state = read_membership(self._log, self._topics)
            self._membership = topic.topic_id, topic.end, state
        table = route_of(self._membership[2], self._has_topic).table
        assert isinstance(table, SlotTable), table
        return table

    def _has_topic(self, group: GroupKey) -> bool:
        try:
            self._log.describe(self._topics.forward(group.group, group.birth))
        except TopicMissing:
            return False
        return True

    @property
    def slot_table(self) -> SlotTable:
        """The slot table as of the begin of the task."""
        assert self._slot_table is not None, "no task has begun"
        return self._slot_table

    def topic_id(self, topic: str) -> str:
        """The present id of a topic. Raises TopicMissing, LogUnavailable."""
        return self._log.describe(topic).topic_id

    def database(self, name: str) -> DatabaseSchema:
        """The schema of a database, which is created if it is missing."""
        return self.tables.ensure_database(name)

    def forward_topic(self, group: str) -> str:
        """The forward topic of a data group."""
        return self._topics.forward(group, self.slot_table.birth(group))

    def declared_columns(self, database: str) -> DeclaredColumns:
        """The columns of the newest versions of all tables of a database."""
        tables = self.tables.catalogue.tables.items()
        newest = {table: versions[-1] for (owner, table), versions in tables if owner == database}
        return DeclaredColumns(
            {table: schema.field_types() for table, schema in newest.items()},
            {table: schema.tags for table, schema in newest.items()},
        )


@contextlib.contextmanager
def task_access(job: IngestJob) -> Iterator[ClusterAccess]:
    """This process's access to the job's cluster, for one task of a worker."""
    try:
        yield cluster_access(job)
    except BaseException:
        # The next task has another one: of a cluster that was made again since, under the same name, this one finds its
        # table log lost for good.
        if (access := _accesses.pop(_key_of(job), None)) is not None:
            access.close()
        raise


def _key_of(job: IngestJob) -> tuple[str, str, tuple[tuple[str, str], ...]]:
    return job.bootstrap, job.cluster, job.settings


def cluster_access(job: IngestJob) -> ClusterAccess:
    """This process's access to the job's cluster."""
    key = _key_of(job)
    if key not in _accesses:
        # Not created at import: Spark forks its workers from a process that may have imported this module.
        _accesses[key] = ClusterAccess(KafkaLog(job.bootstrap, dict(job.settings)), Topics(job.cluster))
    return _accesses[key]
