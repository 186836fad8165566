"""A job of a store, and the components that the jobs share.

The apply thread creates a job at one version; a pool runs it later. A job commits in this order, so that a
crash at any point leaves the state before it or after it:

1. Files are written, synced and renamed, and their directories synced. Crash: orphans, removed at opening.
2. One synced batch changes the index. Crash before or during it: as in 1. After it: the job has succeeded.
3. The in-memory state changes under one lock, then replaced files are unlinked. Crash: orphans, removed at
   opening.

A job that fails before 2 leaves nothing visible and can be run again. Jobs of a store succeed in the order in
which they were created.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from pathlib import Path
from typing import ClassVar

import pyarrow as pa

from headrace.consumers.store.block_cache import BlockCache
from headrace.consumers.store.centres import NO_CENTRES, CentreProgress
from headrace.consumers.store.index import BucketKey, Index, IndexChanges
from headrace.consumers.store.last_rows import LiveSummaries, decode_last
from headrace.consumers.store.last_tables import LastTables
from headrace.consumers.store.pruning import OverlapCache
from headrace.consumers.store.rollup_files import RollupFiles
from headrace.consumers.store.runs_cache import RunsCache
from headrace.consumers.store.segment_files import SegmentFiles
from headrace.consumers.store.settings import StoreSettings
from headrace.consumers.store.slots import Slots
from headrace.consumers.store.staged_file import VerifiedFiles
from headrace.consumers.store.store_errors import JobOutOfOrder, JobUnwanted
from headrace.consumers.store.store_view import StoreView
from headrace.consumers.store.tag_index import TagIndices


@dataclass(slots=True)
class StoreComponents:
    """The components that the jobs of one store share.

    `encoders` runs work that needs CPU. `commit_lock` is held from an index commit to the change in memory,
    and by snapshots. `work_lock` is held by the running job, and while a file that was awaited is attached:
    both read the last rows of a bucket and commit them changed. Fetched files are in `staging`; those whose bytes were
    compared with the digest of their sender, and synced, by this process are in `verified`, by content. `centres` are
    those that the store sends to.
    """

    group: str
    settings: StoreSettings
    files: SegmentFiles
    index: Index
    view: StoreView
    runs: RunsCache
    overlaps: OverlapCache
    blocks: BlockCache
    live: LiveSummaries
    last_tables: LastTables
    encoders: Executor
    rollups: RollupFiles
    staging: Path
    last_tags: TagIndices = field(default_factory=TagIndices)
    work_lock: threading.Lock = field(default_factory=threading.Lock)
    commit_lock: threading.Lock = field(default_factory=threading.Lock)
    queue: deque[StoreJob] = field(default_factory=deque)
    verified: VerifiedFiles = field(default_factory=VerifiedFiles)
    centres: CentreProgress = NO_CENTRES
    closed: bool = False
    """Changes under `work_lock`."""

    def close(self) -> None:
        """Release all parts, once no work is under way."""
        # Files may be fetched for a group whose change was cancelled. Their place may be another store's by then.
        with self.work_lock:
            self.closed = True
        self.rollups.close()
        self.files.purge_obsolete()
        self.index.close()

    def commit(self, changes: IndexChanges, released: Slots | None = None) -> None:
        """Commits changes of segments, and slots whose files are removed: in the index, then in memory."""
        # A snapshot between the two would checkpoint an index that names segments which it does not link.
        with self.commit_lock:
            self.index.commit(changes, self.files.pinned())
            last = {key: decode_last(data) for key, data in changes.last.items()}
            removed = [entry for name in changes.removed if (entry := self.view.entry(name)) is not None]
            self.view.commit(
                removed=removed,
                added=[entry for entry, _ in changes.added],
                last=last,
                tables=changes.tables,
                loaded_version=changes.loaded_version,
                held=changes.held,
                released=released,
            )

    def last(self, key: BucketKey) -> pa.RecordBatch | None:
        """The sealed last rows of one bucket of a table."""
        return self.view.last(key, self._load_last)

    def _load_last(self, key: BucketKey) -> pa.RecordBatch | None:
        data = self.index.last(key)
        return None if data is None else decode_last(data)


class StoreJob(ABC):
    """One change of the store's files.

    Any thread may call `run`, again and again until it returns without error. `urgent`: queries wait for it, so it is
    no background work. `is_unwanted`: whether nobody waits any more, as when the node stops; see `_end_if_unwanted`.
    """

    can_be_cancelled: ClassVar[bool] = True
    urgent: bool = False

    def __init__(self, components: StoreComponents, version: int) -> None:
        """Enters the queue behind the jobs created before."""
        self.version = version
        self._components = components
        self._running = threading.Lock()
        self.done = False
        self.is_unwanted: Callable[[], bool] = lambda: False
        components.queue.append(self)

    def run(self) -> None:
        """Does the work; a call after success does nothing.

        Raises JobOutOfOrder while an earlier job has not succeeded, StoreFull (run it again once there is
        space), StoreUnwritable, StoreDamaged or JobUnwanted. After an error nothing has become visible.
        """
        with self._running, self._components.work_lock:
            if self.done:
                return
            # In order: a merge names segments that an earlier seal writes. The frontier of a seal also states
            # that all rows up to it are in segments.
            if self._components.queue[0] is not self:
                raise JobOutOfOrder(
                    f"the job of version {self.version} is not the next one of group {self._components.group}",
                    retriable=True,
                )
            self._execute()
            self.done = True
            self._components.queue.popleft()

    def cancel(self) -> None:
        """Removes a superseded job from the queue. A seal cannot be cancelled."""
        # The journal is trimmed up to the next seal's frontier,
        # so the rows of a cancelled seal would be in no segment.
        assert self.can_be_cancelled, self.version
        # Behind an attempt under way: a job that left the queue must not commit after the next one has begun.
        with self._running:
            if not self.done:
                self.done = True
                self._components.queue.remove(self)

    def _end_if_unwanted(self) -> None:
        """For a long job, between its steps before the commit. Raises JobUnwanted."""
        if self.is_unwanted():
            raise JobUnwanted(f"the job of version {self.version} is left to the next start")

    @abstractmethod
    def _execute(self) -> None: ...
