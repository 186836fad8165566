"""What a fault run wrote: writers that never stop, what they were told of every message, and whether a node holds exactly that.

A write becomes one message for each group that its rows belong to. Told "acknowledged", its rows must be there; told "state unknown", each of its
messages may be there whole or not at all; told "failed", none may be there. One series in three is written over and over at the same times, so that
the order of the log shows in what is read.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import numpy as np
import pyarrow as pa

from consumers.membership.cut import cut
from consumers.membership.forwarding import WriteFailed
from consumers.membership.writer import Cluster, Writer, WriterSettings
from schemas.errors import HeadraceError, StateUnknown
from schemas.tables import DatabaseSchema, TableSchema

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


class Told(IntEnum):
    """What became of a write, as its writer was told."""

    ACKNOWLEDGED = 0
    UNKNOWN = 1
    FAILED = 2


@dataclass(frozen=True, slots=True)
class Entry:
    """One write: its number, what it wrote, what its writer was told, and from when to when that took (monotonic seconds)."""

    number: int
    writer: int
    rows: pa.Table
    quorum: int
    told: Told
    begun_s: float
    ended_s: float


@dataclass
class Ledger:
    """All writes of a run. Safe to share between threads."""

    entries: list[Entry] = field(default_factory=list)
    surprises: list[str] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _next: int = 0

    def next_number(self) -> int:
        """A number for a write."""
        with self._lock:
            self._next += 1
            return self._next

    def note(self, entry: Entry) -> None:
        """A write is over."""
        with self._lock:
            self.entries.append(entry)

    def surprise(self, line: str) -> None:
        """Something that no writer may be told."""
        with self._lock:
            self.surprises.append(line)

    def rows(self, told: Told, quorum: int | None = None) -> int:
        """How many rows of writes that ended so."""
        with self._lock:
            return sum(
                entry.rows.num_rows for entry in self.entries if entry.told is told and quorum in (None, entry.quorum)
            )

    def latencies_ms(self, quorum: int, within: Sequence[tuple[float, float]]) -> list[float]:
        """How long the acknowledged writes took that were begun and would have had to end within one of these times."""
        with self._lock:
            entries = [entry for entry in self.entries if entry.quorum == quorum and entry.told is not Told.FAILED]
        return [
            (entry.ended_s - entry.begun_s) * 1_000
            for entry in entries
            if any(begin <= entry.begun_s and entry.begun_s < end for begin, end in within)
        ]


class WritingThreads:
    """One thread a quorum; each writes and waits for its acknowledgement, again and again, until it is stopped."""

    def __init__(self, shared: Cluster, ledger: Ledger, quorums: Sequence[int], pause_s: float, seed: int) -> None:
        self._shared = shared
        self._ledger = ledger
        self._pause_s = pause_s
        self._stopping = threading.Event()
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
        """Let each end the write in hand."""
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def _write(self, writer_number: int, quorum: int, chosen: random.Random) -> None:
        try:
            writer = Writer(self._shared, DATABASE, TABLE, WriterSettings(quorum=quorum, compression="none"))
            while not self._stopping.wait(chosen.uniform(0, 2 * self._pause_s)):
                number = self._ledger.next_number()
                rows = rows_of(number, writer_number, chosen)
                begun_s = time.monotonic()
                told = self._told(writer, rows, number)
                self._ledger.note(Entry(number, writer_number, rows, quorum, told, begun_s, time.monotonic()))
            writer.close()
        except Exception as error:
            self._ledger.surprise(f"writer {writer_number} ended: {error!r}")

    def _told(self, writer: Writer, rows: pa.Table, number: int) -> Told:
        try:
            writer.write(rows, TAGS)
            writer.flush()
        except StateUnknown:
            return Told.UNKNOWN
        except WriteFailed:
            return Told.FAILED
        except HeadraceError as error:
            self._ledger.surprise(f"write {number} was refused: {error!r}")
            return Told.UNKNOWN
        return Told.ACKNOWLEDGED


def rows_of(number: int, writer: int, chosen: random.Random) -> pa.Table:
    """Rows of some series of one writer. `value` follows from series and time, to notice mixed-up rows; `note` is there to fill journals."""
    pumps, times = [], []
    for series in sorted(chosen.sample(range(SERIES), 4)):
        pumps += [f"w{writer}p{series}"] * ROWS_PER_SERIES
        if series % OVERWRITTEN_EVERY == 0:
            first = chosen.randrange(OVERWRITTEN_TIMES - ROWS_PER_SERIES + 1)
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
    """What the row of a series and a time holds, whoever wrote it last."""
    return hash_of(pump) * 1_000_003 + time_index


def hash_of(pump: str) -> int:
    """A small number that tells series apart."""
    return sum(byte * 31**place for place, byte in enumerate(pump.encode())) % 65_521


class Expectation:
    """What any node must hold after these writes. `parts` cuts the rows of a write into its messages."""

    def __init__(self, entries: Sequence[Entry], parts: Callable[[pa.Table], list[pa.Table]]) -> None:
        # A series has one writer, and that one waits for the end of each write: the order of begin is the order in the log.
        self._writes: dict[Key, list[tuple[Entry, int]]] = {}
        for entry in sorted(entries, key=lambda each: each.begun_s):
            for message, part in enumerate(parts(entry.rows)):
                for key in _keys(part):
                    self._writes.setdefault(key, []).append((entry, message))

    def faults_of(self, found: pa.Table) -> list[str]:
        """What is wrong with the rows that a node answered: lost, doubled, never written, or torn; empty when nothing is."""
        faults = Faults()
        held = _by_key(found)
        if found.num_rows > len(held):
            faults.add("there twice", f"{found.num_rows - len(held)} rows of {found.num_rows}")
        for key, (write, value) in held.items():
            self._check_held(key, write, value, faults)
        messages: dict[tuple[int, int], list[bool]] = {}
        for key, writes in self._writes.items():
            self._check_acknowledged(key, writes, held, faults)
            if len(writes) == 1 and writes[0][0].told is Told.UNKNOWN:
                messages.setdefault((writes[0][0].number, writes[0][1]), []).append(key in held)
        for (number, message), present in messages.items():
            if any(present) and not all(present):
                example = f"message {message} of write {number}: {sum(present)} of {len(present)} rows"
                faults.add("there without the rest of their message", example)
        return faults.lines()

    def _check_held(self, key: Key, write: int, value: int, faults: Faults) -> None:
        writers = [entry for entry, _ in self._writes.get(key, ()) if entry.number == write]
        if not writers or writers[0].told is Told.FAILED:
            faults.add("there that nobody wrote, or that failed", f"{key} of write {write}")
        elif value != value_of(key[0], key[1] - START_NS):
            faults.add("there with another value than was written", f"{key} of write {write}: {value}")

    def _check_acknowledged(
        self, key: Key, writes: list[tuple[Entry, int]], held: dict[Key, tuple[int, int]], faults: Faults
    ) -> None:
        """The newest acknowledged row is there, or one of unknown state that came after it."""
        newest = next((entry for entry, _ in reversed(writes) if entry.told is Told.ACKNOWLEDGED), None)
        if newest is None:
            return
        allowed = {entry.number for entry, _ in writes if entry.told is Told.UNKNOWN} | {newest.number}
        write = held[key][0] if key in held else None
        if write not in allowed:
            stands = "nothing" if write is None else f"the row of write {write}"
            faults.add("acknowledged and lost", f"{key} of write {newest.number} (quorum {newest.quorum}): {stands}")


class Faults:
    """Counts what is wrong, with some examples of each kind."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = {}

    def add(self, kind: str, example: str) -> None:
        """One more."""
        self._counts[kind] += 1
        if self._counts[kind] <= EXAMPLES_MAX:
            self._examples.setdefault(kind, []).append(example)

    def lines(self) -> list[str]:
        """One line a kind."""
        return [f"{count} {kind}: {'; '.join(self._examples[kind])}" for kind, count in self._counts.items()]


def messages_of(shared: Cluster) -> Callable[[pa.Table], list[pa.Table]]:
    """Cuts the rows of a write as a writer does: one part for each message."""
    database = shared.tables.database(DATABASE)
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
    return cut(shared.slot_table, database, schema, row)[0].group


def _by_key(rows: pa.Table) -> dict[Key, tuple[int, int]]:
    columns = [rows.column(name).to_pylist() for name in ("pump", "time", "write", "value")]
    return {(pump, at): (write, value) for pump, at, write, value in zip(*columns, strict=True)}


def _keys(rows: pa.Table) -> list[Key]:
    return list(zip(rows.column("pump").to_pylist(), rows.column("time").to_pylist(), strict=True))
