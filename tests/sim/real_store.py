"""The second simulation: the store that ships, RocksDB and Parquet in a directory, instead of the model.

Commits happen in one step, as those of the model: kills and full disks meet them before or behind. Copies of files,
their checks and swaps are those that ship, over the directories of the nodes. Slower, so it runs fewer seeds.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from headrace.connectors.files import Buffer
from headrace.consumers.recovery import file_copy, group_copies
from headrace.consumers.recovery.file_copy import Snapshot, SourceFailed
from headrace.consumers.replication.group_state import GroupState, LogBase
from headrace.consumers.serve.snapshots import SnapshotRefused, SnapshotRegistry
from headrace.consumers.store import (
    CompactJob,
    DropJob,
    SealJob,
    Store,
    StoreDamaged,
    StoreFull,
    StoreJob,
    TableUnknown,
)
from tests.sim import rows
from tests.sim.disk import SealedRows
from tests.sim.model_store import ModelStore
from tests.sim.parts import SimFiles
from tests.sim.stubs import GROUP, TOPIC
from tests.sim.truth import TruthRecord

if TYPE_CHECKING:
    from tests.sim.node import ClusterNode

Job = TypeVar("Job", bound=StoreJob)
SCANS = 0.02
"""Of the records, behind which the content is compared by a scan."""
_POOL = ThreadPoolExecutor(1, thread_name_prefix="sim-encode")


class RealStore(Store):
    """A Store whose jobs are steps of a simulated process on a simulated disk."""

    node: ClusterNode
    tampered = False
    fails_next = False
    closed = False

    def write(self, version: int, *args: Any) -> None:
        """See Store."""
        if self.fails_next:
            self.fails_next = False
            raise MemoryError("injected")
        super().write(version, *args)

    def freeze(self, *args: Any) -> SealJob:
        """See Store."""
        return self._stepped(super().freeze(*args))

    def compact(self, version: int, inputs: Sequence[str]) -> CompactJob:
        """See Store."""
        return self._stepped(super().compact(version, inputs))

    def drop(self, *args: Any) -> DropJob | None:
        """See Store."""
        job = super().drop(*args)
        return None if job is None else self._stepped(job)

    def close(self) -> None:
        """See Store; a process that was killed is closed once more by whoever cleans up."""
        if not self.closed:
            self.closed = True
            super().close()

    def matches(self, truth: TruthRecord) -> bool:
        """Whether a scan gives what the log gives at that record; looked at for some of the records."""
        if self.node.scans.random() >= SCANS:
            return True
        try:
            found = self.numbers()
        except StoreDamaged:
            # Of a file that is damaged a scan gives an error or the rows, never other rows.
            return bool(self.node.disk.sealed.rotten)
        return rows.hash_of_numbers(found) == truth.numbers and max(found.values(), default=1) == 1

    def holds(self, content: Mapping[int, int]) -> bool:
        """Whether a scan gives exactly these rows."""
        return self.numbers() == Counter(content.keys())

    def numbers(self) -> Counter[int]:
        """How often each number is visible."""
        try:
            scan = self.scan(rows.TABLE.database, rows.TABLE.table, columns=["number"])
        except TableUnknown:
            return Counter()
        with scan:
            found = Counter(scan.table.column("number").to_pylist() if scan.table.num_rows else ())
            for path in scan.files:
                found.update(_numbers_of(path))
        return found

    def note(self, ahead_version: int = 0) -> None:
        """What the disk holds now, for the invariants and the faults."""
        before, names = self.node.disk.sealed, {entry.name for entry in self.segments()}
        self.node.disk.sealed = SealedRows(
            self.state, self.frontier, {name: {} for name in names}, before.rotten & names, False, ahead_version
        )

    def _rows(self) -> int:
        return sum(entry.rows for entry in self.segments())

    def _stepped(self, job: Job) -> Job:
        changed: Any = job
        changed.run = partial(self._run, job, job.run)
        return job

    def _run(self, job: StoreJob, run: Callable[[], None]) -> None:
        disk = self.node.disk
        disk.step_hook("commit")
        try:
            disk.take_space()
        except OSError as error:
            raise StoreFull("the disk is full") from error
        held = self._rows()
        run()
        ahead_version = 0
        if isinstance(job, DropJob):
            ahead_version = job.version
        elif isinstance(job, CompactJob) and self._rows() < held:
            # A merge leaves out what deletes of before its record have hidden.
            ahead_version = job.version - 1
        self.note(max(disk.sealed.ahead_version, ahead_version))
        disk.step_hook("committed")


def _numbers_of(path: Path) -> list[int]:
    try:
        # Without threads: the files are small, and there are many.
        segment = pq.ParquetFile(path, page_checksum_verification=True).read(columns=["number"], use_threads=False)
    except (OSError, pa.ArrowException) as error:
        raise StoreDamaged(f"segment {path} cannot be read: {error}") from error
    numbers: list[int] = segment.column("number").to_pylist()
    return numbers


class Member:
    """The files of another member, without HTTP. A `Source`."""

    def __init__(self, receiver: ClusterNode, sender: ClusterNode, snapshots: SnapshotRegistry) -> None:
        self._receiver, self._sender, self._snapshots = receiver, sender, snapshots

    def open(self) -> Snapshot:
        """See Source."""
        sender = self._sender
        sender.check_reachable(self._receiver.name)
        if sender.readiness.reason(TOPIC):
            raise SourceFailed("the group is not in sync here", retriable=True)
        store: Any = sender.group.store
        try:
            return self._snapshots.make(GROUP, sender.identity.topics[TOPIC], 1, store)
        except SnapshotRefused as error:
            raise SourceFailed(error.message, retriable=True) from error

    def read(self, snapshot: Snapshot, path: str, offset: int) -> Iterator[Buffer]:
        """See Source."""
        self._sender.check_reachable(self._receiver.name)
        yield from self._snapshots.open(snapshot.id, path, offset)[1]

    def release(self, snapshot: Snapshot) -> None:
        """See Source."""
        self._snapshots.release(snapshot.id)


class RealFiles(SimFiles):
    """The files of the nodes below a directory of this machine."""

    def __init__(self, nodes: dict[str, ClusterNode], root: Path) -> None:
        super().__init__(nodes, root)
        self._stores: dict[str, list[RealStore]] = {}
        self._snapshots: dict[str, SnapshotRegistry] = {}

    def encoding_threads(self, _settings: object, _nice: int = 0) -> Any:
        """See store.encoding_threads; one for all nodes."""
        return SimpleNamespace(submit=_POOL.submit, map=_POOL.map, shutdown=lambda: None)

    def open_store(self, directory: Path, name: str, *settings: Any) -> ModelStore | RealStore:
        """See Store.open."""
        node = self.node(directory)
        store = RealStore.open(directory, name, *settings)
        assert isinstance(store, RealStore)
        store.node = node
        self._stores.setdefault(node.name, []).append(store)
        store.note(node.disk.sealed.ahead_version)
        return store

    def fetch(self, source: Any, directory: Path, observer: Any, own: Path) -> Snapshot:
        """See file_copy.fetch."""
        receiver, sender = self.node(directory), self._nodes[source[0]]
        receiver.process.wait(receiver.world.random.uniform(20, 2_500))
        if sender.name not in self._snapshots:
            self._snapshots[sender.name] = SnapshotRegistry(sender.directory)
        ahead_version = sender.disk.sealed.ahead_version
        found = file_copy.fetch(Member(receiver, sender, self._snapshots[sender.name]), directory, observer, own)
        state = GroupState(version=found.version, offset=found.offset, chain=bytes.fromhex(found.chain))
        receiver.fetched = SealedRows(state.to_bytes(), found.version, ahead_version=ahead_version)
        return found

    def check_copy(self, directory: Path, snapshot: Snapshot, key: str) -> LogBase:
        """See group_copies.check_copy."""
        return self._check_copy(directory, snapshot, key)

    def commit_copy(self, directory: Path, group: str) -> None:
        """See file_copy.commit_copy."""
        self.node(directory).disk.take_space()
        file_copy.commit_copy(directory, group)

    def commit_empty(self, directory: Path, group: str) -> None:
        """See file_copy.commit_empty."""
        self.node(directory).fetched = SealedRows()
        file_copy.commit_empty(directory, group)

    def is_committed(self, directory: Path, group: str) -> bool:
        """See file_copy.is_committed."""
        return file_copy.is_committed(directory, group)

    def finish_swap(self, directory: Path, group: str) -> None:
        """See file_copy.finish_swap."""
        node = self.node(directory)
        node.disk.step_hook("swap")
        if file_copy.is_committed(directory, group):
            node.disk.sealed = node.fetched or SealedRows()
        file_copy.finish_swap(directory, group)
        node.disk.step_hook("swapped")

    def finish_swaps(self, directory: Path) -> None:
        """See file_copy.finish_swaps."""
        if file_copy.is_committed(directory, GROUP):
            self.node(directory).disk.sealed = self.node(directory).fetched or SealedRows()
        file_copy.finish_swaps(directory)

    def rot(self, node: ClusterNode, name: str) -> None:
        """A byte of a segment changes."""
        super().rot(node, name)
        path = node.group.store.segments_directory / name
        content = bytearray(path.read_bytes())
        content[len(content) // 2] ^= 0x10
        path.write_bytes(content)

    def ended(self, node: ClusterNode) -> None:
        """A process ended, and what it had open is closed."""
        for store in self._stores.pop(node.name, []):
            store.close()
        self._snapshots.pop(node.name, None)

    def wiped(self, node: ClusterNode) -> None:
        """The directory of a node is lost."""
        shutil.rmtree(node.directory, ignore_errors=True)

    def close(self) -> None:
        """The schedule is over."""
        for node in self._nodes.values():
            self.ended(node)

    _check_copy = staticmethod(group_copies.check_copy)
