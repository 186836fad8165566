"""All groups of the cluster as one TableSource: those that are in sync here, and the others from their members.

Which groups are read here is decided once for each query, by its fence, and so is the slot table under which all of
them are read. A group that is here and not in sync is read from another member, like one that is not here: it does not
stop answers that others can give.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace

from headrace.connectors.clock import Moment
from headrace.connectors.deadline import Deadline
from headrace.consumers.query.ended_groups import EndedGroups, Gone, GroupTopics
from headrace.consumers.query.fragments import Fragment, FragmentScans, FragmentSource
from headrace.consumers.query.group_scans import GroupScan
from headrace.consumers.query.hand_overs import HandOvers, Positions, Required, missing
from headrace.consumers.query.late_groups import LateGroups, show_lacking
from headrace.consumers.query.local_fence import LocalFence
from headrace.consumers.query.local_source import LocalSource, refusal_of
from headrace.consumers.query.log_names import GROUP_NAMES, LogNames
from headrace.consumers.query.planner import ScanPlan
from headrace.consumers.query.query_errors import GroupUnavailable, NotCaughtUp, NotReady, QueryTimeout, SlotsMoved
from headrace.consumers.query.remote_rows import Placement, RemoteRows, RemoteScan, check_time, discard
from headrace.consumers.query.shared_timer import SharedTimer
from headrace.consumers.query.stale_reads import not_ready
from headrace.consumers.query.table_names import Tables
from headrace.consumers.query.table_read import TableRead
from headrace.consumers.query.table_source import ReadFence, Reading, TableExtent
from headrace.consumers.scheduling.driver import BlockedOn
from headrace.schemas.group_changes import BEGINNING, GroupKey
from headrace.schemas.group_names import FIRST_BIRTH, group_name, parse_group
from headrace.schemas.tables import TableSchema

LOOK_WAIT_S = 0.5
LOOK_PAUSE_S = 0.02
FETCHES_MAX = 16
"""Groups of other nodes that all queries fetch at the same time; more wait for a thread."""


class ClusterFence:
    """The ReadFence of one query: that of the groups that are read here, and what is known of the others.

    The query is answered under the slot table `table`, by its groups `keys`. `remote` are the groups to fetch; their
    members check their own fences behind the last row that they send. `wanted` is what groups must have accepted from
    others. `after` has the offsets that the answer contains, and `ended` those of groups that the table has no longer.
    """

    as_of: Moment | None = None

    def __init__(
        self, local: LocalFence, remote: Mapping[str, int], table: Placement, keys: Mapping[str, GroupKey]
    ) -> None:
        """`remote` maps groups to the newest offsets that their members have shown as durable."""
        self.local = local
        self.remote = tuple(remote)
        self.confirmed = {**local.confirmed, **remote}
        self.table = table
        self.keys = keys
        self.wanted: Required = {}
        self.after: dict[str, int] = {}
        self.ended: dict[GroupKey, int] = {}
        self.gone: set[GroupKey] = set()

    def check(self) -> None:
        """See ReadFence. This node must serve, also where all rows are of others: their statuses come to it."""
        self.local.check()

    def require(self, lacking: Mapping[GroupKey, Positions]) -> None:
        """What groups must have accepted when they are read again."""
        for target, positions in lacking.items():
            wanted = self.wanted.setdefault(target, {})
            for origin, position in positions.items():
                wanted[origin] = max(position, wanted.get(origin, BEGINNING))
            if target not in self.keys.values():
                self.ended.setdefault(target, -1)


class ClusterSource:
    """See TableSource: every row of the cluster, at any node."""

    def __init__(
        self,
        local: LocalSource,
        remote: RemoteRows,
        topics: GroupTopics,
        look_soon: Callable[[], None] = lambda: None,
        names: LogNames = GROUP_NAMES,
    ) -> None:
        """`look_soon` reads the membership log."""
        self.remote = remote
        self._local = local
        self._ended = EndedGroups(local, remote, topics)
        self._look_soon = look_soon
        self._names = names
        self._late = LateGroups(0, ())
        self._threads = ThreadPoolExecutor(FETCHES_MAX, thread_name_prefix="remote-scan")

    def close(self) -> None:
        """Fetch no more. Fetches that run end with their queries."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def use_table(self, table: Placement) -> None:
        """Read under a newer slot table from now on. Queries wait for its groups until each has served once."""
        if table.version > self.remote.placement.version:
            # First: no query sees the table without knowing that its groups may be late.
            self._late = LateGroups(table.version, _keys(table))
        self.remote.placement = table

    def note_ended(self, ended: Iterable[GroupKey]) -> None:
        """The groups that have ended and may have a topic still, by the membership log, in the order of their ends."""
        self._ended.note(ended)

    def fence(self, stale_s: float = 0.0, timeout_s: float = 0.0, awaited: dict[str, str] | None = None) -> ReadFence:
        """See TableSource. An older answer is given only by a node that holds every group."""
        deadline = Deadline(timeout_s)
        while True:
            # One table for the whole query, whatever the node follows meanwhile.
            table = self.remote.placement
            keys = _keys(table)
            try:
                return self._fence_under(table, keys, stale_s)
            except NotReady:
                # Under a newer table other groups count, and others serve them.
                if self.remote.placement is not table:
                    continue
                if deadline.passed() or self._local.state.refusals():
                    raise
                lacking = self._served(table, keys)[2]
                if not self._late.waits_for(table.version, lacking):
                    raise
                show_lacking(lacking, awaited)
            time.sleep(min(LOOK_PAUSE_S, deadline.left_s()))

    def _fence_under(self, table: Placement, keys: Mapping[str, GroupKey], stale_s: float) -> ReadFence:
        absent = self._absent(keys)
        try:
            return self._fence(table, keys, whole=not absent)
        except NotReady as error:
            if not stale_s:
                raise
            if absent:
                # What others held at a moment cannot be known here, and a part of the rows is no answer.
                raise NotReady.because(
                    [error.message, f"an older answer would lack {_groups(absent)}, which this node does not hold"]
                ) from error
        fence = self._local.stale_fence(stale_s)
        self._check_stale(table, fence)
        return fence

    def _absent(self, names: Iterable[str]) -> list[str]:
        """The groups that are not here."""
        here = {group.key for group in list(self._local.groups.values())}
        return [name for name in names if name not in here]

    def _check_stale(self, table: Placement, fence: ReadFence) -> None:
        """Raises NotReady while slots change hands: an older answer would have rows twice, or lack some."""
        assert fence.as_of is not None, "an older answer without its moment"
        groups = list(self._local.groups.values())
        reached = {group.applied.changes.settled_version for group in groups}
        reached |= {group.decided.proven_version for group in groups}
        read = {group.birth_key: HandOvers.of(group.applied.changes) for group in groups}
        # Nobody can be asked what a group that is gone has handed over. It was in the logs of others before its end.
        present, moment = _keys(table).values(), fence.as_of
        lacking = [key for key in missing(read) if key in present or not self._ended.was_over(key, moment)]
        if (table.version and reached - {table.version}) or lacking:
            raise NotReady.because(["slots change hands, and an older answer would not have their rows exactly once"])

    def _fence(self, table: Placement, keys: Mapping[str, GroupKey], *, whole: bool) -> ClusterFence:
        """`whole`: all groups are here, so that an older answer is a way out. Raises NotReady."""
        state = self._local.state
        reasons, topics, remote = list(state.refusals()), list[str](), dict[str, int]()
        if not reasons:
            topics, remote, lacking = self._served(table, keys)
            reasons = list(lacking.values())
        if reasons:
            raise not_ready(state, reasons) if whole else NotReady.because(reasons)
        return ClusterFence(LocalFence(self._local.groups, state, topics, table.version), remote, table, keys)

    def _served(
        self, table: Placement, keys: Mapping[str, GroupKey]
    ) -> tuple[list[str], dict[str, int], dict[str, str]]:
        """The topics of the groups to read here, the newest durable offset of those of others, and why some lack."""
        # A group that the slot table has no longer is on its way out.
        here = {group.key: topic for topic, group in list(self._local.groups.items()) if group.key in keys}
        topics, remote, lacking = list[str](), dict[str, int](), dict[str, str]()
        for name, key in keys.items():
            refusal = refusal_of(self._local.state, here[name]) if name in here else self.remote.absence(key)
            if not refusal:
                topics.append(here[name])
            elif serving := self.remote.serving(key.group):
                remote[name] = max(each.durable_offset for each in serving)
            else:
                lacking[name] = refusal
        self._late.note(table.version, keys.keys() - lacking.keys())
        return topics, remote, lacking

    def tables(self) -> Sequence[tuple[str, str]]:
        """See TableSource. A node that does not hold every group lists dropped tables as well."""
        # Others may have rows that were written since the drop, and a table that is missing here would be an error
        # for the client that wrote them.
        return self._local.known_tables() if self._absent(_keys(self.remote.placement)) else self._local.tables()

    def schema(self, database: str, table: str) -> TableSchema:
        """See TableSource."""
        return self._local.schema(database, table)

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
        reading: Reading,
    ) -> Sequence[GroupScan]:
        """See TableSource. The groups of other nodes are fetched at once, while those here are scanned."""
        wanted = {tag: tuple(values) for tag, values in (tags or {}).items()}
        chosen = None if columns is None else tuple(columns)
        newest = None if newest is None else tuple(newest)
        plan = ScanPlan(chosen, start_ns, end_ns, wanted, newest=newest)
        scans = self._read(TableRead(self.schema(database, table), plan), reading)
        return [*scans.local, *scans.remote]

    @property
    def node(self) -> str:
        """See FragmentSource."""
        return self.remote.node

    def fragments(self, fence: ReadFence, *, always: bool = False, hourly: Tables = ()) -> FragmentSource | None:
        """See TableSource."""
        has_remote = isinstance(fence, ClusterFence) and fence.remote
        return self if always or has_remote or self._local.has_rollups(hourly) else None

    def scan_fragment(self, fragment: Fragment, reading: Reading) -> FragmentScans:
        """See FragmentSource."""
        return self._read(TableRead.of(fragment), reading)

    def _read(self, read: TableRead, reading: Reading) -> FragmentScans:
        fence = reading.fence
        if not isinstance(fence, ClusterFence):
            scans = read.scanned(self._local, reading)
            with ExitStack() as opened:
                for each in scans:
                    opened.push(each)
                self._check_stale(self.remote.placement, fence)
                opened.pop_all()
            return FragmentScans(scans, ())
        self._contain(fence, reading.after)
        while True:
            self._await_local(fence, reading)
            try:
                found = self._scan(fence, read, reading)
            except (GroupUnavailable, QueryTimeout) as error:
                if beyond := self.beyond(reading):
                    raise NotCaughtUp.to(beyond) from error
                raise
            if found is not None:
                return found
            check_time(reading.timer)

    def beyond(self, reading: Reading) -> Mapping[str, int]:
        """See TableSource."""
        fence, here = reading.fence, self._local.beyond(_here(reading))
        if not isinstance(fence, ClusterFence):
            return here
        reached = {
            name: max((each.durable_offset for each in self.remote.serving(fence.keys[name].group)), default=offset)
            for name in fence.remote
            if (offset := reading.after.get(name, -1)) >= 0
        }
        elsewhere = {name: reading.after[name] for name, offset in reached.items() if offset < reading.after[name]}
        return {**here, **elsewhere}

    def _await_local(self, fence: ClusterFence, reading: Reading) -> None:
        """Wait for what groups here must have accepted, also from each other. Raises NotCaughtUp."""
        fence.require(missing({group.birth_key: HandOvers.of(group.applied.changes) for group in fence.local.groups}))
        wanted = {group_name(key): positions for key, positions in fence.wanted.items()}

        def waited(timeout_s: float) -> bool:
            """Whether the groups here have come so far."""
            deadline = Deadline(timeout_s)
            return self._local.wait(fence.local, fence.after, timeout_s) and self._local.wait_accepted(
                fence.local, wanted, deadline.left_s()
            )

        if waited(0.0):
            return
        behind = self._local.behind(fence.local, fence.after, wanted)
        reading.timer.awaited.update(behind)
        with reading.waits.outside(BlockedOn.LOG):
            arrived = waited(reading.timer.left_s)
        if not arrived:
            check_time(reading.timer)
            raise NotCaughtUp.with_moved_rows()
        for name in behind:
            reading.timer.awaited.pop(name, None)

    def _scan(self, fence: ClusterFence, wanted: TableRead, reading: Reading) -> FragmentScans | None:
        """The scans of all groups; None if one of them had not accepted yet what another one had handed over."""
        fetches, timer = dict[GroupKey, Future[RemoteScan]](), SharedTimer(reading.timer)
        with ExitStack() as opened:
            opened.callback(discard, fetches.values())
            opened.callback(timer.abandon)
            for name in fence.remote:
                key = fence.keys[name]
                request = wanted.request(key, fence.table.version, fence.after.get(name, -1), fence.wanted.get(key, {}))
                fetches[key] = self._threads.submit(self.remote.scan, request, wanted.wire(), timer)
            # Before the rows are read: they have at least what was accepted by now.
            read = {group.birth_key: HandOvers.of(group.applied.changes) for group in fence.local.groups}
            after, ended = fence.after.copy(), fence.ended.copy()
            read |= self._ask_ended(fence, wanted, reading)
            scans = [opened.enter_context(scan) for scan in wanted.scanned(self._local, _here(reading))]
            if fetches:
                with reading.waits.outside(BlockedOn.REMOTE):
                    read |= {key: fetch.result().hand_overs for key, fetch in fetches.items()}
            lacking = {target: each for target, each in missing(read).items() if target not in fence.gone}
            if lacking or after != fence.after or ended != fence.ended:
                fence.require(lacking)
                return None
            # From here the caller closes them; an error before this line closes those that are open.
            opened.pop_all()
        return FragmentScans(scans, [fetch.result() for fetch in fetches.values()])

    def _contain(self, fence: ClusterFence, after: Mapping[str, int]) -> None:
        """The answer contains these offsets, and what groups that are gone have left to others. Raises SlotsMoved."""
        for name, offset in after.items():
            if name in fence.keys:
                fence.after[name] = max(offset, fence.after.get(name, -1))
                continue
            header, birth = parse_group(name)
            key, version = GroupKey(header, birth or FIRST_BIRTH), fence.table.version
            if key.birth > version:
                # It has not ended, it is new: the client has written by a table that this node has not read.
                raise SlotsMoved.to(name, key.birth, version)
            if key not in fence.ended and (gone := self._ended.gone(key)) is not None:
                fence.ended[key] = offset
                self._contain(fence, gone.ends)
            fence.ended[key] = max(offset, fence.ended.get(key, -1))

    def _ask_ended(self, fence: ClusterFence, wanted: TableRead, reading: Reading) -> dict[GroupKey, HandOvers]:
        """What the groups that the table has no longer have handed over, as far as the answer depends on it."""
        found = dict[GroupKey, HandOvers]()
        plain = TableRead(wanted.schema, wanted.plan)
        for key, offset in list(fence.ended.items()):
            request = plain.request(key, 0, offset, fence.wanted.get(key, {}))
            known = self._ended.hand_overs(key, request, wanted.schema, reading.timer, fence.keys.values())
            if isinstance(known, Gone):
                fence.gone.add(key)
                self._contain(fence, known.ends)
            else:
                found[key] = known
        return found

    def extent(self, database: str, table: str) -> TableExtent | None:
        """See TableSource: of any group, since all have rows of all times."""
        return self._local.extent(database, table)

    def wait_for(self, reading: Reading) -> bool:
        """See TableSource."""
        return self._local.wait_for(_here(reading))

    def named(self, after: Mapping[str, int]) -> Mapping[str, int]:
        """See TableSource."""
        return self._names.groups(after, self.remote.placement)

    def plans_again(self, fence: ReadFence, timeout_s: float) -> bool:
        """See TableSource."""
        if not isinstance(fence, ClusterFence) or timeout_s <= 0:
            return False
        self._look_soon()
        deadline = Deadline(min(timeout_s, LOOK_WAIT_S))
        while self.remote.placement.version == fence.table.version and not deadline.passed():
            time.sleep(min(LOOK_PAUSE_S, deadline.left_s()))
        return True


def _here(reading: Reading) -> Reading:
    """The reading as the groups of this node see it."""
    fence = reading.fence
    return replace(reading, fence=fence.local) if isinstance(fence, ClusterFence) else reading


def _keys(table: Placement) -> dict[str, GroupKey]:
    """The groups of a slot table by name."""
    return {group_name(key): key for key in (GroupKey(each, table.birth(each)) for each in table.headers)}


def _groups(names: Sequence[str]) -> str:
    return f"group {names[0]}" if len(names) == 1 else f"groups {', '.join(names)}"
