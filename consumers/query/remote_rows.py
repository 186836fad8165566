"""Fetches the rows of one group from a member of it that is in sync, another one where the first fails.

The rows are held until their query ends, since DuckDB may read a table several times; only then can a member that
dies in the middle be replaced by another one without a wrong row. `query.remote_mb_max` bounds them.
"""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import pyarrow as pa

from headrace.connectors.deadline import Deadline
from headrace.connectors.http import NodeRefused, NodeUnreachable, request_node
from headrace.consumers.query.hand_overs import HandOvers
from headrace.consumers.query.query_errors import (
    GroupUnavailable,
    QueryCancelled,
    QueryError,
    QueryInvalid,
    QueryMemory,
    QueryTimeout,
    ReplicaLost,
    SlotsMoved,
)
from headrace.consumers.query.scan_figures import ScanFigures
from headrace.consumers.query.scan_request import SCAN_ROUTE, RemoteScanRequest
from headrace.consumers.query.scan_stream import FIGURES, HAND_OVERS, ScanCut, SchemaAhead, error_of, read_scan
from headrace.consumers.query.table_source import ReadTimer
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.group_names import group_name
from headrace.schemas.records import Role, Status
from headrace.schemas.tables import TIME_COLUMN

CONNECT_TIMEOUT_S = 2.0
SILENCE_S = 5.0
"""A member that sends nothing for so long hangs: it sends a mark each second while it computes."""
WAIT_MS_MAX = 10_000
"""How long one member may take to reach the offset that a query must see, before another one is asked."""
PATIENCE_S = 5.0
"""How long all members of a group are asked again: a leader that died is replaced in this time."""
PAUSE_S = 0.1


def _never() -> bool:
    return False


class MemberUnreachable(QueryError):
    """A member that gives no answer at all: its process is gone, stopped, or cut off."""


class Members(Protocol):
    """The members of groups, by their heartbeats; see `consumers.replication.heartbeat.Heartbeat`."""

    def live(self, group: str, members: Iterable[str]) -> list[Status]:
        """The newest statuses of the members of a group that are alive, in the order given."""
        ...

    def holders(self, group: str) -> list[Status]:
        """The newest statuses of every node that is alive and holds a group of this name, a member or not."""
        ...


class Placement(Protocol):
    """Which nodes hold which groups; see `consumers.membership.slot_table.SlotTable`."""

    @property
    def headers(self) -> tuple[str, ...]:
        """All data groups, by the name of their header."""
        ...

    @property
    def version(self) -> int:
        """The version of the slot table; 0: groups are read under whichever they have."""
        ...

    def group(self, header: str) -> tuple[str, ...]:
        """The members of a group."""
        ...

    def birth(self, header: str) -> int:
        """The version of the slot table that had a group first."""
        ...


class Fetch(Protocol):
    """Fetches all rows of a scan from one member; `fetch_rows`, or a test's own."""

    def __call__(
        self, url: str, request: RemoteScanRequest, schema: pa.Schema, timer: ReadTimer, reserve: Callable[[int], None]
    ) -> pa.Table:
        """The rows, or a QueryError."""
        ...


@dataclass(slots=True)
class RemoteStatistics:
    """Counters since the start; `bytes_held` is a gauge."""

    answered: int = 0
    failed: int = 0
    tried_again: int = 0
    rows: int = 0
    bytes_held: int = 0


class RemoteScan:
    """See GroupScan: the rows of one group of other nodes."""

    files: Sequence[Path] = ()
    file_rows = 0

    def __init__(
        self,
        table: pa.Table,
        release: Callable[[], None],
        hand_overs: HandOvers | None = None,
        figures: ScanFigures | None = None,
    ) -> None:
        self.table = table
        self.hand_overs = hand_overs or HandOvers()
        self.figures = figures or ScanFigures()
        self._release = release

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._release()


