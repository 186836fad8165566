"""Compares a store with a centre that it sends to, by SQL at a node of each: see `consumers.sync.comparison`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import astuple, dataclass
from datetime import date
from typing import Any

import pyarrow as pa

from headrace.connectors.http import NodeRefused, NodeUnreachable
from headrace.connectors.log.port import Log, TopicMissing
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.slot_table import SlotTable
from headrace.consumers.sync.comparison import (
    DAY_COLUMN,
    ComparedTable,
    DayVerdict,
    OwnedDevices,
    compare_day,
    days_sql,
    kept_days,
    keyed,
    owned_rows,
    series_sql,
)
from headrace.consumers.sync.owner_log import read_owners
from headrace.consumers.sync.owners import OwnersInMemory
from headrace.consumers.sync.source_store import CentreNotHere, DatabaseNotHere
from headrace.consumers.sync.topics import NotACentre, cluster_identity
from headrace.node_client import NodeClient
from headrace.schemas.table_documents import table_schema
from headrace.schemas.tables import TableSchema

_VERSION_SQL = "SELECT version() AS version"


@dataclass(frozen=True, slots=True)
class Unsent:
    """What a centre has not decided about: sealed files, rows that are in no file, and deletes of users."""

    files: int = 0
    unsealed_rows: int = 0
    deletes: int = 0

    def __bool__(self) -> bool:
        return bool(self.files or self.unsealed_rows or self.deletes)

    def highest(self, other: Unsent) -> Unsent:
        """Of each figure the higher one."""
        return Unsent(*map(max, astuple(self), astuple(other)))


@dataclass(frozen=True, slots=True)
class WantedDays:
    """What is compared: some databases, all if there are none, and the days from one on."""

    databases: Collection[str] = ()
    since: date | None = None


@dataclass(frozen=True, slots=True)
class SyncComparison:
    """`days_skipped` are behind the retention of one end, where either may have dropped rows."""

    sender: str
    days: tuple[DayVerdict, ...]
    days_skipped: int
    unsent: Unsent


class EdgeNode:
    """A store, through one of its nodes, as `headrace sync verify` sees it."""

    def __init__(self, url: str, centre: str, cluster: str) -> None:
        """`centre` is the identity of a cluster of that name."""
        self.client = NodeClient(url)
        self._centre, self._cluster = centre, cluster

    def sender(self) -> str:
        """Its sender to the centre. Raises CentreNotHere, NodeUnreachable, NodeRefused."""
        return str(self._registered(self.client)["sender"])

    def unsent(self) -> Unsent:
        """At the member that has most of it. Raises as `sender`."""
        found = self._unsent(self.client)
        for url in self.client.sync_centres()["members"].values():
            # A member that is away has nothing that the others do not have.
            with suppress(NodeUnreachable, NodeRefused, CentreNotHere):
                found = found.highest(self._unsent(NodeClient(url)))
        return found

    def _unsent(self, client: NodeClient) -> Unsent:
        each = self._registered(client)
        return Unsent(each["files"], each["unsealed_rows"], each["deletes"])

    def _registered(self, client: NodeClient) -> Mapping[str, Any]:
        centres = client.sync_centres()["centres"]
        for each in centres:
            if each["centre"] == self._centre:
                return dict(each)
        if any(each["cluster"] == self._cluster for each in centres):
            raise CentreNotHere(
                f"the store at {client.url} sends to a cluster {self._cluster} that is not this one",
                action="was the centre made again? see docs/operating/sync.md",
            )
        names = ", ".join(sorted({str(each["cluster"]) for each in centres})) or "none"
        raise CentreNotHere(
            f"the store at {client.url} sends to no centre {self._cluster}",
            action=f"it sends to {names}; headrace sync send begins with one",
        )


class CentreNode:
    """A centre: its owners by its log, and its rows through one of its nodes."""

    def __init__(self, log: Log, topics: Topics, slot_table: SlotTable, url: str) -> None:
        """`url` is that of a node that is ready."""
        self.client = NodeClient(url)
        self._log, self._topics, self._slot_table = log, topics, slot_table

    def identity(self) -> str:
        """What senders know it by."""
        return cluster_identity(self._log, self._topics)

    def owners(self) -> OwnersInMemory:
        """Whose devices are whose. Raises NotACentre, LogUnavailable."""
        try:
            return read_owners(self._log, self._topics)
        except TopicMissing as error:
            raise NotACentre.of(self._topics.cluster) from error

    def newest(self) -> dict[str, int]:
        """The newest offset of each group's log: an answer that contains it contains all that was accepted."""
        topics = [self._topics.forward(each, self._slot_table.birth(each)) for each in self._slot_table.headers]
        return {topic: end - 1 for topic in topics if (end := self._log.describe(topic).end) > 0}


