"""The writers of a client, and how far the logs are that it wrote to.

A writer may be dropped without `close`, as in `client.writer(…).write(rows)`. Its rows are on their way all the same: it
stays here until they have their reports, and the errors of these are raised by the next call that flushes.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Mapping

from headrace._access import RowWriter
from headrace.schemas.errors import HeadraceError


class OpenWriters:
    """Those that may have rows without a report. Safe for any thread."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._writers: list[RowWriter] = []
        # By the collector, in any thread and also while that thread holds the lock: one call that is atomic.
        self._dropped: list[RowWriter] = []
        self._newest: dict[str, int] = {}

    def __iter__(self) -> Iterator[RowWriter]:
        """Those that are open now."""
        with self._lock:
            return iter(list(self._writers))

    def add(self, writer: RowWriter, handle: object) -> None:
        """Keep a writer, which is used by way of `handle` alone."""
        for dropped in list(self._dropped):
            if dropped.is_settled:
                self._forget(dropped)
        with self._lock:
            self._writers.append(writer)
        weakref.finalize(handle, self._dropped.append, writer).atexit = False

    def note(self, offsets: Mapping[str, int]) -> None:
        """These offsets were reached, each in the log of its topic."""
        with self._lock:
            self._newest = newest_of(self._newest, offsets)

    def flush(self) -> dict[str, int]:
        """Flush all; the newest offset in each log that was written to. Raises as `TableWriter.flush`."""
        for writer in self:
            was_dropped = writer in self._dropped
            self.note(writer.flush())
            if was_dropped:
                self._forget(writer)
        with self._lock:
            return dict(self._newest)

    def close(self) -> None:
        """Flush and close all. Raises the first error."""
        failures = []
        for writer in self:
            # Every writer is flushed, also behind one that fails: its rows would be lost otherwise.
            try:
                self.close_one(writer)
            except HeadraceError as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def close_one(self, writer: RowWriter) -> None:
        """Close a writer, which is kept no longer. Raises as `TableWriter.flush`."""
        try:
            writer.close()
        finally:
            self.closed(writer)

    def closed(self, writer: RowWriter) -> None:
        """A writer was closed."""
        self._forget(writer)

    def _forget(self, writer: RowWriter) -> None:
        self.note(writer.newest())
        with self._lock:
            for known in (self._writers, self._dropped):
                if writer in known:
                    known.remove(writer)


def newest_of(one: Mapping[str, int], other: Mapping[str, int]) -> dict[str, int]:
    """The higher offset of each log that one of two mappings names."""
    return {topic: max(one.get(topic, -1), other.get(topic, -1)) for topic in one.keys() | other.keys()}
