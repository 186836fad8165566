"""The seams: what the shipping modules get in a simulation instead of threads, real files and the real store.

Nothing else of them is replaced. Recovery (coordinator, supervisor), divergence monitor and scrubber run as they ship;
their copies of files go through `SimFiles` here.
"""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import structlog

from headrace.consumers.integrity import divergence_monitor, scrubber
from headrace.consumers.node import local_groups, log_monitor, recovery_environment
from headrace.consumers.recovery import coordinator, gap_search, group_copies, log_gap, supervisor
from headrace.consumers.recovery.file_copy import Snapshot, SourceFailed
from headrace.consumers.recovery.plan import Costs
from headrace.consumers.replication import (
    admission,
    group,
    group_actions,
    heartbeat,
    journal,
    leader_tasks,
    replica,
    topic_identity,
)
from headrace.consumers.replication.group_state import GroupState, LogBase
from headrace.consumers.replication.journal import JournalEntry
from headrace.consumers.replication.store_jobs import IsUrgent, JobStep
from headrace.consumers.store import Store
from headrace.consumers.wal import WriteAheadLog
from headrace.schemas.framing import format_headers
from tests.sim import rows
from tests.sim.broker import SimLog
from tests.sim.disk import SealedRows, sealed_state
from tests.sim.model_store import ModelStore
from tests.sim.world import InvariantBroken

if TYPE_CHECKING:
    from tests.sim.node import ClusterNode
    from tests.sim.process import Process

WITH_TASKS = (coordinator, divergence_monitor, gap_search, log_monitor, scrubber, supervisor)
CHAIN_INTERVAL = 16
GROWTH_PER_S = 100
"""Some ten times what all writers of a schedule append."""
COSTS = Costs(log_bytes_per_second=1e4, file_bytes_per_second=1e6, worth_s=0.5)


PROGRAMMING_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NameError,
    NotImplementedError,
    RecursionError,
    TypeError,
    ValueError,
)
"""Errors that no disk, log or other process causes. `MemoryError` is injected, and must be survived."""


class ProgrammingError(InvariantBroken):
    """Code under test raised what only a mistake in it, or in its stand-ins, can raise."""

    @classmethod
    def of(cls, error: BaseException) -> InvariantBroken:
        """The error that ends the schedule, also where a thread survives it; one that does so already stays."""
        if isinstance(error, InvariantBroken) or not BUILDING:
            return error if isinstance(error, InvariantBroken) else cls(repr(error))
        process = BUILDING[-1]
        broken = cls(f"seed {process.world.seed}: a thread of {process.incarnation} met {error!r}")
        process.world.broken = process.world.broken or broken
        return broken


class SteppedTask:
    """A PeriodicTask without a thread: its process calls it at its interval."""

    def __init__(
        self, name: str, interval_s: float, run_once: Callable[[], None], join_timeout_s: float = 0.0, *, nice: int = 0
    ) -> None:
        del join_timeout_s, nice
        self.name = name
        self.interval_s = interval_s
        self.run_once = run_once
        self.stopping = threading.Event()
        process = BUILDING[-1]
        process.tasks.append(self)
        self._process = process

    def start(self) -> None:
        """See PeriodicTask."""
        self._process.every(self.interval_s * 700, self.interval_s * 1_300, self._run)

    @property
    def alive(self) -> bool:
        """See PeriodicTask; a step never waits for another one."""
        return False

    def stop(self) -> None:
        """See PeriodicTask."""
        self.stopping.set()

    def _run(self) -> None:
        try:
            self.run_once()
        except PROGRAMMING_ERRORS as error:
            raise ProgrammingError.of(error) from error
        except Exception as error:
            # As the real one: logged, and the next run comes all the same.
            self._process.note(f"task {self.name} failed: {error!r}")
            self._process.tasks_failed += 1


class SimHandle:
    """See JobHandle."""

    def __init__(self, run_now: Callable[[], object]) -> None:
        self.ended = False
        self._run_now = run_now

    def done(self) -> bool:
        """See JobHandle."""
        return self.ended

    def result(self, timeout: float | None = None) -> None:
        """The applying thread would wait: nothing else runs here, so the job does."""
        del timeout
        while not self.ended:
            self._run_now()


