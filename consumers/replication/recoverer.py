"""Recovers groups from the files of another member: those whose log no longer holds what they need, that are far behind, or that hold what the log
does not say (docs/internals/recovery.md).

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
from consumers.replication.arbiter import read_chain
from consumers.replication.group import Group
from consumers.replication.progress import Recovery
from consumers.replication.recovery import Costs, Need, RecoveryPlan, Way, plan_recovery
from consumers.replication.sources import HttpSource, chain_of_member
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
    commit_nothing,
    fetch,
    is_committed,
)
from consumers.replication.turns import Turns
from consumers.store import Store, StoreDamaged
from schemas.errors import HeadraceError
from schemas.records import Status

TURN_S = 0.5
FAILED_SHUN_S = 2.0
CORRUPT_SHUN_S = 600.0
_log = structlog.get_logger(__name__)


class Recoverer:
    """The threads of it. `begin` may be called by any thread."""

    def __init__(
        self,
        log: Log,
        node: str,
        data_directory: Path,
        groups: Mapping[str, Group],
        topic_ids: Mapping[str, str],
        live: Callable[[str, Sequence[str]], list[Status]],
        durable_offset: Callable[[str], int],
        behind: Callable[[str], bool],
        install: Callable[[str], None],
        resume: Callable[[str], None],
        leave: Callable[[str], None],
        at_once_max: int,
        bytes_per_second: int,
        source: Callable[[str, str], Source] = HttpSource,
        chain_of: Callable[[str, str, int], bytes | None] = chain_of_member,
        costs: Costs | None = None,
    ) -> None:
        """`behind(topic)`: whether a group has not reached the end of its log yet. `install(topic)` puts a committed copy in the place of the group's
        store, `resume(topic)` lets it follow its log again, `leave(topic)` is told that it stops following."""
        self._log = log
        self._node = node
        self._data_directory = data_directory
        self._groups = groups
        self._topic_ids = topic_ids
        self._live = live
        self._durable_offset = durable_offset
        self._behind = behind
        self._install = install
        self._resume = resume
        self._leave = leave
        self._at_once_max = at_once_max
        self._bytes_per_second = bytes_per_second
        self._source = source
        self._chain_of = chain_of
        self._costs = costs or Costs()
        self._recoveries: dict[str, Recovery] = {}
        self._claimed: set[str] = set()
        self._copying: set[str] = set()
        self._claiming = threading.Lock()
        self._shunned_until_s: dict[tuple[str, str], float] = {}
        self._turns = Turns("recoveries", TURN_S, self._look_after_all)
        self._pool = ThreadPoolExecutor(at_once_max, thread_name_prefix="recover")

    def start(self) -> None:
        """Begin to look after groups that wait."""
        self._turns.start()

    def stop(self) -> None:
        """Stop; copies go on at the next start of the node."""
        self._turns.stop()
        self._pool.shutdown(wait=True)

    def begin(self, topic: str, why: str, *, wrong: bool = False, trusted: frozenset[str] | None = None) -> None:
        """From now on a group recovers. `wrong`: what it holds is not what the log says, and nothing of it counts; see Need for `trusted`."""
        group = self._groups[topic]
        if group.recovery is not None and (group.recovery.wrong or not wrong):
            return
        _log.warning("group recovers", group=group.name, why=why)
        recovery = self._recoveries[topic] = Recovery(why, wrong, trusted, self._turns.stopping, self._bytes_per_second)
        group.recovery = recovery
        self._leave(topic)

    def claim(self, topic: str) -> bool:
        """Take a group in hand, alone: nobody else decides on its recovery, or replaces it, until `release`. False when somebody has it."""
        with self._claiming:
            if topic in self._claimed:
                return False
            self._claimed.add(topic)
            return True

    def release(self, topic: str) -> None:
        """Give up a claim."""
        with self._claiming:
            self._claimed.discard(topic)

    def _look_after_all(self) -> None:
        for topic in list(self._groups):
            if len(self._copying) >= self._at_once_max or not self.claim(topic):
                continue
            copies = False
            try:
                copies = self._look_after(topic, self._groups[topic])
            except HeadraceError as error:
                self._trouble(topic, str(error))
            finally:
                if not copies:
                    self.release(topic)

    def _trouble(self, topic: str, trouble: str) -> None:
        if (recovery := self._recoveries.get(topic)) is not None:
            recovery.failed(trouble)

    def _look_after(self, topic: str, group: Group) -> bool:
        """Whether a copy was begun, which keeps the claim until it ends."""
        recovery = self._recoveries.get(topic)
        if recovery is None or group.recovery is not recovery:
            if group.follows and self._behind(topic):
                self._consider(topic, group)
            return False
        live = self._sources(topic, group)
        plan = plan_recovery(self._need(topic, group, recovery), live, self._costs)
        committed = is_committed(self._data_directory, group.directory_name)
        if committed or plan.way in (Way.FILES, Way.REBUILD):
            self._copying.add(topic)
            url = next((status.http for status in live if status.node == plan.source), "")
            self._pool.submit(self._recover, topic, group, recovery, plan, url)
            return True
        if plan.way is Way.LOG:
            self._resume(topic)
        else:
            recovery.waits(plan.reason)
        return False

    def _consider(self, topic: str, group: Group) -> None:
        """A group that reads its log on may have a shorter way."""
        plan = plan_recovery(self._need(topic, group, None), self._sources(topic, group), self._costs)
        if plan.way is Way.FILES:
            self.begin(topic, plan.reason)

    def _need(self, topic: str, group: Group, recovery: Recovery | None) -> Need:
        begin, applied = self._log.describe(topic).begin, group.applied
        return Need(
            node=self._node,
            next_offset=self._durable_offset(topic) + 1,
            log_begin=begin,
            version=applied.version,
            log_bytes=applied.log_bytes,
            wrong=recovery is not None and recovery.wrong,
            trusted=recovery.trusted if recovery is not None else None,
            whole=group.log_is_whole(begin),
        )

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
                if plan.way is Way.REBUILD:
                    commit_nothing(self._data_directory, group.directory_name)
                else:
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
            self._copying.discard(topic)
            self.release(topic)
        self._shunned_until_s[topic, plan.source] = time.monotonic() + shun_s
        _log.warning("copy not complete", group=group.name, source=plan.source, reason=recovery.reason)

    def _copy(self, topic: str, group: Group, recovery: Recovery, source: str, url: str) -> None:
        """Fetch, verify, check that the log still joins on, and decide for the copy."""
        directory = self._data_directory / RECOVERING / group.directory_name
        _log.info("copying files", group=group.name, source=source)
        recovery.copies_from(source)
        snapshot = fetch(self._source(url, group.name), directory, recovery, own=self._data_directory)
        if (snapshot.group, snapshot.topic_id) != (group.name, self._topic_ids[topic]):
            raise SourceCorrupt(f"the snapshot is of group {snapshot.group} in topic {snapshot.topic_id}")
        check_copy(directory, snapshot)
        self._compare(topic, group, snapshot, source)
        begin = self._log.describe(topic).begin
        if snapshot.offset + 1 < begin:
            raise SourceFailed(
                f"the copy ends at offset {snapshot.offset} and the log begins at {begin} by now", retriable=True
            )
        commit_copy(self._data_directory, group.directory_name)

    def _compare(self, topic: str, group: Group, snapshot: Snapshot, source: str) -> None:
        """The source may be wrong without knowing it: ask the log where it is whole, else another member that is not known to be wrong. Raises
        SourceCorrupt, and SourceFailed while it is not settled who is wrong."""
        if group.log_is_whole(self._log.describe(topic).begin):
            chain = read_chain(self._log, topic, snapshot.version, self._turns.stopping.is_set)
            if chain is not None and chain.hex() != snapshot.chain:
                raise SourceCorrupt(f"its chain at version {snapshot.version} is not that of the log")
            return
        for status in self._live(group.name, group.members):
            if status.node not in (self._node, source) and status.durable_offset >= 0 and status.http:
                chain = self._chain_of(status.http, group.name, snapshot.version)
                if chain is not None and chain.hex() != snapshot.chain:
                    words = f"its chain at version {snapshot.version} is not that of {status.node}"
                    raise SourceFailed(words, retriable=True)


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
