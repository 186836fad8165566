"""`headrace bench wal`: the write-ahead log beside NiFi's two, RocksDB's, and what the disk can do, leg by
leg in one run.

Every figure is updates per second, medians over rounds whose legs are interleaved in changing order. A leg of
ours counts only if what it wrote is recovered.
"""

from __future__ import annotations

import os
import random
import shutil
import statistics
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from headrace.bench.measurement import Note, ratio, ratio_text, silent
from headrace.bench.nifi_peer import NifiPeer
from headrace.bench.options import Options
from headrace.consumers.wal import BytesSerde, Put, WriteAheadLog
from headrace.schemas.errors import HeadraceError

OPTIONS = Options(
    {"seconds": 1.0, "rounds": 3, "recover": 1_000_000, "recover_large": 10_000, "peers": 1, "dir": ""},
    from_zero=("peers",),
)
"""`seconds` of a leg, `recover`ed updates of 100 B, `recover_large` of 64 KB; `peers=0`: ours and the limit only."""
KEYS_PER_CALLER = 1_000
RESERVE_BYTES = 1 << 20
REWRITTEN_BYTES = 8 << 20
SIZES = (100, 65_536)
CALLERS = (1, 4, 8)
WARMUP_SHARE = 0.3

OURS = "headrace"
SEQUENTIAL = "nifi sequential"
PARTITIONED = "nifi partitioned"
ROCKSDB = "rocksdb"
NIFI_KINDS = {SEQUENTIAL: "sequential", PARTITIONED: "partitioned"}
LIMIT = "limit: a file each"
REWRITE = "limit: rewriting"

TARGETS = (
    ("8 callers, 100 B, synced", SEQUENTIAL, 2.5),
    ("8 callers, 100 B, synced", PARTITIONED, 0.6),
    ("8 callers, 64 KB, synced", SEQUENTIAL, 2.0),
    ("8 callers, 64 KB, synced", LIMIT, 0.7),
    ("recover 100 B", SEQUENTIAL, 0.6),
    ("recover 64 KB", SEQUENTIAL, 1.0),
)
"""(figure, peer, least ratio of ours to the peer's)."""


Taken = Mapping[str, list[float]]
"""Updates per second of each round, by system."""


class ContentLost(HeadraceError):
    """What a leg wrote was not recovered: its figure is worth nothing."""


class UpdateFailed(HeadraceError):
    """A leg could not write, as on a disk that is full: its figure would be too low."""


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of load."""

    callers: int
    size: int
    sync: bool

    @property
    def name(self) -> str:
        """Name in the result."""
        size = f"{self.size} B" if self.size < 1_024 else f"{self.size >> 10} KB"
        return (
            f"{self.callers} caller{'s' if self.callers > 1 else ''}, {size}, {'synced' if self.sync else 'unsynced'}"
        )


@dataclass(frozen=True, slots=True)
class Bench:
    """The settings of a run."""

    directory: Path
    seconds: float
    rounds: int
    recover_updates: int
    recover_large_updates: int
    peer: NifiPeer | None


def run(options: Mapping[str, str], note: Note = silent) -> dict[str, Any]:
    """Options: the keys of `OPTIONS`. Raises OptionUnknown, ContentLost."""
    given = OPTIONS.chosen(options)
    # Before there is a directory: nobody would remove it when there is no Java.
    peer = NifiPeer.found() if given["peers"] else None
    directory = Path(tempfile.mkdtemp(prefix="headrace-wal-", dir=given["dir"] or None))
    try:
        bench = Bench(
            directory=directory,
            seconds=given["seconds"],
            rounds=given["rounds"],
            recover_updates=given["recover"],
            recover_large_updates=given["recover_large"],
            peer=peer and peer.compiled(directory / "classes"),
        )
        updates = _measure_updates(bench, note)
        note("recovery")
        recovery = _measure_recovery(bench)
        limits = {"fdatasync_per_second": _fdatasync_rate(bench), "sequential_write_mb_per_second": _write_rate(bench)}
    finally:
        shutil.rmtree(directory, ignore_errors=True)
    taken = {**updates, **recovery}
    return {
        "settings": {"seconds": bench.seconds, "rounds": bench.rounds, "keys_per_caller": KEYS_PER_CALLER},
        "figures": {name: {system: _summary(of) for system, of in systems.items()} for name, systems in taken.items()},
        "limits": limits,
        "targets": [target_of(taken, *target) for target in TARGETS if target[1] in taken[target[0]]],
        "content": "every leg of ours recovered what it wrote",
    }


def table(result: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The result as rows for people: updates per second, for recovery records per second."""
    rows = []
    for name, systems in result["figures"].items():
        figures = ", ".join(f"{system} {figure['median']:,.0f}" for system, figure in systems.items())
        rows.append((name, figures))
    for name, figure in result["limits"].items():
        rows.append((f"limit: {name.replace('_', ' ')}", f"{figure:,.0f}"))
    return [*rows, *((f"{each['figure']} against {each['peer']}", ratio_text(each)) for each in result["targets"])]