class SimPool:
    """A JobPool, or an Executor, whose work is done some virtual time later, in order."""

    def __init__(self, process: Process, delay_ms: tuple[float, float]) -> None:
        self._process = process
        self._delay_ms = delay_ms
        self._queue: list[tuple[JobStep, SimHandle]] = []
        self._busy = False

    def submit(self, step: Callable[..., float | None], *args: Any, urgent: IsUrgent = lambda: False) -> SimHandle:
        """See JobPool."""
        handle = SimHandle(self._run)
        self._queue.append((partial(step, *args), handle))
        self._schedule(None)
        return handle

    def hurry(self) -> None:
        """See JobPool."""

    def shutdown(self, **_how: bool) -> None:
        """See JobPool."""
        self._queue.clear()

    def _schedule(self, pause_s: float | None) -> None:
        if self._queue and not self._busy:
            self._busy = True
            delay_ms = self._process.random.uniform(*self._delay_ms) if pause_s is None else pause_s * 1_000
            self._process.once(delay_ms, self._due)

    def _due(self) -> None:
        self._busy = False
        self._schedule(self._run())

    def _run(self) -> float | None:
        if not self._queue:
            return None
        step, handle = self._queue[0]
        pause_s = step()
        if pause_s is None and self._queue and self._queue[0][1] is handle:
            self._queue.pop(0)
        handle.ended = pause_s is None
        return pause_s


class SteppedGroup(group.Group):
    """A Group without its thread: its process calls `turn`."""

    def __init__(self, *args: Any, **named: Any) -> None:
        self.process = BUILDING[-1]
        named["pool"] = SimPool(self.process, (5, 400))
        super().__init__(*args, **named)

    def start(self) -> None:
        """See Group."""

    def recover(self, entries: Any, on_entry: Any) -> JournalEntry | None:
        """See Group."""

        def checked(entry: Any) -> None:
            on_entry(entry)
            self.process.node.on_applied(self)

        return super().recover(entries, checked)


BUILDING: list[Process] = []
"""The process whose parts are being made."""


class SimFiles:
    """The files of stores and recoveries on the simulated disks; a directory is `{root}/{node}`."""

    def __init__(self, nodes: dict[str, ClusterNode], root: Path = Path("/sim")) -> None:
        self._nodes = nodes
        self.root = root

    def node(self, directory: Path) -> ClusterNode:
        """The node of a directory, or of one in it."""
        return self._nodes[Path(directory).relative_to(self.root).parts[0]]

    def encoding_threads(self, _settings: object, _nice: int = 0) -> Any:
        """See store.encoding_threads."""
        return SimpleNamespace(shutdown=lambda: None)

    def rot(self, node: ClusterNode, name: str) -> None:
        """A segment of a node does not have the bytes any more that were sealed."""
        node.disk.sealed.rotten.add(name)

    def ended(self, node: ClusterNode) -> None:
        """A process ended."""

    def wiped(self, node: ClusterNode) -> None:
        """A node lost its disk."""

    def close(self) -> None:
        """The schedule is over."""

    def fetch(self, source: Any, directory: Path, observer: Any, own: Path) -> Snapshot:
        """See file_copy.fetch; `source` is (node, group)."""
        del own
        receiver, sender = self.node(directory), self._nodes[source[0]]
        snapshot, content = sender.snapshot(receiver.name)
        observer.begin(1, 1)
        receiver.process.wait(receiver.world.random.uniform(20, 2_500))
        sender.check_reachable(receiver.name)
        receiver.fetched = content
        observer.received(1)
        observer.file_done()
        return snapshot

    def check_copy(self, directory: Path, snapshot: Snapshot, key: str) -> LogBase:
        """See group_copies.check_copy."""
        fetched = self.node(directory).fetched
        assert fetched is not None
        if fetched.frontier != snapshot.version:
            raise SourceFailed("another copy")
        return sealed_state(fetched.state).base

    def is_committed(self, directory: Path, _group: str) -> bool:
        """See file_copy.is_committed."""
        return self.node(directory).disk.copy_committed is not None

    def commit_copy(self, directory: Path, _group: str) -> None:
        """See file_copy.commit_copy."""
        node = self.node(directory)
        assert node.fetched is not None
        wrong = node.fetched.tampered
        node.simulation.invariants.require(not wrong, f"{node.name} takes a copy from a member that is wrong")
        node.disk.take_space()
        node.disk.copy_committed = node.fetched

    def commit_empty(self, directory: Path, _group: str) -> None:
        """See file_copy.commit_empty."""
        self.node(directory).disk.copy_committed = SealedRows()

    def finish_swap(self, directory: Path, _group: str) -> None:
        """See file_copy.finish_swap."""
        disk = self.node(directory).disk
        disk.step_hook("swap")
        if disk.copy_committed is not None:
            disk.sealed, disk.copy_committed = disk.copy_committed, None
        disk.step_hook("swapped")

    def finish_deletions(self, _directory: Path, _forget: Callable[[str], None]) -> list[str]:
        """See group_deletion.finish_deletions."""
        return []

    def finish_swaps(self, directory: Path) -> None:
        """See file_copy.finish_swaps."""
        self.finish_swap(directory, "")

    def open_store(self, directory: Path, name: str, *_settings: Any) -> ModelStore | Store:
        """See Store.open."""
        return ModelStore(self.node(directory).disk, name)

    def quarantine(self, _directory: Path, _name: str) -> Path:
        """See Store.quarantine; the model store can always be opened."""
        raise AssertionError("never damaged at its start")

    def set_aside(self, directory: Path, name: str) -> Path:
        """See local_groups.set_aside."""
        files, aside = self.node(directory).disk, directory / "damaged" / name
        for path in [path for path in files.names_seen if path.startswith(f"{directory / name}/")]:
            inode = files.names_seen.pop(path)
            files.names_seen[path.replace(str(directory / name), f"{aside}-{len(files.names_seen)}")] = inode
        files.names_durable = dict(files.names_seen)
        return aside

    def journal(self, directory: Path, names: Any) -> journal.Journal:
        """The journal over the simulated disk."""
        node = self.node(directory)
        return node.journal_class(directory, names, node.disk, maintained=False)


