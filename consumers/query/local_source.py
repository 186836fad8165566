"""The tables of this node: the stores of its groups as one source of rows."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import TYPE_CHECKING, Protocol

from headrace.connectors.deadline import Deadline
from headrace.consumers.query.group_scans import Conditions, GroupScan, open_scan
from headrace.consumers.query.hand_overs import Positions
from headrace.consumers.query.local_fence import LocalFence, ServingState
from headrace.consumers.query.query_errors import NotReady, SlotNotHeld, SlotsMoved
from headrace.consumers.query.stale_reads import StaleFence
from headrace.consumers.query.table_names import TableKey
from headrace.consumers.query.table_source import ReadFence, Reading, TableExtent
from headrace.consumers.query.touched_slots import touched
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import State
from headrace.consumers.replication.group_registry import GroupNotHere
from headrace.consumers.scheduling.driver import BlockedOn
from headrace.consumers.store import FormerRows, ScanRequest, StoreRetired, TableMetadata, TableUnknown
from headrace.consumers.store.rollup_columns import RollupRequest
from headrace.consumers.store.segment import SegmentEntry
from headrace.schemas.group_changes import BEGINNING, GroupKey
from headrace.schemas.group_names import FIRST_BIRTH, group_name, parse_group
from headrace.schemas.tables import Catalogue, TableSchema

if TYPE_CHECKING:
    from headrace.consumers.query.fragments import FragmentSource

ROLLUP_TABLE_ROWS_MIN = 200_000  # Sealed rows of a statement: fewer are read sooner than it is divided.
SLOTS_SHOWN = 5
"""Slots that an error names."""


class PulledSlots(Protocol):
    """Which data of slots that groups here have gained is still on its way; implemented by the puller of files."""

    def pulling(self, group: str) -> frozenset[int]:
        """The slots of a group here whose data has not all arrived; empty when no change runs.

        It has a gained slot from the moment on at which the group is settled at the table that gives it the slot.
        """
        ...

    def wait_until_pulled(self, group: str, slots: Collection[int], timeout_s: float) -> bool:
        """Whether the data of these slots arrives in time; they come first meanwhile."""
        ...

    def former_rows(
        self, group: str, slots: Collection[int], metadata: TableMetadata, request: ScanRequest, timeout_s: float
    ) -> FormerRows | None:
        """What former holders of these slots have for a scan; None where the data must be waited for."""
        ...


class NothingPulled:
    """The PulledSlots of a node that takes no data from others."""

    def pulling(self, group: str) -> frozenset[int]:
        """See PulledSlots."""
        del group
        return frozenset()

    def wait_until_pulled(self, group: str, slots: Collection[int], timeout_s: float) -> bool:
        """See PulledSlots."""
        del group, slots, timeout_s
        return True

    def former_rows(
        self, group: str, slots: Collection[int], metadata: TableMetadata, request: ScanRequest, timeout_s: float
    ) -> FormerRows | None:
        """See PulledSlots."""
        del group, slots, metadata, request, timeout_s
        return None


class LocalSource:
    """The tables of this node: the stores of its groups as one TableSource. It has the rows of those groups only."""

    def __init__(self, groups: Mapping[str, Group], catalogue: Catalogue, state: ServingState) -> None:
        """`groups` by forward topic; a group that recovers is replaced there."""
        self.pulled: PulledSlots = NothingPulled()
        self.groups = groups
        self.state = state
        self._catalogue = catalogue

    def fence(self, stale_s: float = 0.0, timeout_s: float = 0.0, awaited: dict[str, str] | None = None) -> ReadFence:
        """See TableSource."""
        del timeout_s, awaited
        try:
            return LocalFence(self.groups, self.state)
        except NotReady:
            if not stale_s:
                raise
        return self.stale_fence(stale_s)

    def stale_fence(self, stale_s: float) -> ReadFence:
        """The fence of an answer that is at most `stale_s` old. Raises NotReady."""
        reasons = [refusal_of(self.state, topic) for topic in list(self.groups)]
        return StaleFence(
            self.groups, self.state, stale_s, [*self.state.refusals()] or [reason for reason in reasons if reason]
        )

    def tables(self) -> Sequence[tuple[str, str]]:
        """See TableSource: every table of the schema log, also one without rows, unless it was dropped."""
        return [key for key in sorted(self._catalogue.tables) if not self._is_gone(*key)]

    def has_rollups(self, tables: Collection[TableKey]) -> bool:
        """Whether rollups in the place of files may save more than it costs to divide a statement for them."""
        stores = [group.store for group in list(self.groups.values()) if group.store.rollups.enabled] if tables else []
        rows = sum(each.rows for store in stores for each in store.segments() if (each.database, each.table) in tables)
        return bool(stores) and rows >= ROLLUP_TABLE_ROWS_MIN

    def known_tables(self) -> Sequence[tuple[str, str]]:
        """Every table of the schema log, dropped ones among them."""
        return sorted(self._catalogue.tables)

    def _is_gone(self, database: str, table: str) -> bool:
        """Whether a table was dropped and nobody has written to it since.

        By its rows and not by the table log alone: a writer that was connected all the time adds no record there.
        """
        if not self._catalogue.is_dropped(database, table):
            return False
        return all(group.store.is_empty(database, table) for group in list(self.groups.values()))

    def schema(self, database: str, table: str) -> TableSchema:
        """See TableSource."""
        return self._catalogue.newest(database, table)

    def scan(
        self,
        database: str,
        table: str,
        *,
        columns: Sequence[str] | None,
        start_ns: int | None,
        end_ns: int | None,
        tags: Mapping[str, Sequence[str]] | None,
        newest: Sequence[str] | None = None,
        rollup: RollupRequest | None = None,
        reading: Reading,
    ) -> Sequence[GroupScan]:
        """See TableSource. With `rollup` scans may have rollups in the place of files.

        Raises NotReady while the data of slots that it may read has not arrived.
        """
        scans: list[GroupScan] = []
        fence, wanted = reading.fence, Conditions(database, table, columns, start_ns, end_ns, tags, newest, rollup)
        with ExitStack() as opened:
            for group in self._groups_of(fence):
                # Rows are routed by series, so a group that got no series of a table does not know it.
                try:
                    scan = self._opened(group, wanted, reading)
                except TableUnknown:
                    continue
                except StoreRetired as error:
                    raise SlotNotHeld.left(group.name) from error
                scans.append(opened.enter_context(scan))
                # Behind it: what was opened has the rows of this moment, or of one before it.
                self._check_table(group, fence)
            # From here the caller closes them; an error before this line closes those that are open.
            opened.pop_all()
        return scans

    def fragments(
        self, fence: ReadFence, *, always: bool = False, hourly: Sequence[TableKey] = ()
    ) -> FragmentSource | None:
        """See TableSource: all rows are here."""
        del fence, always, hourly
        return None

    def extent(self, database: str, table: str) -> TableExtent | None:
        """See TableSource."""
        schema, entries = self._catalogue.databases.get(database), list[SegmentEntry]()
        for group in list(self.groups.values()):
            with suppress(TableUnknown):
                entries += group.store.segments_of(database, table)
        if not entries or schema is None:
            return None
        return TableExtent(
            min(each.min_time_ns for each in entries),
            max(each.max_time_ns for each in entries),
            sum(each.rows for each in entries),
            schema.slice_ns,
        )

    def wait_for(self, reading: Reading) -> bool:
        """See TableSource."""
        return self.wait(reading.fence, reading.after, reading.timer.left_s)

    def wait(self, fence: ReadFence, after: Mapping[str, int], timeout_s: float) -> bool:
        """Whether the groups of a fence reach its slot table, and their offsets, in time.

        Raises SlotNotHeld for one that leaves, or has a newer table.
        """
        deadline, version = Deadline(timeout_s), fence.table_version if isinstance(fence, LocalFence) else 0
        for group in self._groups_of(fence):

            def reached(group: Group = group) -> bool:
                applied = group.applied
                return applied.offset >= after.get(group.key, -1) and (
                    not version or applied.changes.settled_version >= version
                )

            if not group.wait_for(reached, deadline.left_s()):
                if group.health.holds(State.LEAVING):
                    raise SlotNotHeld.left(group.name)
                return False
            self._check_table(group, fence)
        return True

    def wait_accepted(self, fence: ReadFence, wanted: Mapping[str, Positions], timeout_s: float) -> bool:
        """Whether the groups of a fence accept in time what others hand over to them, by group and origin."""
        deadline = Deadline(timeout_s)
        waiting = ((group, wanted[group.key]) for group in self._groups_of(fence) if wanted.get(group.key))
        return all(group.wait_for(partial(_has_accepted, group, each), deadline.left_s()) for group, each in waiting)

    def behind(self, fence: LocalFence, after: Mapping[str, int], wanted: Mapping[str, Positions]) -> dict[str, str]:
        """What `wait` and `wait_accepted` wait for, by group."""
        found = dict[str, str]()
        for group in self._groups_of(fence):
            applied, positions = group.applied, wanted.get(group.key, {})
            if applied.changes.settled_version < fence.table_version:
                found[group.key] = f"group {group.name}: slot table {fence.table_version} in its log"
            elif applied.offset < after.get(group.key, -1):
                found[group.key] = f"group {group.name}: offset {after[group.key]} of its log"
            elif not _has_accepted(group, positions):
                givers = ", ".join(sorted({origin.group for origin in positions}))
                found[group.key] = f"group {group.name}: what {givers} hands over to it"
        return found

    def _check_table(self, group: Group, fence: ReadFence) -> None:
        version = fence.table_version if isinstance(fence, LocalFence) else 0
        proven = group.decided.proven_version
        if version and proven > version:
            raise SlotsMoved.to(group.name, proven, version)

    def _opened(self, group: Group, wanted: Conditions, reading: Reading) -> GroupScan:
        """The scan of one group, with what former holders have of slots whose data has not arrived.

        Where these do not give it, their data is waited for; for that only, and before that of others.
        """
        slots, schema = self.pulled.pulling(group.name), self._catalogue.databases.get(wanted.database)
        if slots and schema is not None:
            slots = touched(slots, group.applied.changes.slots_total, schema, wanted.start_ns, wanted.end_ns)
        if not slots or schema is None:
            return open_scan(group, wanted)
        with reading.waits.outside(BlockedOn.FILE):
            metadata = TableMetadata(schema, self._catalogue.newest(wanted.database, wanted.table))
            former = self.pulled.former_rows(group.name, slots, metadata, wanted.request, reading.left_s)
        if former is not None:
            return open_scan(group, wanted, former)
        shown = ", ".join(map(str, sorted(slots)[:SLOTS_SHOWN]))
        more = f" and {len(slots) - SLOTS_SHOWN} more" if len(slots) > SLOTS_SHOWN else ""
        reading.timer.awaited[group.key] = f"group {group.name}: the data of slots {shown}{more}"
        with reading.waits.outside(BlockedOn.FILE):
            has_arrived = self.pulled.wait_until_pulled(group.name, slots, reading.left_s)
        reading.timer.awaited.pop(group.key, None)
        if not has_arrived:
            raise NotReady.because([f"group {group.name} still receives the data of slots {shown}{more}"])
        return open_scan(group, wanted)

    def named(self, after: Mapping[str, int]) -> Mapping[str, int]:
        """See TableSource."""
        pairs = ((parse_group(name), offset) for name, offset in after.items())
        return {group_name(GroupKey(header, birth or FIRST_BIRTH)): offset for (header, birth), offset in pairs}

    def beyond(self, reading: Reading) -> Mapping[str, int]:
        """See TableSource."""
        return {
            group.key: offset
            for group in self._groups_of(reading.fence)
            if group.applied.offset < (offset := reading.after.get(group.key, -1))
        }

    def plans_again(self, fence: ReadFence, timeout_s: float) -> bool:
        """See TableSource."""
        del fence, timeout_s
        return False

    def _groups_of(self, fence: ReadFence) -> Sequence[Group]:
        """The groups that a fence is of: never others, whose data nobody would check at the end."""
        return fence.groups if isinstance(fence, LocalFence) else list(self.groups.values())


def _has_accepted(group: Group, wanted: Positions) -> bool:
    accepted = group.applied.changes.accepted
    return all(accepted.get(origin, BEGINNING) >= position for origin, position in wanted.items())


def refusal_of(state: ServingState, topic: str) -> str:
    """Why a group does not serve while the node itself may, also one that went a moment ago."""
    try:
        return state.refusal(topic)
    except GroupNotHere as error:
        return error.message
