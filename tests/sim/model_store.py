"""A small model behind the interface of `Store`: rows in dicts, jobs that commit in one step.

It keeps what the rest of a node relies on: the order of jobs, one batch for files and state, a disk that may be full,
merges that name their inputs, and files that rot.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import xxhash

from headrace.consumers.store import (
    Compaction,
    CompactJob,
    DropJob,
    JobSuperseded,
    MemtableSize,
    SealJob,
    SegmentEntry,
    StoreDamaged,
    StoreFull,
)
from tests.sim import rows
from tests.sim.disk import SealedRows, SimDisk
from tests.sim.truth import TruthRecord

MERGED = 3


class ModelStore:
    """The store of one group on a simulated disk. See Store."""

    def __init__(self, disk: SimDisk, group: str) -> None:
        self.disk = disk
        self.group = group
        self.segments_directory = Path("/sim") / group
        self.queue: deque[ModelSeal | ModelCompact | ModelDrop] = deque()
        self.content: dict[int, int] = {}
        for segment in disk.sealed.segments.values():
            self.content.update(segment)
        self.content_hash = 0
        for number, version in self.content.items():
            self.content_hash ^= rows.hash_of(number, version)
        self._unsealed: dict[int, int] = {}
        self._deletes: list[tuple[int, rows.Hides]] = []
        self.fails_next = False
        self._frozen_version = disk.sealed.frontier
        self._version = disk.sealed.frontier
        self.tampered = disk.sealed.tampered

    @property
    def state(self) -> bytes | None:
        """See Store."""
        return self.disk.sealed.state

    @property
    def frontier(self) -> int:
        """See Store."""
        return self.disk.sealed.frontier

    def retire(self) -> bool:
        """See Store; nobody reads in the middle of a turn."""
        return True

    def write(self, version: int, era: int, schema: object, database: object, batch: pa.RecordBatch) -> None:
        """See Store."""
        del era, schema, database
        self._advance(version)
        if self.fails_next:
            self.fails_next = False
            raise MemoryError("injected")
        number = int(batch.column("number")[0].as_py())
        self.content_hash ^= rows.hash_of(number, self.content.get(number, 0)) ^ rows.hash_of(number, version)
        self.content[number] = self._unsealed[number] = version

    def delete(
        self,
        version: int,
        era: int,
        database: str,
        table: str,
        tags: Mapping[str, tuple[str, ...]],
        start_ns: int | None = None,
        end_ns: int | None = None,
    ) -> None:
        """See Store; the whole of some series."""
        del era, database, table, start_ns, end_ns
        self._hide(version, rows.deleted_by(tags))

    def _hide(self, version: int, hides: rows.Hides) -> None:
        self._advance(version)
        self._deletes.append((version, hides))
        for number in [number for number in self.content if hides(number)]:
            self.content_hash ^= rows.hash_of(number, self.content.pop(number))
        self._unsealed = {number: at for number, at in self._unsealed.items() if not hides(number)}

    def freeze(self, version: int, era: int, state: bytes, schemas: object = None) -> ModelSeal:
        """See Store."""
        del era, schemas
        self._advance(version)
        first, self._frozen_version = self._frozen_version + 1, version
        frozen, deletes = self._unsealed, self._deletes
        self._unsealed, self._deletes = {}, []
        return ModelSeal(self, version, first, state, frozen, deletes)

    def compact(self, version: int, inputs: Sequence[str]) -> ModelCompact:
        """See Store."""
        self._advance(version)
        return ModelCompact(self, version, inputs)

    def drop(self, version: int, era: int, database: str, table: str, before_ns: int) -> ModelDrop:
        """See Store."""
        del era, database, table
        hides = rows.dropped_before(before_ns)
        self._hide(version, hides)
        return ModelDrop(self, version, hides)

    def matches(self, truth: TruthRecord) -> bool:
        """Whether it holds what the log gives at that record."""
        return self.content_hash == truth.content

    def holds(self, content: Mapping[int, int]) -> bool:
        """Whether it holds exactly these rows, by number and version."""
        return self.content == content

    @property
    def loaded_version(self) -> int:
        """See Store; it loads nothing."""
        return 0

    def awaited(self) -> list[SegmentEntry]:
        """See Store. No slots move here."""
        return []

    def plan_compaction(self) -> list[Compaction]:
        """See Store."""
        names = sorted(self.disk.sealed.segments)
        if len(names) <= MERGED:
            return []
        return [Compaction(tuple(names[:MERGED]), merged_name(names[:MERGED]))]

    def segments(self) -> list[SegmentEntry]:
        """See Store."""
        return [entry_of(name, content) for name, content in sorted(self.disk.sealed.segments.items())]

    @property
    def size_bytes(self) -> int:
        """See Store."""
        return sum(entry.size_bytes for entry in self.segments())

    def digests(self) -> dict[str, str]:
        """See Store."""
        return {name: digest_of(content) for name, content in self.disk.sealed.segments.items()}

    def is_corrupt(self, name: str, on_bytes: Callable[[int], None] = lambda _size: None) -> bool:
        """See Store."""
        on_bytes(0)
        return name in self.disk.sealed.rotten

    def database(self, database: str, table: str) -> object:
        """See Store."""
        del database, table
        return rows.DATABASE

    def size(self) -> MemtableSize:
        """See Store."""
        return MemtableSize(len(self._unsealed), 0, 1)

    def pending_jobs(self) -> int:
        """See Store."""
        return len(self.queue)

    def close(self) -> None:
        """See Store."""

    def commit(self, sealed: SealedRows) -> None:
        """Replace what is on the disk in one step. Raises StoreFull; a process may end before or behind it."""
        self.disk.step_hook("commit")
        try:
            self.disk.take_space()
        except OSError as error:
            raise StoreFull("the disk is full") from error
        # A file that a Drop removed is not rotten any more.
        sealed.rotten &= set(sealed.segments)
        self.disk.sealed = sealed
        self.disk.step_hook("committed")

    def _advance(self, version: int) -> None:
        assert version > self._frozen_version, (version, self._frozen_version)
        assert version >= self._version, (version, self._version)
        self._version = version


class ModelSeal(SealJob):
    """Commits frozen rows and the state. See SealJob."""

    done = False

    def __init__(
        self,
        store: ModelStore,
        version: int,
        first: int,
        state: bytes,
        frozen: dict[int, int],
        deletes: Sequence[tuple[int, rows.Hides]],
    ) -> None:
        self.version = version
        self._store = store
        self._first = first
        self._state = state
        self._frozen = frozen
        self._deletes = deletes
        # Of this moment, as the state is: a later change of the memtable is in neither.
        self._tampered = store.tampered
        store.queue.append(self)

    def run(self) -> None:
        """See StoreJob."""
        assert self._store.queue[0] is self, "jobs out of order"
        sealed = self._store.disk.sealed.copy()
        for at, hides in self._deletes:
            for name, segment in list(sealed.segments.items()):
                kept = {number: version for number, version in segment.items() if version > at or not hides(number)}
                if len(kept) < len(segment):
                    sealed.segments[name] = kept
        if self._frozen:
            sealed.segments[f"{self._first:08d}-{self.version:08d}"] = self._frozen
        sealed.state, sealed.frontier, sealed.tampered = self._state, self.version, self._tampered
        self._store.commit(sealed)
        self._store.queue.popleft()


class ModelCompact(CompactJob):
    """Merges segments. See CompactJob."""

    done = False

    def __init__(self, store: ModelStore, version: int, inputs: Sequence[str]) -> None:
        self.version = version
        self._store = store
        self._inputs = inputs
        store.queue.append(self)

    def run(self) -> None:
        """See StoreJob."""
        assert self._store.queue[0] is self, "jobs out of order"
        sealed = self._store.disk.sealed.copy()
        present = [name for name in self._inputs if name in sealed.segments]
        if present and len(present) < len(self._inputs):
            raise JobSuperseded("only some inputs exist")
        if sealed.rotten & set(present):
            raise StoreDamaged(f"segment {sorted(sealed.rotten)[0]} cannot be read")
        if present:
            merged: dict[int, int] = {}
            for name in present:
                merged.update(sealed.segments.pop(name))
            sealed.segments[merged_name(present)] = merged
            self._store.commit(sealed)
        self._store.queue.popleft()

    def cancel(self) -> None:
        """See StoreJob."""
        self._store.queue.remove(self)


class ModelDrop(DropJob):
    """Removes the segments of which nothing is left. See DropJob."""

    done = False

    def __init__(self, store: ModelStore, version: int, hides: rows.Hides) -> None:
        self.version = version
        self._store = store
        self._hides = hides
        store.queue.append(self)

    def run(self) -> None:
        """See StoreJob."""
        assert self._store.queue[0] is self, "jobs out of order"
        sealed = self._store.disk.sealed.copy()
        for name, segment in list(sealed.segments.items()):
            if all(self._hides(number) and at <= self.version for number, at in segment.items()):
                del sealed.segments[name]
        if len(sealed.segments) < len(self._store.disk.sealed.segments):
            sealed.ahead_version = self.version
            self._store.commit(sealed)
        self._store.queue.popleft()

    def cancel(self) -> None:
        """See StoreJob."""
        self._store.queue.remove(self)


def merged_name(names: Sequence[str]) -> str:
    """The name of the segment that replaces others: the versions of all of them."""
    return f"{names[0][:8]}-{names[-1][-8:]}"


def digest_of(content: Mapping[int, int]) -> str:
    """The content digest of a segment."""
    return xxhash.xxh3_64_hexdigest(repr(sorted(content.items())).encode())


def entry_of(name: str, content: Mapping[int, int]) -> SegmentEntry:
    """The catalogue entry of a segment."""
    values: dict[str, Any] = dict.fromkeys(SegmentEntry.__dataclass_fields__, 0)
    digest = digest_of(content)
    return SegmentEntry(
        **{
            **values,
            "name": name,
            "database": rows.DATABASE.database,
            "table": rows.TABLE.table,
            "first_version": int(name[:8]),
            "last_version": int(name[-8:]),
            "rows": len(content),
            "max_time_ns": max((rows.time_of(number) for number in content), default=0),
            "content_digest": digest,
            "file_digest": digest,
        }
    )