def compare_store(
    edge: EdgeNode, centre: CentreNode, wanted: WantedDays, now_s: float, note: Callable[[str], None]
) -> SyncComparison:
    """Compare every wanted day of every table of a store.

    Raises DatabaseNotHere, CentreNotHere, NotACentre, NodeUnreachable, NodeRefused, LogUnavailable, and a QueryError of
    a node.
    """
    sender, before = edge.sender(), edge.unsent()
    owners, comparison = centre.owners(), _Comparison(edge.client, centre.client, centre.newest())
    there = {(each.database, each.table): each for each in comparison.tables_there()}
    days: list[DayVerdict] = []
    skipped = 0
    here = comparison.tables_here()
    if missing := sorted(set(wanted.databases) - {each.database for each in here}):
        raise DatabaseNotHere.missing(edge.client.url, missing[0], (each.database for each in here))
    for schema in here:
        if wanted.databases and schema.database not in wanted.databases:
            continue
        note(f"comparing {schema.database}.{schema.table}")
        table = ComparedTable(schema, there.get((schema.database, schema.table)))
        mine = {device: owner for (database, device), owner in owners.devices.items() if database == schema.database}
        devices = OwnedDevices.of(mine, schema.table, sender)
        found, left_out = comparison.days(table, devices, now_s)
        skipped += left_out
        days += [comparison.day(table, day, devices) for day in found if wanted.since is None or day >= wanted.since]
    # Rows that came meanwhile are at the edge alone.
    return SyncComparison(sender, tuple(days), skipped, before.highest(edge.unsent()))


class _Comparison:
    def __init__(self, edge: NodeClient, centre: NodeClient, after: Mapping[str, int]) -> None:
        self._edge, self._centre, self._after = edge, centre, after
        versions = [_answer(each, _VERSION_SQL, {})["version"][0].as_py() for each in (edge, centre)]
        # DuckDB promises no equal hashes in other versions; MD5 is slower, and the same everywhere.
        self._portable = versions[0] != versions[1]

    def tables_here(self) -> list[TableSchema]:
        """Those that the edge shows."""
        return _tables(self._edge, {})

    def tables_there(self) -> list[TableSchema]:
        """Those that the centre shows."""
        return _tables(self._centre, self._after)

    def days(self, table: ComparedTable, devices: OwnedDevices, now_s: float) -> tuple[list[date], int]:
        """The days with rows at one end, and the number of those that retention may have dropped."""
        found = set(_answer(self._edge, days_sql(table, None), {})[DAY_COLUMN].to_pylist())
        if table.centre is not None and len(devices.keys):
            found |= set(_answer(self._centre, days_sql(table, devices), self._after)[DAY_COLUMN].to_pylist())
        retentions = [each.retention_ns for each in (table.edge, table.centre) if each is not None]
        return kept_days(found, retentions, now_s)

    def day(self, table: ComparedTable, day: date, devices: OwnedDevices) -> DayVerdict:
        """Memory: one row for each series of the day."""
        sql = series_sql(table, table.edge, day, None, portable=self._portable)
        edge = keyed(table.edge, _answer(self._edge, sql, {}))
        centre = edge.slice(0, 0)
        if table.centre is not None and len(devices.keys):
            sql = series_sql(table, table.centre, day, devices, portable=self._portable)
            centre = owned_rows(keyed(table.centre, _answer(self._centre, sql, self._after)), devices)
        return compare_day(table.edge, day, edge, centre, devices)


def _tables(client: NodeClient, after: Mapping[str, int]) -> list[TableSchema]:
    # A dropped table may have rows again, which its schema does not show: a writer that knew it adds no record.
    shown = _answer(client, "SHOW TABLES", after)
    keys = {*zip(shown["database"].to_pylist(), shown["table"].to_pylist(), strict=True)}
    return [table_schema(each) for each in client.schemas()["tables"] if (each["database"], each["table"]) in keys]


def _answer(client: NodeClient, sql: str, after: Mapping[str, int]) -> pa.Table:
    data = b"".join(client.query(sql, format="arrow", after=after))
    with pa.ipc.open_stream(data) as reader:
        return reader.read_all()
