"""A model of an edge store: rows and deletes in one log, files, merges, progress. See SourceStore."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random

import xxhash

from headrace.connectors.http import NodeUnreachable
from headrace.consumers.sync.listing import ListedFile, Listing, file_order
from headrace.consumers.sync.send_settings import CHUNK_BYTES
from headrace.consumers.sync.sender_ports import FileDamaged, SnapshotLost, StoreDescription, StoreGroup
from headrace.schemas.messages import CarriedDelete
from headrace.schemas.sync_records import SyncDelete, SyncFile

GROUP, IDENTITY, STORE = "e1", "e1/1", "store"
SERIES = ("a", "b", "c")
Key = tuple[str, int]


@dataclass(frozen=True)
class Row:
    """One row with its rank."""

    series: str
    time: int
    value: int
    version: int


@dataclass(frozen=True)
class ModelDelete:
    """A delete of one series between two times."""

    version: int
    series: str
    start: int
    end: int

    def matches(self, row: Row) -> bool:
        """Whether it deletes a row that it outranks."""
        return row.series == self.series and self.start <= row.time < self.end


@dataclass(frozen=True)
class ModelFile:
    """A sealed file; `cleaned`: deletes up to it are applied."""

    first: int
    last: int
    rows: tuple[Row, ...]
    cleaned: int

    @property
    def name(self) -> str:
        """As the store names it."""
        return f"{IDENTITY}/d/t/0-0/000001-{self.first:015}-{self.last:015}.parquet"

    @property
    def data(self) -> bytes:
        """Its bytes: large enough for some chunks."""
        text = json.dumps([(each.series, each.time, each.value) for each in self.rows]).encode()
        return text.ljust(CHUNK_BYTES * (1 + self.last % 3), b" ")


@dataclass
class ModelEdge:
    """The store. Faults come from `random`."""

    random: Random
    faults: bool = True
    series: tuple[str, ...] = SERIES
    delete_share: float = 0.15
    version: int = 0
    frontier: int = 0
    progress: int = 0
    unsealed: list[Row] = field(default_factory=list)
    files: list[ModelFile] = field(default_factory=list)
    deletes: list[ModelDelete] = field(default_factory=list)
    expected: dict[Key, int] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    snapshots: int = 0
    lost_below: int = 0
    listed_max: int = 0
    """Files of one listing, 0 for some."""

    # What users and the leader do.

    def write(self) -> None:
        """One row, or one delete."""
        self.version += 1
        series = self.random.choice(self.series)
        if self.random.random() < self.delete_share:
            start = self.random.randrange(12)
            made = ModelDelete(self.version, series, start, start + self.random.randrange(1, 6))
            self.deletes.append(made)
            gone = [key for key in self.expected if key[0] == series and made.start <= key[1] < made.end]
            for key in gone:
                del self.expected[key]
            return
        row = Row(series, self.random.randrange(12), self.random.randrange(1_000), self.version)
        self.unsealed.append(row)
        self.expected[series, row.time] = row.value

    def seal_now(self) -> None:
        """All rows become a file."""
        self.version += 1
        left = [each for each in self.unsealed if not any(self._outranks(d, each) for d in self.deletes)]
        newest = {(each.series, each.time): each for each in left}
        if newest:
            rows = tuple(sorted(newest.values(), key=lambda each: (each.series, each.time)))
            self.files.append(ModelFile(self.frontier + 1, self.version, rows, self.version))
        self.unsealed, self.frontier = [], self.version
        self.deletes = [each for each in self.deletes if each.version > self.progress or self._is_needed(each)]

    def merge(self) -> None:
        """The leader merges the first decided files."""
        found = [each for each in self.files if each.last <= self.progress][:2]
        if len(found) < 2:
            return
        self.version += 1
        rows: dict[Key, Row] = {}
        for each in found:
            rows |= {(row.series, row.time): row for row in self._left(each)}
        self.files = [each for each in self.files if each not in found]
        merged = ModelFile(found[0].first, found[-1].last, tuple(rows.values()), self.version)
        self.files = sorted([merged, *self.files], key=lambda each: each.first)

    def restart(self) -> None:
        """The node restarts: its snapshots are gone."""
        self.lost_below = self.snapshots

    @staticmethod
    def _outranks(delete: ModelDelete, row: Row) -> bool:
        return delete.version > row.version and delete.matches(row)

    def _unapplied(self, file: ModelFile) -> list[ModelDelete]:
        return [each for each in self.deletes if file.cleaned < each.version and each.version > file.last]

    def _is_needed(self, delete: ModelDelete) -> bool:
        return any(delete in self._unapplied(each) for each in self.files)

    def _left(self, file: ModelFile) -> list[Row]:
        deletes = self._unapplied(file)
        return [each for each in file.rows if not any(delete.matches(each) for delete in deletes)]

    # See SourceStore.

    def _fault(self) -> None:
        if self.faults and self.random.random() < 0.03:
            raise NodeUnreachable("no answer")

    def describe(self) -> StoreDescription:
        """See SourceStore."""
        self._fault()
        return StoreDescription(STORE, "edge", 3, (StoreGroup(GROUP, {"n1": self.progress}),))

    def seal(self, _age_s: float) -> None:
        """See SourceStore."""
        self._fault()
        if self.version > self.frontier:
            self.seal_now()

    def list(self, group: str, above: int) -> Listing:
        """See SourceStore."""
        assert group == GROUP
        self._fault()
        self.snapshots += 1
        after = max(self.progress, above)
        found = [each for each in self.files if each.last > after]
        most = self.listed_max or self.random.choice((1, 3, 100))
        listed = found[:most]
        through = self.frontier if len(listed) == len(found) else listed[-1].last
        deletes = tuple(
            SyncDelete(1, each.version, "d", "t", {"s": (each.series,)}, each.start, each.end)
            for each in self.deletes
            if after < each.version <= self.frontier
        )
        files = tuple(self._listed(each) for each in listed)
        return Listing(
            str(self.snapshots), "", GROUP, IDENTITY, after, through, files, deletes, len(found) - len(listed)
        )

    def _listed(self, file: ModelFile) -> ListedFile:
        data = file.data
        carried = tuple(
            CarriedDelete(1, each.version, (("s", (each.series,)),), each.start, each.end)
            for each in self._unapplied(file)
            if each.version <= self.frontier
        )
        digest_of = xxhash.xxh3_128_digest
        digest = digest_of(data + repr(file.rows).encode())
        body = SyncFile(
            *(file.name, (STORE,), "d", "t", 86_400, 1, 0, 0, 1, file.first, file.last, 0),
            *(file_order(1, file.first), len(file.rows), 0, 1, ("s",), (("v", "int64"),), "us", digest),
            *(len(data) - 1, digest_of(data[:-1]), b"", 1, digest_of(data[-1:]), 0, 0, carried),
        )
        return ListedFile(body, file.last, data.decode(), "", settles=True)

    def check(self, listing: Listing, file: ListedFile, _md5: bool) -> bytes:
        """See SourceStore."""
        self._look(listing, file)
        return b""

    def read(self, listing: Listing, file: ListedFile, offset: int, size_bytes: int) -> bytes:
        """See SourceStore."""
        self._look(listing, file)
        return file.segment.encode()[offset : offset + size_bytes]

    def _look(self, listing: Listing, file: ListedFile) -> None:
        if int(listing.id) <= self.lost_below:
            raise SnapshotLost("the node has restarted")
        if file.body.file in self.damaged:
            raise FileDamaged(f"{file.body.file} is damaged")

    def close_file(self, file: ListedFile) -> None:
        """See SourceStore."""

    def touch(self) -> None:
        """See SourceStore."""

    def release(self) -> None:
        """See SourceStore."""

    def set_progress(self, progress: Mapping[str, int], lower: bool) -> None:
        """See SourceStore."""
        self._fault()
        version = progress[GROUP]
        self.progress = version if lower else max(self.progress, version)
