"""What the leader of a group does to its files: merges, and drops of slices past the retention of their table.

A member that copies a group gets it as of the newest seal, with all files that are there, and reads the log from that
seal on. So it never needs a file that was merged before it copied, once there is a seal. Behind its copy it reads loads,
whose files it fetches from others for as long as these have them: files are merged behind the seal that follows their
load, and no such seal is appended while a member is behind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from headrace.consumers.replication.group import Group
from headrace.consumers.replication.leader_parts import TableRetention
from headrace.consumers.store import Compaction
from headrace.schemas.group_changes import BarrierPhase
from headrace.schemas.messages import Compact, Drop, Leadership
from headrace.schemas.records import Status
from headrace.schemas.tables import KEEP_FOREVER_NS

# Jobs of a group run in the order of its log, so the next seal waits for all merges of one turn.
COMPACTIONS_MAX = 4
DEFERRED_MERGES_MAX = 100
"""More merges than this wait for no change of members."""


class WaitingCentres(Protocol):
    """The centres that wait for rows of this store; see `consumers.sync.centres`."""

    def planning(self) -> AbstractContextManager[None]:
        """While upkeep is planned and appended, no centre is added: it would not count in the plan."""
        ...

    def progress(self, group: Group) -> int | None:
        """The version up to which every centre has decided about the rows of a group; None without centres."""
        ...


class NoWaitingCentres:
    """A store that sends to nobody."""

    def planning(self) -> AbstractContextManager[None]:
        """See WaitingCentres."""
        return nullcontext()

    def progress(self, _group: Group) -> int | None:
        """See WaitingCentres."""
        return None


def due_upkeep(
    group: Group, leadership: Leadership, tables: TableRetention, now_ns: int, progress: int | None
) -> Iterator[Compact | Drop]:
    """The records to append now. `progress` is that of WaitingCentres."""
    entries = group.store.segments()
    by_name = {entry.name: entry for entry in entries}
    for plan in _due_merges(group)[:COMPACTIONS_MAX]:
        if first := by_name.get(plan.inputs[0]):
            yield Compact(leadership, first.database, first.table, plan.inputs)
    for database, table in sorted({(entry.database, entry.table) for entry in entries}):
        before_ns = expired_before(tables.retention_ns(database, table), now_ns)
        known = group.store.database(database, table)
        if before_ns is None or known is None:
            continue
        if progress is not None and (first_ns := group.store.first_undecided_ns(database, table, progress)) is not None:
            # Older than their retention or not: a row that is dropped before a centre has decided about it never
            # gets there.
            before_ns = min(before_ns, first_ns)
        oldest_ns = min(entry.max_time_ns for entry in entries if (entry.database, entry.table) == (database, table))
        # Whole slices only: a Drop that hides no slice would be a record every five seconds for nothing.
        if oldest_ns < before_ns // known.slice_ns * known.slice_ns:
            yield Drop(leadership, database, table, before_ns)


def expired_before(retention_ns: int | None, now_ns: int) -> int | None:
    """Rows older than this are past their table's retention; None when it keeps everything."""
    return None if retention_ns in (None, KEEP_FOREVER_NS) else now_ns - retention_ns


def is_seal_due(group: Group, live: Sequence[Status]) -> bool:
    """Whether loaded files need a seal: nobody could copy the group, or merges wait for it. `live` are its members.

    After the age of the policy a seal comes anyway, whoever is behind.
    """
    if group.store.loaded_version <= group.store_jobs.sealed_version:
        return False
    if not group.store_jobs.sealed_version:
        return bool(group.store.segments())
    return not _is_moving(group) and all(status.eligible for status in live) and bool(_merges(group)[1])


def _due_merges(group: Group) -> Sequence[Compaction]:
    """The merges to do now: few wait while files of the group are copied ahead, or are on their way."""
    # What a merge replaces would be copied for nothing, and a merge takes the processors from what others wait for.
    # A change may last for hours, and queries must not suffer from it.
    plans, _ = _merges(group)
    return () if _is_moving(group) and len(plans) <= DEFERRED_MERGES_MAX else plans


def _is_moving(group: Group) -> bool:
    return group.applied.changes.phase is BarrierPhase.PRE or bool(group.store.awaited())


def _merges(group: Group) -> tuple[list[Compaction], list[Compaction]]:
    """(the merges of files that are in the newest seal, those that wait for the next one)."""
    sealed_version = group.store_jobs.sealed_version
    fresh = {entry.name for entry in group.store.segments() if entry.loaded_version > sealed_version}
    due, waiting = list[Compaction](), list[Compaction]()
    for plan in group.store.plan_compaction():
        (due if fresh.isdisjoint(plan.inputs) else waiting).append(plan)
    return due, waiting