class RemoteRows:
    """Fetches scans of groups from their members. Every method may be called from any thread."""

    def __init__(
        self, node: str, placement: Placement, members: Members, limit_bytes: int, fetch: Fetch | None = None
    ) -> None:
        """`node` is this one, which is never asked."""
        self.statistics = RemoteStatistics()
        self.placement = placement
        self.node = node
        self._members = members
        self._limit_bytes = limit_bytes
        self._fetch: Fetch = fetch or fetch_rows
        self._turns = itertools.count()
        self._asked: Counter[str] = Counter()
        self._lock = threading.Lock()

    def serving(self, group: str) -> list[Status]:
        """The other members of a group that may answer: online, in sync, in a role, and with an address."""
        return self._serving(self._live(group))

    def absence(self, key: GroupKey) -> str:
        """Why nobody serves a group that is not here."""
        found, table = self._live(key.group), self.placement
        members = table.group(key.group) if key.group in table.headers else ()
        online = {each.node for each in found}
        missing = ", ".join(sorted(set(members) - online))
        counted = f"{len(online)} of {len(members)} are online{missing and f', {missing} not'}"
        reasons = dict.fromkeys(f"node {each.node}: {each.reason}" for each in found if each.reason)
        return (
            f"group {group_name(key)}: it is not held here, and no member of it is online and in sync: "
            f"{'; '.join([counted, *reasons])}"
        )

    def holders(self, group: str) -> list[Status]:
        """The other nodes that may answer for a group that the slot table need not have any more."""
        return self._serving(self._members.holders(group))

    def _live(self, group: str) -> list[Status]:
        """The members of a group that are online; none of one that the newest slot table has no longer."""
        # A query, and a status, may have begun with the table before.
        table = self.placement
        return self._members.live(group, table.group(group)) if group in table.headers else []

    def _serving(self, found: Iterable[Status]) -> list[Status]:
        return [
            each
            for each in found
            if each.node != self.node and each.http and each.eligible and each.role is not Role.UNSYNCED
        ]

    def scan(
        self, request: RemoteScanRequest, schema: pa.Schema, timer: ReadTimer, is_gone: Callable[[], bool] = _never
    ) -> RemoteScan:
        """The rows of a group. Nobody is asked again once it is gone.

        Raises GroupUnavailable, ReplicaLost, QueryTimeout, QueryCancelled, QueryMemory, and SlotsMoved for a query that
        must be planned again, with a newer slot table.
        """
        patience, failures = Deadline(PATIENCE_S), dict[str, QueryError]()
        while True:
            for member in self._in_order(request):
                if (found := self._ask(member, request, schema, timer, failures)) is not None:
                    timer.awaited.pop(request.group, None)
                    return found
            self._check_table(request)
            timer.awaited[request.group] = f"rows of group {request.group}: {'; '.join(_reasons(failures))}"
            # A member that was just lost, or lags, may be replaced or catch up in a moment.
            if (patience.passed() and not self._is_changing(request)) or is_gone():
                self._count(failed=1)
                raise no_rows(request.group, failures)
            time.sleep(min(PAUSE_S, timer.left_s))
            check_time(timer)

    def _is_changing(self, request: RemoteScanRequest) -> bool:
        """Whether a member that is online has not reached the table of a scan yet, or waits for files: it is waited for."""
        if not request.table_version:
            # Of a group that ended. Who has one of that name now is no member of it.
            return False
        members = self._live(request.group)
        late = any(0 < each.settled < request.table_version for each in members)
        return late or any(each.reason for each in self._serving(members))

    def _check_table(self, request: RemoteScanRequest) -> None:
        version = self.placement.version
        if request.table_version and version > request.table_version:
            raise SlotsMoved.to(request.group, version, request.table_version)

    def _ask(
        self,
        member: Status,
        request: RemoteScanRequest,
        schema: pa.Schema,
        timer: ReadTimer,
        failures: dict[str, QueryError],
    ) -> RemoteScan | None:
        """The rows as one member has them; None when another one must be asked, with the error in `failures`."""
        left_ms = max(1, int(timer.left_s * 1_000))
        timed = replace(request, timeout_ms=left_ms, wait_ms=min(left_ms, WAIT_MS_MAX))
        share = _Share(self._reserve)
        try:
            with self._asking(member.node):
                table = self._fetch(member.http, timed, schema, timer, share.reserve)
        except BaseException as error:
            share.release()
            # The end of the query's own time shows as a connection that was cut.
            check_time(timer)
            # An expression that fails over the rows of one member fails over those of all of them.
            if not isinstance(error, QueryError) or isinstance(error, QueryMemory | SlotsMoved | QueryInvalid):
                raise
            self._count(tried_again=1)
            failures[member.node] = error
            return None
        self._count(answered=1, rows=table.num_rows)
        return RemoteScan(_local_form(table), share.release, hand_overs_of(table), _figures_of(table, member.node))

    @contextmanager
    def _asking(self, node: str) -> Iterator[None]:
        with self._lock:
            self._asked[node] += 1
        try:
            yield
        finally:
            with self._lock:
                self._asked[node] -= 1

    def _in_order(self, request: RemoteScanRequest) -> list[Status]:
        """The members to ask: the one with the fewest scans of this node first, of equal ones another each time.

        Those behind what the query must see come last.
        Before these come members that name a reason and serve all the same: they still wait for files.
        """
        # A request without a table is for a group that has ended: whoever still holds it may answer.
        found = self.serving(request.group) if request.table_version else self.holders(request.group)
        turn = next(self._turns) % max(1, len(found))
        with self._lock:
            asked = self._asked.copy()
        return sorted(
            found[turn:] + found[:turn],
            key=lambda each: (each.durable_offset < request.after, each.reason != "", asked[each.node]),
        )

    def _reserve(self, size_bytes: int) -> None:
        with self._lock:
            if self.statistics.bytes_held + size_bytes > self._limit_bytes:
                raise QueryMemory(
                    f"rows of other nodes need more than the {self._limit_bytes // 1_000_000} MB that queries may hold",
                    action="narrow the time range or the columns, or raise query.remote_mb_max",
                )
            self.statistics.bytes_held += size_bytes

    def _count(self, **amounts: int) -> None:
        with self._lock:
            for name, amount in amounts.items():
                setattr(self.statistics, name, getattr(self.statistics, name) + amount)


