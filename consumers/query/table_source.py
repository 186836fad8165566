"""What queries read: tables that can be scanned.

`local_source.py` is a TableSource of the groups of this node, and `cluster_source.py` of all groups.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from headrace.connectors.clock import Moment
from headrace.connectors.deadline import Deadline
from headrace.consumers.query.group_scans import GroupScan
from headrace.consumers.query.table_names import TableKey
from headrace.consumers.scheduling.driver import BlockedOn
from headrace.schemas.tables import TableSchema

if TYPE_CHECKING:
    from headrace.consumers.query.fragments import FragmentSource


class ReadFence(Protocol):
    """What an answer depends on from the moment of `TableSource.fence` to its last row."""

    @property
    def confirmed(self) -> Mapping[str, int]:
        """By group (see `group_names`), the newest log offset that the node had confirmed to anybody: an answer contains it."""
        ...

    @property
    def as_of(self) -> Moment | None:
        """The moment up to which a stale answer contains everything; None for an answer of a node that serves."""
        ...

    def check(self) -> None:
        """Raises AnswerStale unless the source has served the same data without a break.

        A stale answer must have the same data, and must not be older than was allowed.
        """
        ...


class ReadTimer(Protocol):
    """The time of one query; see `consumers.query.result_stream.QueryTimer`."""

    timeout_ms: int
    awaited: dict[str, str]
    """What the query waits for now instead of computing, by group; any thread."""

    @property
    def left_s(self) -> float:
        """Seconds left, 0 at least."""
        ...

    @property
    def expired(self) -> bool:
        """True once the time is over."""
        ...

    @property
    def cancelled(self) -> bool:
        """True once the query was cancelled."""
        ...

    def interrupts(self, end: Callable[[], None]) -> AbstractContextManager[None]:
        """While it is open, `end` is called from the end of the query's time on, also of a cancelled one."""
        ...


class Waits(Protocol):
    """What a query does while it waits; see `consumers.scheduling.threaded_driver.Turn`."""

    def outside(self, on: BlockedOn) -> AbstractContextManager[None]:
        """Without a worker inside. Raises QueryCancelled."""
        ...


class NoWaits:
    """The Waits of a reader that has no worker."""

    def outside(self, on: BlockedOn) -> AbstractContextManager[None]:
        """See Waits."""
        del on
        return nullcontext()


@dataclass(frozen=True, slots=True)
class Reading:
    """What one query's scans have in common: its fence, the log offsets by group that they contain, its time.

    `patience` is how long they wait for files, where another node may have them: at most the query's time. What they
    wait for, they wait for under `waits`.
    """

    fence: ReadFence
    after: Mapping[str, int]
    timer: ReadTimer
    patience: Deadline | None = None
    waits: Waits = field(default_factory=lambda: NoWaits())

    @property
    def left_s(self) -> float:
        """The seconds that a scan may wait."""
        left_s = self.timer.left_s
        return left_s if self.patience is None else min(left_s, self.patience.left_s())


@dataclass(frozen=True, slots=True)
class TableExtent:
    """Which rows of a table are sealed here, roughly: their times in ns, both ends included, and their number."""

    oldest_ns: int
    newest_ns: int
    rows: int
    slice_ns: int


class TableSource(Protocol):
    """Tables that can be scanned. Every method may be called from several threads at once."""

    def fence(self, stale_s: float = 0.0, timeout_s: float = 0.0, awaited: dict[str, str] | None = None) -> ReadFence:
        """Taken before anything else is read.

        It waits for groups that a change of the cluster creates or moves, and shows these in `awaited`, see ReadTimer.
        Raises NotReady while the source does not serve, unless what it has is at most `stale_s` old.
        """
        ...

    def tables(self) -> Sequence[tuple[str, str]]:
        """Every (database, table) of the source that a user knows."""
        ...

    def schema(self, database: str, table: str) -> TableSchema:
        """The newest schema of a table."""
        ...

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
        """One scan per data group.

        The conditions, time as [start_ns, end_ns), may be used to return less; more is never wrong. `newest`: the
        newest row of each series is enough, if these columns are not null there.
        """
        ...

    def fragments(
        self, fence: ReadFence, *, always: bool = False, hourly: Sequence[TableKey] = ()
    ) -> FragmentSource | None:
        """Where fragments run; None when all rows are here, none is wanted `always`, and no `hourly` table is large."""
        ...

    def extent(self, database: str, table: str) -> TableExtent | None:
        """What is sealed of a table in groups that are here; None where nothing is. For estimates only."""
        ...

    def wait_for(self, reading: Reading) -> bool:
        """Wait until the groups of this process have applied their logs up to `reading.after`; False when its time
        is over. Other groups are waited for by their scans.

        Raises SlotNotHeld, as `scan` does, for a query that must be planned again.
        """
        ...

    def named(self, after: Mapping[str, int]) -> Mapping[str, int]:
        """Offsets by group as a client names them, by the names of `ReadFence.confirmed`."""
        ...

    def beyond(self, reading: Reading) -> Mapping[str, int]:
        """The offsets of a reading that groups here, or all members of others, have not reached; never waits."""
        ...

    def plans_again(self, fence: ReadFence, timeout_s: float) -> bool:
        """Whether a query that SlotNotHeld ended may be planned again with a new fence; waits for a reason to."""
        ...
