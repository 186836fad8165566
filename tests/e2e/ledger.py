"""The ledger of a fault run: continuous writers, the outcome of every message, and the check of a node's
rows.

A write becomes one message for each group that its rows belong to. Rows of an acknowledged write must be
present. With an unknown outcome, each message may be present as a whole or not at all. Rows of a failed write
must be absent. One series in three is overwritten at the same times again and again. The result of a query
therefore depends on the order of the log.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import pyarrow as pa

from headrace.producers.cluster import Cluster
from headrace.producers.router import route
from headrace.producers.sender import WriteFailed
from headrace.producers.writer import TableWriter, WriterSettings
from headrace.schemas.errors import HeadraceError, StateUnknown
from headrace.schemas.tables import DatabaseSchema, TableSchema, TimeResolution

DATABASE = "fleet"
TABLE = "faults"
TAGS = ("pump",)
QUERY = f"SELECT pump, epoch_ns(time) AS time, write, value FROM {DATABASE}.{TABLE}"
START_NS = 1_700_000_000_000_000_000
SERIES = 12
ROWS_PER_SERIES = 4
NOTE_BYTES = 200
OVERWRITTEN_EVERY = 3
OVERWRITTEN_TIMES = 16
EXAMPLES_MAX = 5

Key = tuple[str, int]


class Outcome(IntEnum):
    """The outcome of a write, as reported to its writer."""

    ACKNOWLEDGED = 0
    UNKNOWN = 1
    FAILED = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One write: number, rows, outcome, and its begin and end in monotonic seconds."""

    number: int
    writer: int
    rows: pa.Table
    quorum: int
    outcome: Outcome
    begun_s: float
    ended_s: float


@dataclass
class Ledger:
    """All writes of a run. Thread-safe."""

    entries: list[Entry] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _next: int = 0

    def next_number(self) -> int:
        """The number of the next write."""
        with self._lock:
            self._next += 1
            return self._next

    def add(self, entry: Entry) -> None:
        """Add a write that has ended."""
        with self._lock:
            self.entries.append(entry)

    def add_unexpected(self, line: str) -> None:
        """Add an outcome that no writer may get."""
        with self._lock:
            self.unexpected.append(line)

    def rows(self, outcome: Outcome, quorum: int | None = None) -> int:
        """Number of rows of the writes with an outcome."""
        with self._lock:
            return sum(
                entry.rows.num_rows
                for entry in self.entries
                if entry.outcome is outcome and quorum in (None, entry.quorum)
            )

    def latencies_ms(self, quorum: int, within: Sequence[tuple[float, float]]) -> list[float]:
        """Latencies of the writes that did not fail and began within one of these intervals."""
        with self._lock:
            entries = [
                entry for entry in self.entries if entry.quorum == quorum and entry.outcome is not Outcome.FAILED
            ]
        return [
            (entry.ended_s - entry.begun_s) * 1_000
            for entry in entries
            if any(begin <= entry.begun_s and entry.begun_s < end for begin, end in within)
        ]


class WritingThreads:
    """One thread for each quorum writes and waits for its acknowledgement, in a loop, until `stop`."""

    def __init__(self, shared: Cluster, ledger: Ledger, quorums: Sequence[int], pause_s: float, seed: int) -> None:
        self._shared = shared
        self._ledger = ledger
        self._pause_s = pause_s
        self._stopping = threading.Event()
        self._turns = [threading.Lock() for _ in quorums]
        self._threads = [
            threading.Thread(target=self._write, args=(number, quorum, random.Random(f"{seed}/{number}")), daemon=True)
            for number, quorum in enumerate(quorums)
        ]

    def __enter__(self) -> WritingThreads:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        """Let each thread finish its current write."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No write is under way inside the block."""
        with ExitStack() as turns:
            for turn in self._turns:
                turns.enter_context(turn)
            yield

    def _write(self, writer_number: int, quorum: int, rng: random.Random) -> None:
        try:
            settings = WriterSettings(quorum=quorum, compression="none", resolution=TimeResolution.NS)
            writer = TableWriter(self._shared, DATABASE, TABLE, settings)
            while not self._stopping.wait(rng.uniform(0, 2 * self._pause_s)):
                number = self._ledger.next_number()
                rows = rows_of(number, writer_number, rng)
                with self._turns[writer_number]:
                    begun_s = time.monotonic()
                    outcome = self._write_once(writer, rows, number)
                    self._ledger.add(Entry(number, writer_number, rows, quorum, outcome, begun_s, time.monotonic()))
            writer.close()
        except Exception as error:
            self._ledger.add_unexpected(f"writer {writer_number} ended: {error!r}")

    def _write_once(self, writer: TableWriter, rows: pa.Table, number: int) -> Outcome:
        try:
            writer.write(rows, TAGS)
            writer.flush()
        except StateUnknown:
            return Outcome.UNKNOWN
        except WriteFailed:
            return Outcome.FAILED
        except HeadraceError as error:
            self._ledger.add_unexpected(f"write {number} was refused: {error!r}")
            return Outcome.UNKNOWN
        return Outcome.ACKNOWLEDGED


def rows_of(number: int, writer: int, rng: random.Random) -> pa.Table:
    """Rows of some series of one writer.

    `value` follows from series and time, which detects mixed-up rows; `note` fills journals.
    """
    pumps, times = list[str](), list[int]()
    for series in sorted(rng.sample(range(SERIES), 4)):
        pumps += [f"w{writer}p{series}"] * ROWS_PER_SERIES
        if series % OVERWRITTEN_EVERY == 0:
            first = rng.randrange(OVERWRITTEN_TIMES - ROWS_PER_SERIES + 1)
        else:
            first = OVERWRITTEN_TIMES + number * ROWS_PER_SERIES
        times += range(first, first + ROWS_PER_SERIES)
    return pa.table(
        {
            "pump": pa.array(pumps),
            "time": pa.array([START_NS + each for each in times], pa.int64()),
            "write": pa.array([number] * len(pumps), pa.int64()),
            "value": pa.array([value_of(*each) for each in zip(pumps, times, strict=True)], pa.int64()),
            "note": pa.array([f"{number:0{NOTE_BYTES}}"] * len(pumps)),
        }
    )