class _Share:
    """The bytes that one scan holds of the limit. Releasing them twice is fine."""

    def __init__(self, reserve: Callable[[int], None]) -> None:
        self._reserve = reserve
        self._held = 0

    def reserve(self, size_bytes: int) -> None:
        self._reserve(size_bytes)
        self._held += size_bytes

    def release(self) -> None:
        held, self._held = self._held, 0
        self._reserve(-held)


def fetch_rows(
    url: str, request: RemoteScanRequest, schema: pa.Schema, timer: ReadTimer, reserve: Callable[[int], None]
) -> pa.Table:
    """All rows of a scan from the member at `url`. Raises a QueryError."""
    try:
        answer = request_node(
            f"{url}{SCAN_ROUTE}",
            method="POST",
            document=request.document(),
            timeout_s=SILENCE_S,
            connect_timeout_s=CONNECT_TIMEOUT_S,
        )
    except NodeRefused as error:
        raise error_of(error.document or {"message": error.message}) from error
    except NodeUnreachable as error:
        raise MemberUnreachable(f"no answer at {url}: {error.reason}", retriable=True) from error
    # The end of the connection is what ends the scan at the member.
    with answer, timer.interrupts(answer.abort):
        return read_scan(answer.stream, schema, reserve)


def hand_overs_of(table: pa.Table) -> HandOvers:
    """The hand-overs that came with rows, see `read_scan`. Raises ScanCut."""
    metadata = table.schema.metadata or {}
    try:
        return HandOvers.parse(json.loads(metadata.get(HAND_OVERS, b"{}")))
    except ValueError as error:
        raise ScanCut.because(str(error)) from error


def _figures_of(table: pa.Table, node: str) -> ScanFigures:
    """The figures that came with rows, of the node that gave them."""
    metadata = table.schema.metadata or {}
    found = ScanFigures.parse(json.loads(metadata[FIGURES])) if FIGURES in metadata else ScanFigures()
    return replace(found, node=node, rows=table.num_rows)


def check_time(timer: ReadTimer) -> None:
    """Raises QueryTimeout or QueryCancelled for a query whose time is over."""
    if timer.cancelled:
        raise QueryCancelled("the query was cancelled before its end")
    if timer.expired:
        raise QueryTimeout.after(timer.timeout_ms)


def no_rows(group: str, failures: Mapping[str, QueryError]) -> GroupUnavailable:
    """The error when no member of a group gave rows, made of the errors of those that were asked."""
    # One that refuses is there and may say why for long. One that is lost comes back, or is replaced.
    is_lost = any(isinstance(error, ScanCut | MemberUnreachable) for error in failures.values())
    return (ReplicaLost if is_lost else GroupUnavailable).because(group, _reasons(failures))


def _reasons(failures: Mapping[str, QueryError]) -> list[str]:
    shown = [f"{node} {_verb(error)}: {error.message}" for node, error in failures.items()]
    return shown or ["none is online and in sync"]


def _verb(error: QueryError) -> str:
    return "is ahead" if isinstance(error, SchemaAhead) else f"failed with {error.kind}"


def _local_form(table: pa.Table) -> pa.Table:
    """The rows with `time` as integers, like those of this node: tables of one form are read as one."""
    # Without what came beside the rows: tables of one schema are read as one.
    table = table.replace_schema_metadata(None)
    position = table.schema.get_field_index(TIME_COLUMN)
    if position < 0:
        return table
    return table.set_column(position, TIME_COLUMN, table.column(position).cast(pa.int64()))


def discard(fetches: Collection[Future[RemoteScan]]) -> None:
    """Release the rows of fetches that nobody takes, also of those that still run."""
    for fetch in fetches:
        fetch.cancel()
        fetch.add_done_callback(_release)


def _release(fetch: Future[RemoteScan]) -> None:
    if not fetch.cancelled() and fetch.exception() is None:
        fetch.result().__exit__(None, None, None)
