"""A cluster in one process: nodes that each have the stores of some groups, and answer queries of all of them.

Sources, engines, scanners, fences, stores and the bytes between nodes are those of a node. The groups' logs and the
statuses of members are stand-ins.
"""

from __future__ import annotations

import io
import json
import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import pyarrow as pa

from headrace.consumers.query.cluster_source import ClusterSource
from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.group_scanner import GroupScanner
from headrace.consumers.query.local_source import LocalSource
from headrace.consumers.query.remote_rows import RemoteRows
from headrace.consumers.query.scan_request import RemoteScanRequest
from headrace.consumers.query.scan_stream import ScanEncoder, read_scan
from headrace.consumers.query.settings import QuerySettings
from headrace.consumers.query.table_source import ReadTimer
from headrace.consumers.replication.applied_state import AppliedState
from headrace.consumers.replication.change_view import ChangeView
from headrace.consumers.replication.group_health import GroupHealth
from headrace.consumers.store import Store, StoreSettings
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.records import Role, Status
from headrace.schemas.tables import Catalogue, DatabaseChange, TableChange, TableSchema
from tests.unit.statuses import STATUS
from tests.unit.store.builders import Row, seal, write

REPLICAS = 3
LIMIT_BYTES = 100_000_000
SETTINGS = StoreSettings(row_group_rows=64, compaction_files_min=2, compaction_rows_max=1_000)


