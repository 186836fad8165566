"""The decoded runs of segments that are read again and again."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterable

from headrace.consumers.store.segment import Runs


class RunsCache:
    """An LRU cache of decoded runs of segments. Thread-safe.

    Its limit counts series and not segments: one segment may have ten series or a million.
    """

    def __init__(self, load: Callable[[str], Runs], series_max: int) -> None:
        """`load` reads the runs of a segment by name.

        At most `series_max` series are kept, or one segment.
        """
        self._load = load
        self._series_max = series_max
        self._series = 0
        self._forgotten = 0
        self._lock = threading.Lock()
        self._cached: OrderedDict[str, Runs] = OrderedDict()

    def get(self, name: str) -> Runs:
        """The runs of one segment."""
        with self._lock:
            found = self._cached.get(name)
            if found is not None:
                self._cached.move_to_end(name)
                return found
            forgotten = self._forgotten
        # Outside the lock: two threads may load the same runs, but no hit waits for a read of the index.
        loaded = self._load(name)
        with self._lock:
            if name not in self._cached and forgotten == self._forgotten:
                self._cached[name] = loaded
                self._series += len(loaded.keys)
            while self._series > self._series_max and len(self._cached) > 1:
                _, dropped = self._cached.popitem(last=False)
                self._series -= len(dropped.keys)
        return loaded

    def forget(self, names: Iterable[str]) -> None:
        """Segments are removed, or get a name that an earlier build has given before."""
        with self._lock:
            self._forgotten += 1
            for name in names:
                dropped = self._cached.pop(name, None)
                self._series -= 0 if dropped is None else len(dropped.keys)
