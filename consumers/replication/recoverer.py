"""Recovers groups whose log no longer holds what they need: files of another member first, then the log (docs/internals/recovery.md).

One thread looks which groups wait and plans, a small pool copies. A group under recovery is unsynced, reads nothing and keeps the data it has until
a complete, verified copy takes its place.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import structlog

from connectors.log.port import Log
from consumers.replication.group import Group
from consumers.replication.recovery import RecoveryPlan, Way, plan_recovery
from consumers.replication.sources import HttpSource
from consumers.replication.state import GroupState
from consumers.replication.transfer import (
    PARTS,
    RECOVERING,
    Snapshot,
    Source,
    SourceCorrupt,
    SourceFailed,
    TransferStopped,
    commit_copy,
    fetch,
    is_committed,
)
from consumers.store import Store, StoreDamaged
from schemas.errors import HeadraceError
from schemas.records import Status

TURN_S = 0.5
STALL_S = 30.0
FAILED_SHUN_S = 2.0
CORRUPT_SHUN_S = 600.0
CHOICES = (
    "the data is kept; start the members that have the files, or restore the topic; when neither is possible, write the "
    "segments of this directory, which are Parquet, into a new cluster with headrace write"
)
_log = structlog.get_logger(__name__)


class Recovery:
    """How the recovery of one group goes: a Watcher for the copying thread, a text and two numbers for everyone else."""

    def __init__(self, needed: int, log_begin: int, stopping: threading.Event, bytes_per_second: int) -> None:
        self._why = f"the log begins at offset {log_begin}, {needed} is needed"
        self._stopping = stopping
        self._bytes_per_second = bytes_per_second
        self._moved_s = self._begun_s = time.monotonic()
        self._received = 0
        self._source = ""
        self._trouble = ""
        self._files = 0
        self._files_done = 0
        self.bytes_done = 0
        self.bytes_total = 0

    def waits(self, reason: str) -> None:
        """Nobody to copy from."""
        self._source = ""
        self._why = reason

    def failed(self, trouble: str) -> None:
        """An attempt ended without success."""
        self._trouble = trouble

    def copies_from(self, source: str) -> None:
        """A new attempt."""
        self._source = source
        self._begun_s, self._received = time.monotonic(), 0

    def begin(self, files: int, total_bytes: int) -> None:
        """See Watcher."""
        self._files, self._files_done = files, 0
        self.bytes_done, self.bytes_total = 0, total_bytes
        self._begun_s, self._received = time.monotonic(), 0

    def have(self, size_bytes: int) -> None:
        """See Watcher."""
        self.bytes_done += size_bytes
        self._check()

    def received(self, size_bytes: int) -> None:
        """See Watcher; waits as long as the rate limit asks for."""
        self.bytes_done += size_bytes
        self._received += size_bytes
        self._moved_s = time.monotonic()
        self._check()

    def _check(self) -> None:
        due_s = self._received / self._bytes_per_second if self._bytes_per_second else 0.0
        if self._stopping.wait(max(0.0, self._begun_s + due_s - time.monotonic())):
            raise TransferStopped("the node is stopping")

    def lost(self, size_bytes: int) -> None:
        """See Watcher."""
        self.bytes_done -= size_bytes

    def file_done(self) -> None:
        """See Watcher."""
        self._files_done += 1

    @property
    def reason(self) -> str:
        """What an operator reads: how far it is, or what it waits for, and after 30 s without progress the cause."""
        still_s = time.monotonic() - self._moved_s
        trouble = f"; last trouble: {self._trouble}" if self._trouble else ""
        stalled = f"no progress for {still_s:.0f} s: " if still_s >= STALL_S else ""
        if not self._source:
            return f"{stalled}{self._why}{trouble}; {CHOICES}"
        rate = self._received / max(0.001, time.monotonic() - self._begun_s)
        left = (self.bytes_total - self.bytes_done) / rate if rate else 0.0
        figures = (
            f"{self._files_done} of {self._files} files, {self.bytes_done / 1e6:.1f} of {self.bytes_total / 1e6:.1f} MB, "
            f"{rate / 1e6:.1f} MB/s, {left:.0f} s left"
        )
        cause = f"{self._source} sends nothing" if stalled and not trouble else ""
        return f"{stalled}{cause}{' ' if cause else ''}recovering files from {self._source}: {figures}{trouble}"


class Recoverer:
    """The threads of it. `begin` may be called by any; `install(topic)` is called when a copy waits to take the place of the group's store."""

    def __init__(
        self,
        log: Log,
        node: str,
        data_directory: Path,
        groups: Mapping[str, Group],
        topic_ids: Mapping[str, str],
        live: Callable[[str, Sequence[str]], list[Status]],
        durable_offset: Callable[[str], int],
        install: Callable[[str], None],
        resume: Callable[[str], None],
        at_once_max: int,
        bytes_per_second: int,
        source: Callable[[str, str], Source] = HttpSource,
    ) -> None:
        self._log = log
        self._node = node
        self._data_directory = data_directory
        self._groups = groups
        self._topic_ids = topic_ids
        self._live = live
        self._durable_offset = durable_offset
        self._install = install
        self._resume = resume
        self._at_once_max = at_once_max
        self._bytes_per_second = bytes_per_second
        self._source = source
        self._recoveries: dict[str, Recovery] = {}
        self._busy: set[str] = set()
        self._shunned_until_s: dict[tuple[str, str], float] = {}
        self._stopping = threading.Event()
        self._pool = ThreadPoolExecutor(at_once_max, thread_name_prefix="recover")
        self._thread = threading.Thread(target=self._run, name="recoveries", daemon=True)

    def start(self) -> None:
        """Begin to look after groups that wait."""
        self._thread.start()

    def stop(self) -> None:
        """Stop; copies go on at the next start of the node."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(10.0)
        self._pool.shutdown(wait=True)

    def begin(self, topic: str, needed: int, log_begin: int) -> None:
        """The log of a group does not hold what it needs: from now on it recovers."""
        group = self._groups[topic]
        _log.warning("log does not hold what is needed", group=group.name, needed=needed, log_begin=log_begin)
        recovery = self._recoveries[topic] = Recovery(needed, log_begin, self._stopping, self._bytes_per_second)
        group.recovery = recovery

    def _run(self) -> None:
        while not self._stopping.wait(TURN_S):
            for topic, group in self._groups.items():
                recovery = self._recoveries.get(topic)
                if (
                    recovery is None
                    or group.recovery is not recovery
                    or topic in self._busy
                    or len(self._busy) >= self._at_once_max
                ):
                    continue
                try:
                    self._turn(topic, group, recovery)
                except HeadraceError as error:
                    recovery.failed(str(error))
                except Exception as error:
                    recovery.failed(repr(error))
                    _log.exception("recovery failed", group=group.name)

    def _turn(self, topic: str, group: Group, recovery: Recovery) -> None:
        live = self._sources(topic, group)
        needed, begin = self._durable_offset(topic) + 1, self._log.describe(topic).begin
        plan = plan_recovery(needed, begin, self._node, live)
        if is_committed(self._data_directory, group.directory_name) or plan.way is Way.FILES:
            self._busy.add(topic)
            url = next((status.http for status in live if status.node == plan.source), "")
            self._pool.submit(self._recover, topic, group, recovery, plan, url)
        elif plan.way is Way.LOG:
            self._resume(topic)
        else:
            recovery.waits(plan.reason)

    def _sources(self, topic: str, group: Group) -> list[Status]:
        """Live members that follow the same topic, say where they are, and were not found bad lately."""
        now = time.monotonic()
        return [
            status
            for status in self._live(group.name, group.members)
            if status.topic_id == self._topic_ids[topic]
            and status.http
            and self._shunned_until_s.get((topic, status.node), 0.0) <= now
        ]

    def _recover(self, topic: str, group: Group, recovery: Recovery, plan: RecoveryPlan, url: str) -> None:
        shun_s = FAILED_SHUN_S
        try:
            if not is_committed(self._data_directory, group.directory_name):
                self._copy(topic, group, recovery, plan.source, url)
            self._install(topic)
            _log.info("recovered from files", group=group.name, source=plan.source, bytes=recovery.bytes_total)
            return
        except TransferStopped:
            return
        except SourceCorrupt as error:
            shun_s = CORRUPT_SHUN_S
            recovery.failed(f"{plan.source}: {error}")
        except (HeadraceError, OSError) as error:
            recovery.failed(f"{plan.source}: {error}")
        except Exception as error:
            recovery.failed(f"{plan.source}: {error!r}")
            _log.exception("recovery failed", group=group.name)
        finally:
            self._busy.discard(topic)
        self._shunned_until_s[topic, plan.source] = time.monotonic() + shun_s
        _log.warning("copy not complete", group=group.name, source=plan.source, reason=recovery.reason)

    def _copy(self, topic: str, group: Group, recovery: Recovery, source: str, url: str) -> None:
        """Fetch, verify, check that the log still joins on, and decide for the copy."""
        directory = self._data_directory / RECOVERING / group.directory_name
        _log.info("copying files", group=group.name, source=source)
        recovery.copies_from(source)
        snapshot = fetch(self._source(url, group.name), directory, recovery)
        if (snapshot.group, snapshot.topic_id) != (group.name, self._topic_ids[topic]):
            raise SourceCorrupt(f"the snapshot is of group {snapshot.group} in topic {snapshot.topic_id}")
        check_copy(directory, snapshot)
        begin = self._log.describe(topic).begin
        if snapshot.offset + 1 < begin:
            raise SourceFailed(
                f"the copy ends at offset {snapshot.offset} and the log begins at {begin} by now", retriable=True
            )
        commit_copy(self._data_directory, group.directory_name)


def check_copy(directory: Path, snapshot: Snapshot) -> None:
    """Open the copy as a store and compare it with its listing. Raises SourceCorrupt."""
    try:
        store = Store.open(directory, snapshot.group)
    except StoreDamaged as error:
        raise SourceCorrupt(f"the copy cannot be opened: {error}") from error
    try:
        state = GroupState.from_bytes(store.state) if store.state is not None else GroupState()
        found = {entry.name: (entry.size_bytes, entry.file_digest) for entry in store.segments()}
        prefix = f"{PARTS[0]}/{store.segments_directory.name}/"
    finally:
        store.close()
    listed = {
        file.path.removeprefix(prefix): (file.size_bytes, file.digest)
        for file in snapshot.files
        if file.path.startswith(prefix)
    }
    if (state.version, state.offset, state.chain.hex()) != (snapshot.version, snapshot.offset, snapshot.chain):
        raise SourceCorrupt(
            f"the index is of version {state.version} at offset {state.offset}, the listing says {snapshot.version} at {snapshot.offset}"
        )
    if found != listed:
        raise SourceCorrupt("the segments of the index are not those of the listing")