class StoredGroup:
    """A group at one node over a real store. See Group."""

    def __init__(self, name: str, store: Store) -> None:
        self.name = self.key = name
        self.birth_key = GroupKey(name, 1)
        self.health = GroupHealth(threading.Condition())
        self.applied = AppliedState(offset=0, changes=ChangeView(settled=1, slots_total=12))
        self.decided = self.applied.changes
        self.store = store

    def wait_for(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """See Group."""
        return condition()


class NoEndedGroups:
    """See GroupTopics: every group is one of the slot table."""

    def is_deleted(self, key: GroupKey) -> bool:
        """See GroupTopics."""
        raise AssertionError(key)

    def newest_offset(self, key: GroupKey) -> int:
        """See GroupTopics."""
        raise AssertionError(key)


class Serving:
    """A node that serves. See ServingState."""

    fencings = 0

    def refusals(self) -> list[str]:
        return []

    def refusal(self, topic: str) -> str:
        return ""

    def durable_offset(self, topic: str) -> int:
        return -1

    def confirmed_offset(self, topic: str) -> int:
        return -1

    def objections(self) -> list[str]:
        return []

    def as_of(self) -> None:
        return None


class Schemas:
    """Schemas that are always read. See SchemaSource."""

    def wait_for(self, *_: object) -> object:
        return object()


@dataclass
class Ring:
    """Groups and their members: group i is at nodes i, i + 1 and i + 2. See Placement and Members."""

    nodes: int
    version: int = 1

    @property
    def headers(self) -> tuple[str, ...]:
        return tuple(f"n{number}" for number in range(self.nodes))

    def group(self, header: str) -> tuple[str, ...]:
        first = int(header[1:])
        return tuple(f"n{(first + step) % self.nodes}" for step in range(min(REPLICAS, self.nodes)))

    def birth(self, header: str) -> int:
        return 1

    def live(self, group: str, members: Iterable[str]) -> list[Status]:
        return [_status(name) for name in members]

    def holders(self, group: str) -> list[Status]:
        return []


def _status(node: str) -> Status:
    return replace(STATUS, node=node, http=node, eligible=True, role=Role.FOLLOWER, durable_offset=0, reason="")


@dataclass
class StoredCluster:
    """Nodes by name. `exchanged` has the requests between them and the answers.

    `cuts` are the nodes whose connections end behind so many batches of an answer, and `cut` counts those.
    """

    ring: Ring
    schema: TableSchema
    directory: Path
    engines: dict[str, QueryEngine] = field(default_factory=dict)
    scanners: dict[str, GroupScanner] = field(default_factory=dict)
    stores: dict[str, list[Store]] = field(default_factory=dict)
    exchanged: list[tuple[RemoteScanRequest, pa.Table]] = field(default_factory=list)
    remotes: dict[str, RemoteRows] = field(default_factory=dict)
    cuts: dict[str, int] = field(default_factory=dict)
    cut: int = 0
    versions: dict[str, int] = field(default_factory=dict)

    def group_of(self, tags: Mapping[str, str]) -> str:
        """The group of a series."""
        return random.Random(repr(sorted(tags.items()))).choice(self.ring.headers)

    def write(self, rows: Iterable[Row]) -> None:
        """One message a group, with the rows of its series."""
        by_group: dict[str, list[Row]] = {}
        for row in rows:
            by_group.setdefault(self.group_of(row[0]), []).append(row)
        for group, found in by_group.items():
            version = self._next(group)
            for store in self.stores[group]:
                write(store, version, found, self.schema)

    def delete(self, tags: Mapping[str, tuple[str, ...]], start_ns: int | None, end_ns: int | None) -> None:
        """A delete, at every group."""
        for group, stores in self.stores.items():
            version = self._next(group)
            for store in stores:
                store.delete(version, 1, self.schema.database, self.schema.table, tags, start_ns, end_ns)

    def seal(self, *groups: str) -> None:
        """Seal some groups at all of their members."""
        for group in groups or tuple(self.stores):
            version = self._next(group)
            for store in self.stores[group]:
                seal(store, version)

    def compact(self) -> None:
        """The merges of every group, at all of its members."""
        for group, stores in self.stores.items():
            for plan in stores[0].plan_compaction():
                version = self._next(group)
                for store in stores:
                    store.compact(version, plan.inputs).run()

    def ask(self, node: str, sql: str, **given: Any) -> pa.Table:
        """The answer of one node."""
        with self.engines[node].query(sql, **given) as result:
            return result.read_all()

    def bytes_held(self, node: str) -> int:
        """What a node holds of rows of others."""
        return self.remotes[node].statistics.bytes_held

    def _next(self, group: str) -> int:
        self.versions[group] = self.versions.get(group, 0) + 1
        return self.versions[group]

    def fetch(
        self,
        url: str,
        request: RemoteScanRequest,
        schema: pa.Schema,
        timer: ReadTimer,
        reserve: Callable[[int], None],
    ) -> pa.Table:
        """What `fetch_rows` does, without HTTP: the same documents and the same bytes."""
        scan = self.scanners[url].open(RemoteScanRequest.parse(json.loads(json.dumps(request.document()))))
        encoder = ScanEncoder(scan.schema)
        try:
            pieces = [encoder.rows(batch) for batch in iter(scan.next, None)]
            pieces.append(encoder.end(scan.hand_overs.document(), scan.figures()))
        finally:
            scan.close()
        if url in self.cuts:
            pieces, self.cut = pieces[: self.cuts[url]], self.cut + 1
        answer = read_scan(io.BytesIO(b"".join(pieces)), schema, reserve)
        self.exchanged.append((request, answer))
        return answer


@contextmanager
def cluster_of_stores(
    directory: Path, schema: TableSchema, nodes: int = 5, settings: StoreSettings = SETTINGS
) -> Iterator[StoredCluster]:
    """A cluster with one table and no rows."""
    known = Catalogue()
    known.apply(DatabaseChange(schema.database))
    known.apply(TableChange(schema.database, schema.table, 0, schema.tags, schema.fields))
    ring = Ring(nodes)
    cluster = StoredCluster(ring, schema, directory)
    with ExitStack() as opened:
        groups: dict[str, dict[str, StoredGroup]] = {name: {} for name in ring.headers}
        for group in ring.headers:
            for node in ring.group(group):
                store = Store.open(directory / node, group, settings)
                opened.callback(store.close)
                cluster.stores.setdefault(group, []).append(store)
                groups[node][f"c.forward.{group}.1"] = StoredGroup(group, store)
        for node in ring.headers:
            local = LocalSource(cast(Any, groups[node]), known, Serving())
            remote = RemoteRows(node, ring, ring, LIMIT_BYTES, cluster.fetch)
            cluster.remotes[node] = remote
            source = ClusterSource(local, remote, NoEndedGroups())
            opened.callback(source.close)
            engine = QueryEngine(source, [directory / node], QuerySettings(timeout_ms=240_000))
            opened.callback(engine.close)
            cluster.engines[node] = engine
            cluster.scanners[node] = GroupScanner(node, local, cast(Any, Schemas()), engine)
        yield cluster
