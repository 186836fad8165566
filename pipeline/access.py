"""A Python worker's own way to the cluster: Kafka clients, slot table and table schemas, made in the process that uses them.

Spark keeps a worker for many tasks, so what is opened here is kept for the life of the process. Never imported for its effects: nothing is
opened before the first task asks.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from connectors.log.kafka import KafkaLog
from connectors.log.port import Log
from connectors.log.topics import Topics
from consumers.membership.cluster import read_slot_table
from consumers.membership.slots import SlotTable
from consumers.membership.tables import TableLog
from pipeline.job import IngestJob
from schemas.tables import DatabaseSchema, FieldType

SLOT_TABLE_AGE_S = 30.0
TABLES_AGE_S = 1.0

_opened: dict[tuple[str, str, tuple[tuple[str, str], ...]], ClusterAccess] = {}


@dataclass(frozen=True, slots=True)
class Declared:
    """What the tables of a database are: field types and tags, by table."""

    fields: dict[str, dict[str, FieldType]]
    tags: dict[str, tuple[str, ...]]


class ClusterAccess:
    """Slot table and table schemas of one cluster. Used by one task at a time."""

    def __init__(self, log: Log, topics: Topics) -> None:
        self._log = log
        self._topics = topics
        self._slot_table: SlotTable | None = None
        self._slot_table_read_s = 0.0
        self._tables_read_s = 0.0
        self.tables = TableLog(log, topics)

    def begin_task(self) -> None:
        """Look again at what others may have changed since the last task."""
        now_s = time.monotonic()
        if self._slot_table is None or now_s - self._slot_table_read_s > SLOT_TABLE_AGE_S:
            self._slot_table = read_slot_table(self._log, self._topics)
            self._slot_table_read_s = now_s
        if now_s - self._tables_read_s > TABLES_AGE_S:
            self.tables.refresh()
            self._tables_read_s = now_s

    @property
    def slot_table(self) -> SlotTable:
        """The slot table as of the task's begin."""
        assert self._slot_table is not None, "a task has begun"
        return self._slot_table

    def database(self, name: str) -> DatabaseSchema:
        """The database, born now if it is new."""
        return self.tables.ensure_database(name)

    def forward_topic(self, group: str) -> str:
        """Topic of a data group."""
        return self._topics.forward(group)

    def declared(self, database: str) -> Declared:
        """The newest versions of all tables of a database."""
        tables = self.tables.catalogue.tables.items()
        newest = {table: versions[-1] for (owner, table), versions in tables if owner == database}
        return Declared(
            {table: schema.field_types() for table, schema in newest.items()},
            {table: schema.tags for table, schema in newest.items()},
        )


def cluster_access(job: IngestJob) -> ClusterAccess:
    """This process's access to the job's cluster."""
    key = (job.bootstrap, job.cluster, job.settings)
    if key not in _opened:
        _opened[key] = ClusterAccess(KafkaLog(job.bootstrap, dict(job.settings)), Topics(job.cluster))
    return _opened[key]