def append_at_once(log: SimLog, topic: str, value: bytes) -> int:
    """See connectors.log.append; nobody else acts before the record is there."""
    found = log.answer(topic)
    log.broker.append(topic, value, None, format_headers(), None)
    return found.end - 1


def snapshot_of(sealed: SealedRows, group_name: str, topic_id: str) -> Snapshot:
    """The listing of what a node has sealed."""
    assert sealed.state is not None
    state = GroupState.from_bytes(sealed.state)
    return Snapshot("s", group_name, topic_id, state.version, state.offset, 1, state.chain.hex(), ())


def fail_on_programming_errors(_logger: object, _method: str, event: MutableMapping[str, Any]) -> str:
    """A processor of log events: what a thread survives and logs with its traceback fails the schedule."""
    # Threads of a node log an error that nobody expected, and continue. Here that would hide a missing method: the
    # schedule would merely have done less.
    error = sys.exc_info()[1]
    if event.get("exc_info") and isinstance(error, PROGRAMMING_ERRORS):
        raise ProgrammingError.of(error) from error
    raise structlog.DropEvent


@contextmanager
def shipping_parts(files: SimFiles) -> Iterator[None]:
    """Give the shipping modules the parts of a simulation, and take them back."""
    store = SimpleNamespace(open=files.open_store, quarantine=files.quarantine)
    changes: list[tuple[Any, str, Any]] = [
        (local_groups, "Store", store),
        (local_groups, "Journal", files.journal),
        (local_groups, "Group", SteppedGroup),
        (local_groups, "finish_swaps", files.finish_swaps),
        (local_groups, "finish_swap", files.finish_swap),
        (local_groups, "finish_deletions", files.finish_deletions),
        (local_groups, "set_aside", files.set_aside),
        (local_groups, "encoding_threads", files.encoding_threads),
        (group_copies, "fetch", files.fetch),
        (group_copies, "check_copy", files.check_copy),
        (coordinator, "is_committed", files.is_committed),
        (group_copies, "commit_copy", files.commit_copy),
        (coordinator, "commit_empty", files.commit_empty),
        (recovery_environment, "finish_swap", files.finish_swap),
        (gap_search, "append_one", append_at_once),
        (journal, "WriteAheadLog", partial(WriteAheadLog, preallocate_bytes=0)),
        (group, "CHAIN_INTERVAL", CHAIN_INTERVAL),
        (leader_tasks, "UPKEEP_INTERVAL_S", 2.0),
        (topic_identity, "GROWTH_PER_S", GROWTH_PER_S),
        (replica, "decode_message", rows.decoded),
        (replica, "check_size", rows.checked_size),
        (log_gap, "decode_message", rows.decoded),
        (admission, "decode_rows", rows.decoded_rows),
        (group_actions, "RowAdmission", rows.OneAdmission),
        (heartbeat, "decode_status", rows.decoded_status),
    ]
    changes += [(module, "PeriodicTask", SteppedTask) for module in WITH_TASKS]
    before = [(target, name, getattr(target, name)) for target, name, _ in changes]
    logging_before = structlog.get_config()
    structlog.configure(
        processors=[fail_on_programming_errors], wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR)
    )
    try:
        for target, name, value in changes:
            setattr(target, name, value)
        yield
    finally:
        for target, name, value in before:
            setattr(target, name, value)
        structlog.configure(**logging_before)
        BUILDING.clear()
        files.close()
        sys.stdout.flush()
