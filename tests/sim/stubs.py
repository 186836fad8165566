"""What the one group of a simulated node needs of its cluster: topics, members and one table, all known from the start."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.connectors.log.topics import Topics
from headrace.schemas.messages import TableVersion
from headrace.schemas.tables import DatabaseSchema, RecordName, TableSchema
from tests.sim import rows

TOPICS = Topics("c")
GROUP = "n1"
TOPIC = TOPICS.forward(GROUP)


class SimSlotTable:
    """One group of all nodes. See SlotTable."""

    slots = 1
    version = 1
    slot_headers = (0,)
    headers = (GROUP,)

    def __init__(self, members: tuple[str, ...]) -> None:
        self.members = members
        self.nodes = members
        self.replication = len(members)

    def group(self, _header: str) -> tuple[str, ...]:
        """See SlotTable."""
        return self.members

    def birth(self, _header: str) -> int:
        """See SlotTable."""
        return 1

    def groups_of(self, _node: str) -> tuple[str, ...]:
        """See SlotTable."""
        return self.headers


class SimSchemas:
    """The one table of the simulation, known from the beginning. See SchemaLog."""

    lost = ""

    def __init__(self, retention_ns: int | None = None) -> None:
        self._retention_ns = retention_ns

    def wait_for(self, database: str, table: str, version: int, timeout_s: float) -> TableSchema | None:
        """See SchemaLog."""
        del timeout_s
        return rows.TABLE if (database, table, version) == ("db", "t", 1) else None

    def database(self, database: str) -> DatabaseSchema | None:
        """See SchemaLog."""
        return rows.DATABASE if database == rows.DATABASE.database else None

    def retention_ns(self, database: str, table: str) -> int | None:
        """See SchemaLog."""
        del database, table
        return self._retention_ns

    def accepts(self, record: RecordName, tables: Sequence[TableVersion], timeout_s: float) -> bool:
        """See SchemaLog; every record of the simulation names the one table."""
        del record, timeout_s
        return all(self.wait_for(each.database, each.table, each.schema_version, 0.0) for each in tables)

    def follow(self, timeout_s: float) -> None:
        """See SchemaLog."""

    def verify(self) -> int:
        """See SchemaLog."""
        return 1