def target_of(taken: Mapping[str, Taken], figure: str, peer: str, least: float) -> dict[str, Any]:
    """Ours over a peer, round by round, beside the least that it has to be."""
    return {"figure": figure, "peer": peer, **ratio(taken[figure][OURS], taken[figure][peer], least)}


def _summary(values: list[float]) -> dict[str, float]:
    return {"median": round(statistics.median(values)), "min": round(min(values)), "max": round(max(values))}


def _measure_updates(bench: Bench, note: Note) -> dict[str, Taken]:
    systems: dict[str, Callable[[Bench, Case, Path], float]] = {OURS: _ours, LIMIT: _limit, REWRITE: _rewrite}
    if bench.peer is not None:
        nifi = {name: partial(_nifi, bench.peer, kind) for name, kind in NIFI_KINDS.items()}
        systems |= {**nifi, ROCKSDB: _rocksdb}
    figures: dict[str, Taken] = {}
    for case in (Case(callers, size, sync) for sync in (True, False) for size in SIZES for callers in CALLERS):
        note(case.name)
        values: dict[str, list[float]] = {name: [] for name in systems}
        for _ in range(bench.rounds):
            # In changing order: a disk slows down and recovers over a run, and each system must meet both.
            for name in random.sample(list(systems), len(systems)):
                with _fresh(bench) as directory:
                    rate = systems[name](bench, case, directory)
                if not rate:
                    # Nothing can be compared with it.
                    raise UpdateFailed(f"{case.name}: no update of {name} ended in time", action="give more seconds")
                values[name].append(rate)
        figures[case.name] = values
    return figures


@contextmanager
def _fresh(bench: Bench) -> Iterator[Path]:
    directory = Path(tempfile.mkdtemp(dir=bench.directory))
    try:
        yield directory
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def _drive(callers: int, seconds: float, update: Callable[[int, int], None]) -> tuple[float, list[int]]:
    """Calls `update(caller, count)` from that many threads; returns (calls per second after the warm-up,
    calls by caller in all). Raises UpdateFailed.
    """
    counts = [0] * callers
    measured = [0] * callers
    failures: list[Exception] = []
    go = threading.Event()
    times = [0.0, 0.0]

    def work(caller: int) -> None:
        # A caller that ends early would only make a system look slow: the limit on a full disk, for one.
        try:
            called(caller)
        except Exception as error:
            failures.append(error)

    def called(caller: int) -> None:
        go.wait()
        count = 0
        # A local name: the loop runs once per update, and what it costs itself is measured with it.
        clock = time.perf_counter
        while clock() < times[0]:
            update(caller, count)
            count += 1
        begun = count
        while clock() < times[1]:
            update(caller, count)
            count += 1
        counts[caller], measured[caller] = count, count - begun

    threads = [threading.Thread(target=work, args=(caller,)) for caller in range(callers)]
    for thread in threads:
        thread.start()
    times[0] = time.perf_counter() + seconds * WARMUP_SHARE
    times[1] = times[0] + seconds
    go.set()
    for thread in threads:
        thread.join()
    if failures:
        raise UpdateFailed(f"an update failed: {failures[0]}", action="free space, or use fewer bytes") from failures[0]
    return sum(measured) / seconds, counts


def _ours(bench: Bench, case: Case, directory: Path) -> float:
    value = os.urandom(case.size)
    log = WriteAheadLog(directory, BytesSerde())
    log.recover()

    def update(caller: int, count: int) -> None:
        log.update([Put((b"%d-%d" % (caller, count % KEYS_PER_CALLER), value))], sync=case.sync)

    rate, counts = _drive(case.callers, bench.seconds, update)
    log.close()
    again = WriteAheadLog(directory, BytesSerde())
    state = again.recover()
    again.close()
    expected = sum(min(count, KEYS_PER_CALLER) for count in counts)
    if len(state) != expected or any(state[b"%d-0" % caller][1] != value for caller in range(case.callers)):
        raise ContentLost(f"{case.name}: {len(state)} records were recovered instead of {expected}")
    return rate


def _rocksdb(bench: Bench, case: Case, directory: Path) -> float:
    from rocksdict import Options, Rdict, WriteBatch, WriteOptions

    options = Options(raw_mode=True)
    options.create_if_missing(True)
    database = Rdict(str(directory / "db"), options=options)
    how = WriteOptions()
    how.sync = case.sync
    value = os.urandom(case.size)

    def update(caller: int, count: int) -> None:
        batch = WriteBatch(raw_mode=True)
        batch.put(b"%d-%d" % (caller, count % KEYS_PER_CALLER), value)
        database.write(batch, write_opt=how)

    rate, _ = _drive(case.callers, bench.seconds, update)
    database.close()
    return rate


