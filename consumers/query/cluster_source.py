"""All groups of the cluster as one TableSource: those that are in sync here, and the others from their members.

Which groups are read here is decided once for each query, by its fence. A group that is here and not in sync is
read from another member, like one that is not here: it does not stop answers that others can give.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

from headrace.connectors.clock import Moment
from headrace.consumers.query.planner import column_names
from headrace.consumers.query.query_errors import NotReady
from headrace.consumers.query.remote_rows import RemoteRows, RemoteScan
from headrace.consumers.query.scan_request import RemoteScanRequest, wire_schema
from headrace.consumers.query.stale_reads import not_ready
from headrace.consumers.query.table_source import (
    GroupScan,
    LocalFence,
    LocalSource,
    ReadFence,
    Reading,
    ReadTimer,
    refusal_of,
)
from headrace.schemas.tables import TableSchema

FETCHES_MAX = 16
"""Groups of other nodes that all queries fetch at the same time; more wait for a thread."""


class ClusterFence:
    """The ReadFence of one query: that of the groups that are read here, and what is known of the others.

    `remote` are the groups to fetch. Their members check their own fences behind the last row that they send.
    """

    as_of: Moment | None = None

    def __init__(self, local: LocalFence, remote: Mapping[str, int]) -> None:
        """`remote` maps groups to the newest offsets that their members have shown as durable."""
        self.local = local
        self.remote = tuple(remote)
        self.confirmed = {**local.confirmed, **remote}

    def check(self) -> None:
        """See ReadFence. This node must serve, also where all rows are of others: their statuses come to it."""
        self.local.check()


class ClusterSource:
    """See TableSource: every row of the cluster, at any node."""

    def __init__(self, local: LocalSource, remote: RemoteRows) -> None:
        self.remote = remote
        self._local = local
        self._threads = ThreadPoolExecutor(FETCHES_MAX, thread_name_prefix="remote-scan")

    def close(self) -> None:
        """Fetch no more. Fetches that run end with their queries."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def fence(self, stale_s: float = 0.0) -> ReadFence:
        """See TableSource. An older answer is given only by a node that holds every group."""
        absent = self._absent()
        try:
            return self._fence(whole=not absent)
        except NotReady as error:
            if not stale_s:
                raise
            if absent:
                # What others held at a moment cannot be known here, and a part of the rows is no answer.
                raise NotReady.because(
                    [error.message, f"an older answer would lack {_groups(absent)}, which this node does not hold"]
                ) from error
        return self._local.stale_fence(stale_s)

    def _absent(self) -> list[str]:
        """The groups that are not here."""
        here = {group.name for group in list(self._local.groups.values())}
        return [name for name in self.remote.placement.headers if name not in here]

    def _fence(self, *, whole: bool) -> ClusterFence:
        """`whole`: all groups are here, so that an older answer is a way out. Raises NotReady."""
        state = self._local.state
        refusals = {group.name: (topic, refusal_of(state, topic)) for topic, group in list(self._local.groups.items())}
        reasons, remote = list(state.refusals()), dict[str, int]()
        headers = self.remote.placement.headers
        for name in () if reasons else headers:
            _, refusal = refusals.get(name, ("", _absence(name)))
            if refusal and (serving := self.remote.serving(name)):
                remote[name] = max(each.durable_offset for each in serving)
            elif refusal:
                reasons.append(refusal)
        if reasons:
            raise not_ready(state, reasons) if whole else NotReady.because(reasons)
        return ClusterFence(
            LocalFence(
                self._local.groups,
                state,
                # A group that the slot table has no longer is on its way out.
                [topic for name, (topic, _) in refusals.items() if name in headers and name not in remote],
            ),
            remote,
        )

    def tables(self) -> Sequence[tuple[str, str]]:
        """See TableSource. A node that does not hold every group lists dropped tables as well."""
        # Others may have rows that were written since the drop, and a table that is missing here would be an error
        # for the client that wrote them.
        return self._local.known_tables() if self._absent() else self._local.tables()

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
        reading: Reading,
    ) -> Sequence[GroupScan]:
        """See TableSource. The groups of other nodes are fetched at once, while those here are scanned."""
        fence, schema = reading.fence, self.schema(database, table)
        wanted = tuple(columns) if columns is not None else column_names(schema)
        fetches, timer = list[Future[RemoteScan]](), _SharedTimer(reading.timer)
        with ExitStack() as opened:
            opened.callback(_discard, fetches)
            opened.callback(timer.abandon)
            for group in fence.remote if isinstance(fence, ClusterFence) else ():
                narrowed = {tag: tuple(values) for tag, values in (tags or {}).items()}
                request = RemoteScanRequest(
                    *(group, database, table, schema.version, wanted, start_ns, end_ns, narrowed),
                    after=reading.after.get(group, -1),
                )
                fetches.append(self._threads.submit(self.remote.scan, request, wire_schema(schema, wanted), timer))
            scans = [
                opened.enter_context(scan)
                for scan in self._local.scan(
                    database,
                    table,
                    columns=columns,
                    start_ns=start_ns,
                    end_ns=end_ns,
                    tags=tags,
                    reading=_here(reading),
                )
            ]
            scans += [fetch.result() for fetch in fetches]
            # From here the caller closes them; an error before this line closes those that are open.
            opened.pop_all()
        return scans

    def wait_for(self, reading: Reading) -> bool:
        """See TableSource."""
        return self._local.wait_for(_here(reading))


class _SharedTimer:
    """See ReadTimer: the timer of a query as its fetches see it. `abandon` ends them all, when one of them failed."""

    def __init__(self, timer: ReadTimer) -> None:
        self.timeout_ms = timer.timeout_ms
        self._timer = timer
        self._abandoned = False
        self._ends: list[Callable[[], None]] = []

    @property
    def left_s(self) -> float:
        return self._timer.left_s

    @property
    def expired(self) -> bool:
        return self._timer.expired

    @property
    def cancelled(self) -> bool:
        return self._abandoned or self._timer.cancelled

    @contextmanager
    def interrupts(self, end: Callable[[], None]) -> Iterator[None]:
        self._ends.append(end)
        # Both sides store before they look, so that no fetch misses the end.
        if self._abandoned:
            end()
        try:
            with self._timer.interrupts(end):
                yield
        finally:
            self._ends.remove(end)

    def abandon(self) -> None:
        self._abandoned = True
        for end in tuple(self._ends):
            end()


def _here(reading: Reading) -> Reading:
    """The reading as the groups of this node see it."""
    fence = reading.fence
    return Reading(fence.local, reading.after, reading.timer) if isinstance(fence, ClusterFence) else reading


def _discard(fetches: Sequence[Future[RemoteScan]]) -> None:
    """Release the rows of fetches that nobody takes, also of those that still run."""
    for fetch in fetches:
        fetch.cancel()
        fetch.add_done_callback(_release)


def _release(fetch: Future[RemoteScan]) -> None:
    if not fetch.cancelled() and fetch.exception() is None:
        fetch.result().__exit__(None, None, None)


def _absence(group: str) -> str:
    return f"group {group}: it is not held here, and no member of it is online and in sync"


def _groups(names: Sequence[str]) -> str:
    return f"group {names[0]}" if len(names) == 1 else f"groups {', '.join(names)}"
