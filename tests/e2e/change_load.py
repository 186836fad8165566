"""Writers and queries that run while a cluster's members change, and what every answer must contain.

One writer that is never restarted writes days of readings of all pumps with quorum 2, writes some of them again,
and deletes rows of some. Each node is asked all the time. An answer must have every acknowledged row and no row
twice. It must have the newest acknowledged value, or one that was being written.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import pyarrow as pa

from headrace.client import Client
from headrace.node_client import NodeClient
from headrace.schemas.errors import HeadraceError

PUMPS = 20
DAY_NS = 86_400_000_000_000
FIRST_DAY = 20_000
QUERY = (
    "SELECT (epoch_ns(time) // 86400000000000)::BIGINT AS day, count(*) AS rows, count(DISTINCT pump) AS pumps, "
    "min(level) AS least, max(level) AS most, sum(flow)::BIGINT AS flow FROM fleet.pumps GROUP BY day ORDER BY day"
)


@dataclass(frozen=True, slots=True)
class Pace:
    """How much is written and asked. Each day has files of its own, and every query reads all of them."""

    days_max: int = 1_000
    write_pause_s: float = 0.05
    query_pause_s: float = 1.0


@dataclass(slots=True)
class Day:
    """The readings of one day: the newest acknowledged level, the newest that was sent, and how many pumps it has.

    `gone` pumps are deleted, `going` of them perhaps. `deletes` are the pumps of all deletes so far, in order.
    """

    level: int = 0
    sent: int = 0
    gone: frozenset[int] = frozenset()
    going: frozenset[int] = frozenset()
    deletes: tuple[int, ...] = ()


@dataclass(slots=True)
class Model:
    """All days. What a query may answer lies between the model before it and the one after.

    `after` are the log offsets of all that is acknowledged.
    """

    days: dict[int, Day] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)

    def copied(self) -> dict[int, Day]:
        """The days as they are now."""
        with self.lock:
            return {number: replace(day) for number, day in self.days.items()}


class ChangeLoad:
    """The writer and one asking thread for each node, from `start` to `stop`.

    `faults` are what an answer had wrong. `write_ms` are the acknowledgement times of writes with their moments.
    """

    def __init__(
        self, client: Client, urls: Callable[[], Mapping[str, str]], seed: int = 1, pace: Pace | None = None
    ) -> None:
        self._client = client
        self._pace = pace or Pace()
        self._urls = urls
        self._random = random.Random(seed)
        self._stopping = threading.Event()
        self._threads: list[threading.Thread] = []
        self._asked: set[str] = set()
        self.model = Model()
        self.faults: list[str] = []
        self.errors: list[str] = []
        self.write_ms: list[tuple[float, float]] = []
        self.query_ms: list[tuple[float, float]] = []
        self.rows_written = 0
        self.answers: dict[str, int] = {}

    def start(self) -> None:
        """Begin to write, and to ask the nodes."""
        self._spawn(self._write, "writer")
        for name in self._urls():
            self.ask(name)

    def ask(self, name: str) -> None:
        """Ask one more node."""
        if name not in self._asked:
            self._asked.add(name)
            self._spawn(lambda: self._query(name), f"asks-{name}")

    def ask_no_more(self, name: str) -> None:
        """The node leaves: it is asked no more."""
        self._asked.discard(name)

    def stop(self) -> None:
        """End all threads."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), thread.name

    def _spawn(self, target: Callable[[], None], name: str) -> None:
        thread = threading.Thread(target=target, name=name, daemon=True)
        self._threads.append(thread)
        thread.start()

    # Writing.

    def _write(self) -> None:
        try:
            with self._client.writer("fleet", "pumps", ["pump"], quorum=2, quorum_timeout_ms=30_000) as writer:
                number = 0
                while not self._stopping.is_set():
                    number += 1
                    if number % 23 == 0:
                        self._delete()
                    elif (number % 4 == 0 and self.model.days) or len(self.model.days) >= self._pace.days_max:
                        self._write_day(writer.write, self._random.choice(sorted(self.model.days)))
                    else:
                        self._write_day(writer.write, FIRST_DAY + len(self.model.days))
                    self._stopping.wait(self._pace.write_pause_s)
        except Exception as error:
            self.faults.append(f"the writer ended: {error!r}")

    def _write_day(self, write: Callable[[pa.Table], None], number: int) -> None:
        with self.model.lock:
            day = self.model.days.setdefault(number, Day())
            day.sent += 1
            level = day.sent
            # A row that is written again is there again.
            back, day.gone, day.going = day.gone | day.going, frozenset(), day.gone | day.going
        rows = rows_of(number, level)
        began = time.monotonic()
        for attempt in range(100):
            try:
                write(rows)
                after = dict(self._client.flush())
                break
            except HeadraceError as error:
                # Writing again is safe, whatever became of it.
                self.errors.append(f"write: {error}")
                if attempt == 99 or self._stopping.is_set():
                    raise
                time.sleep(0.2)
        self.write_ms.append((began, (time.monotonic() - began) * 1_000))
        self.rows_written += len(rows)
        # Together: an answer must have what is acknowledged only if it was asked with these offsets.
        with self.model.lock:
            self.model.after = after
            day.level, day.going = level, day.going - back

    def _delete(self) -> None:
        with self.model.lock:
            numbers = sorted(self.model.days)
            if len(numbers) < 4:
                return
            first = self._random.choice(numbers[:-2])
            pump = self._random.randrange(PUMPS)
            chosen = [self.model.days[number] for number in (first, first + 1)]
            for day in chosen:
                day.going |= {pump}
                day.deletes += (pump,)
        for attempt in range(100):
            try:
                self._client.delete(
                    "fleet", "pumps", {"pump": f"p{pump}"}, first * DAY_NS, (first + 2) * DAY_NS, quorum=2
                )
                after = dict(self._client.flush())
                break
            except HeadraceError as error:
                self.errors.append(f"delete: {error}")
                if attempt == 99 or self._stopping.is_set():
                    raise
                time.sleep(0.2)
        with self.model.lock:
            self.model.after = after
            for day in chosen:
                day.gone, day.going = day.gone | {pump}, day.going - {pump}

    # Asking.

    def _query(self, name: str) -> None:
        while not self._stopping.is_set() and name in self._asked:
            url = self._urls().get(name, "")
            if url:
                self.check(name, url)
            self._stopping.wait(self._pace.query_pause_s)

    def check(self, name: str, url: str) -> bool:
        """Ask one node once, and compare. False if it did not answer."""
        with self.model.lock:
            before, after = self.model.copied(), self.model.after
        began = time.monotonic()
        try:
            answer = b"".join(NodeClient(url).query(QUERY, format="arrow", after=after, timeout_ms=30_000))
        except HeadraceError as error:
            self.errors.append(f"{name}: {error}")
            return False
        self.query_ms.append((began, (time.monotonic() - began) * 1_000))
        found = pa.ipc.open_stream(answer).read_all().to_pylist()
        wrong = differences(found, before, self.model.copied())
        self.faults += [f"{name} at {began:.1f}: {line}" for line in wrong]
        self.answers[name] = self.answers.get(name, 0) + 1
        return True