def _limit(bench: Bench, case: Case, directory: Path) -> float:
    """pwrite, and fdatasync when asked for, to the end of a file of each caller's own: no log, no order, no
    recovery.

    Like our journals the files are preallocated 1 MiB at a time.
    """
    value = os.urandom(case.size)
    files = [os.open(directory / str(caller), os.O_RDWR | os.O_CREAT) for caller in range(case.callers)]
    reserved = [0] * case.callers

    def update(caller: int, count: int) -> None:
        if (count + 1) * case.size > reserved[caller]:
            os.posix_fallocate(files[caller], reserved[caller], RESERVE_BYTES)
            reserved[caller] += RESERVE_BYTES
        os.pwrite(files[caller], value, count * case.size)
        if case.sync:
            os.fdatasync(files[caller])

    try:
        return _drive(case.callers, bench.seconds, update)[0]
    finally:
        for file in files:
            os.close(file)


def _rewrite(bench: Bench, case: Case, directory: Path) -> float:
    """The same within 8 MiB of each file, again and again.

    No log can do that: neither space nor pages are ever new.
    """
    value = os.urandom(case.size)
    files = [os.open(directory / str(caller), os.O_RDWR | os.O_CREAT) for caller in range(case.callers)]
    for file in files:
        os.pwrite(file, bytes(REWRITTEN_BYTES), 0)
        os.fsync(file)
    slots = REWRITTEN_BYTES // case.size

    def update(caller: int, count: int) -> None:
        os.pwrite(files[caller], value, count % slots * case.size)
        if case.sync:
            os.fdatasync(files[caller])

    try:
        return _drive(case.callers, bench.seconds, update)[0]
    finally:
        for file in files:
            os.close(file)


def _nifi(peer: NifiPeer, kind: str, bench: Bench, case: Case, directory: Path) -> float:
    seconds, warmup = str(bench.seconds), str(max(bench.seconds * WARMUP_SHARE, 0.5))
    load = ("update", str(case.callers), str(case.size), str(case.sync).lower(), seconds, warmup)
    result = peer.measured(kind, directory / "nifi", *load)
    return result["updates"] / result["nanoseconds"] * 1e9


def _measure_recovery(bench: Bench) -> dict[str, Taken]:
    figures: dict[str, Taken] = {}
    for size, count in ((100, bench.recover_updates), (65_536, bench.recover_large_updates)):
        with _fresh(bench) as directory:
            _fill(directory / OURS, count, size)
            systems: dict[str, Callable[[], float]] = {OURS: partial(_recover, directory / OURS, count)}
            if bench.peer is not None:
                # NiFi checkpoints when it recovers, so each round needs a new copy.
                for name, kind in NIFI_KINDS.items():
                    bench.peer.measured(kind, directory / kind, "fill", str(count), str(size))
                    systems[name] = partial(_recover_peer, bench, bench.peer, kind, directory / kind, count)
            values: dict[str, list[float]] = {name: [] for name in systems}
            for _ in range(bench.rounds):
                for name in random.sample(list(systems), len(systems)):
                    values[name].append(count / systems[name]())
            name = f"recover {size} B" if size < 1_024 else f"recover {size >> 10} KB"
            figures[name] = values
    return figures


def _fill(directory: Path, count: int, size: int) -> None:
    log = WriteAheadLog(directory, BytesSerde(), checkpoint_bytes=None, checkpoint_age_ms=None)
    log.recover()
    value = os.urandom(size)
    for index in range(count):
        log.update([Put((b"%08d" % index, value))], sync=index == count - 1)
    log.close()


def _recover(directory: Path, count: int) -> float:
    log = WriteAheadLog(directory, BytesSerde(), checkpoint_bytes=None, checkpoint_age_ms=None)
    begun = time.perf_counter()
    state = log.recover()
    seconds = time.perf_counter() - begun
    log.close()
    if len(state) != count:
        raise ContentLost(f"{len(state)} records were recovered instead of {count}")
    return seconds


def _recover_peer(bench: Bench, peer: NifiPeer, kind: str, filled: Path, count: int) -> float:
    with _fresh(bench) as directory:
        shutil.copytree(filled, directory / "copy")
        recovered = peer.measured(kind, directory / "copy", "recover")
    if recovered["records"] != count:
        raise ContentLost(f"the {kind} log of NiFi recovered {recovered['records']} records instead of {count}")
    return recovered["nanoseconds"] / 1e9


def _fdatasync_rate(bench: Bench) -> int:
    with _fresh(bench) as directory:
        return round(_limit(bench, Case(1, 4_096, True), directory))


def _write_rate(bench: Bench) -> int:
    """One file, 256 MiB in chunks of 1 MiB, synced at the end: MB/s."""
    # Random bytes: a disk or file system that compresses would be measured too fast.
    chunk = os.urandom(1 << 20)
    with _fresh(bench) as directory, open(directory / "file", "wb", buffering=0) as file:
        begun = time.perf_counter()
        for _ in range(256):
            file.write(chunk)
        os.fdatasync(file.fileno())
        return round(256 * (1 << 20) / 1e6 / (time.perf_counter() - begun))
