"""The memory of scans for other nodes: what each tries, from the least on, and that one at a time has much.

It is apart from that of queries, which wait for scans of other nodes and hold theirs meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa

from headrace.consumers.query.answer_width import columns_mb
from headrace.consumers.query.query_run import memory_sizes
from headrace.consumers.query.remote_rows import check_time
from headrace.consumers.query.settings import QuerySettings
from headrace.consumers.query.table_source import ReadTimer, Waits
from headrace.consumers.scheduling.driver import BlockedOn

SCAN_MB = 64
"""A scan holds no rows but those on their way: enough for some hundred columns."""
FRAGMENT_MB = 256
"""One that computes has groups of an aggregate, or rows of a sort with a limit."""
WAIT_S = 0.1


class ScanMemory:
    """The memory of all scans of a node. Any thread may call every method."""

    def __init__(self, node: str, settings: QuerySettings) -> None:
        """`node` is this one."""
        self.node = node
        self._most_mb = memory_sizes(settings.memory_limit_mb, settings.memory_per_query_mb)[-1]
        self._large = threading.Semaphore()

    def sizes_mb(self, schema: pa.Schema, *, computes: bool) -> tuple[int, ...]:
        """What a scan with these columns tries: what they need at least, then more, and what one query may have."""
        # Behind its first rows a scan cannot begin again.
        least_mb = max(FRAGMENT_MB if computes else SCAN_MB, columns_mb(schema))
        sizes = {min(size_mb, self._most_mb) for size_mb in (SCAN_MB, FRAGMENT_MB, self._most_mb)}
        return tuple(sorted(size_mb for size_mb in sizes if size_mb >= min(least_mb, self._most_mb)))

    @contextmanager
    def lent(self, memory_mb: int, timer: ReadTimer, waits: Waits) -> Iterator[None]:
        """While a scan has so much. One that has more than FRAGMENT_MB waits for the one that has it.

        Raises QueryTimeout or QueryCancelled.
        """
        if memory_mb <= FRAGMENT_MB:
            yield
            return
        # Whoever has it waits for nothing but its asker, and no longer than its time.
        has_it = self._large.acquire(blocking=False)
        try:
            if not has_it:
                with waits.outside(BlockedOn.MEMORY):
                    while not (has_it := self._large.acquire(timeout=WAIT_S)):
                        check_time(timer)
            yield
        finally:
            if has_it:
                self._large.release()