def rows_of(day: int, level: int) -> pa.Table:
    """One reading of every pump on a day; `flow` follows from day and pump alone."""
    return pa.table(
        {
            "pump": [f"p{number}" for number in range(PUMPS)],
            "time": pa.array([day * DAY_NS + number * 1_000_000 for number in range(PUMPS)], pa.timestamp("ns")),
            "level": pa.array([level] * PUMPS, pa.int64()),
            "flow": pa.array([float(day * 1_000 + number) for number in range(PUMPS)]),
        }
    )


def differences(
    found: Sequence[Mapping[str, int]], before: Mapping[int, Day], after: Mapping[int, Day], limit: int = 3
) -> list[str]:
    """What an answer has that it must not have, or lacks; the first `limit`."""
    by_day = {row["day"]: row for row in found}
    return list(_limited(_differences(by_day, before, after), limit))


def _differences(
    by_day: Mapping[int, Mapping[str, int]], before: Mapping[int, Day], after: Mapping[int, Day]
) -> Iterator[str]:
    for number, row in by_day.items():
        if number not in after:
            yield f"day {number} was never written"
        elif row["rows"] != row["pumps"]:
            yield f"day {number} has {row['rows']} rows of {row['pumps']} pumps"
    for number, day in before.items():
        later, found = after[number], by_day.get(number)
        if day.level == 0:
            continue
        # What is deleted at both moments, and not perhaps written in between, must be gone.
        gone = day.gone & later.gone if day.sent == later.sent == later.level else frozenset()
        # What was deleted since, and perhaps written again, may be missing in between.
        since = frozenset(later.deletes[len(day.deletes) :])
        maybe = (day.gone | day.going | later.gone | later.going | since) - gone
        least, most = PUMPS - len(gone) - len(maybe), PUMPS - len(gone)
        rows = found["rows"] if found is not None else 0
        if not least <= rows <= most:
            yield f"day {number} has {rows} rows, between {least} and {most} are acknowledged; {day} {later}"
        elif found is not None and rows and not (day.level <= found["least"] and found["most"] <= later.sent):
            yield f"day {number} has levels {found['least']} to {found['most']}, acknowledged {day.level}, sent {later.sent}"


def _limited(lines: Iterator[str], limit: int) -> Iterator[str]:
    for _number, line in zip(range(limit), lines, strict=False):
        yield line


@contextmanager
def running(load: ChangeLoad) -> Iterator[ChangeLoad]:
    """The load while the body runs."""
    load.start()
    try:
        yield load
    finally:
        load.stop()