def value_of(pump: str, time_index: int) -> int:
    """The value of a series at a time, the same from every writer."""
    return hash_of(pump) * 1_000_003 + time_index


def hash_of(pump: str) -> int:
    """A small hash that distinguishes series."""
    return sum(byte * int(31**place) for place, byte in enumerate(pump.encode())) % 65_521


class Expectation:
    """The rows that every node must hold after these writes. `parts` splits the rows of a write into its
    messages.
    """

    def __init__(self, entries: Sequence[Entry], parts: Callable[[pa.Table], list[pa.Table]]) -> None:
        # A series has one writer, which waits for the end of each write: its writes begin in the order of the
        # log.
        self._writes: dict[Key, list[tuple[Entry, int]]] = {}
        for entry in sorted(entries, key=lambda each: each.begun_s):
            for message, part in enumerate(parts(entry.rows)):
                for key in _keys(part):
                    self._writes.setdefault(key, []).append((entry, message))

    def faults_of(self, found: pa.Table) -> list[str]:
        """The violations in the rows of a node: lost, duplicate, unwritten or torn; empty when there are
        none.
        """
        faults = Faults()
        held = _by_key(found)
        if found.num_rows > len(held):
            faults.add("there twice", f"{found.num_rows - len(held)} rows of {found.num_rows}")
        for key, (write, value) in held.items():
            self._check_held(key, write, value, faults)
        messages: dict[tuple[int, int], list[bool]] = {}
        for key, writes in self._writes.items():
            self._check_acknowledged(key, writes, held, faults)
            if len(writes) == 1 and writes[0][0].outcome is Outcome.UNKNOWN:
                messages.setdefault((writes[0][0].number, writes[0][1]), []).append(key in held)
        for (number, message), present in messages.items():
            if any(present) and not all(present):
                example = f"message {message} of write {number}: {sum(present)} of {len(present)} rows"
                faults.add("there without the rest of their message", example)
        return faults.lines()

    def _check_held(self, key: Key, write: int, value: int, faults: Faults) -> None:
        writers = [entry for entry, _ in self._writes.get(key, ()) if entry.number == write]
        if not writers or writers[0].outcome is Outcome.FAILED:
            faults.add("there that nobody wrote, or that failed", f"{key} of write {write}")
        elif value != value_of(key[0], key[1] - START_NS):
            faults.add("there with another value than was written", f"{key} of write {write}: {value}")

    def _check_acknowledged(
        self, key: Key, writes: list[tuple[Entry, int]], held: dict[Key, tuple[int, int]], faults: Faults
    ) -> None:
        """The newest acknowledged row is present, or a later one of unknown outcome."""
        newest = next((entry for entry, _ in reversed(writes) if entry.outcome is Outcome.ACKNOWLEDGED), None)
        if newest is None:
            return
        allowed = {entry.number for entry, _ in writes if entry.outcome is Outcome.UNKNOWN} | {newest.number}
        write = held[key][0] if key in held else None
        if write not in allowed:
            present_row = "nothing" if write is None else f"the row of write {write}"
            faults.add(
                "acknowledged and lost", f"{key} of write {newest.number} (quorum {newest.quorum}): {present_row}"
            )


class Faults:
    """Counts violations, with some examples of each kind."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = {}

    def add(self, kind: str, example: str) -> None:
        """Count a violation."""
        self._counts[kind] += 1
        if self._counts[kind] <= EXAMPLES_MAX:
            self._examples.setdefault(kind, []).append(example)

    def lines(self) -> list[str]:
        """One line for each kind."""
        return [f"{count} {kind}: {'; '.join(self._examples[kind])}" for kind, count in self._counts.items()]


def messages_of(shared: Cluster) -> Callable[[pa.Table], list[pa.Table]]:
    """Splits the rows of a write as a writer does: one part for each message."""
    database = shared.tables.catalogue.databases.get(DATABASE)
    assert database is not None
    schema = shared.tables.catalogue.newest(DATABASE, TABLE)
    groups: dict[str, str] = {}

    def group(pump: str) -> str:
        if pump not in groups:
            groups[pump] = _group_of(shared, database, schema, pump)
        return groups[pump]

    def parts(rows: pa.Table) -> list[pa.Table]:
        of_row = np.array([group(pump) for pump in rows.column("pump").to_pylist()])
        return [rows.filter(pa.array(of_row == name)) for name in np.unique(of_row).tolist()]

    return parts


def _group_of(shared: Cluster, database: DatabaseSchema, schema: TableSchema, pump: str) -> str:
    row = pa.table({"pump": [pump], "time": pa.array([START_NS], pa.int64())})
    return route(shared.slot_table, database, schema, row)[0].group


def _by_key(rows: pa.Table) -> dict[Key, tuple[int, int]]:
    columns = [rows.column(name).to_pylist() for name in ("pump", "time", "write", "value")]
    return {(pump, at): (write, value) for pump, at, write, value in zip(*columns, strict=True)}


def _keys(rows: pa.Table) -> list[Key]:
    return list(zip(rows.column("pump").to_pylist(), rows.column("time").to_pylist(), strict=True))
