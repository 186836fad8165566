"""`headrace bench fairness`: what long queries cost short ones, and the other way round, at one node.

One run, on the same sealed rows, asked by other processes over HTTP. Short queries come at a fixed rate, and their time
counts from the moment at which they were due: alone, beside eight long ones, and beside the same long ones at a node
whose slices never end, which is a FIFO pool. The long ones are a fixed amount of work: scans, an aggregate of all
series, a full sort and a join, together long enough to cross levels. Their ratio is the time that this work takes alone
over its time beside the short queries.

What is measured alone is measured before and behind the mixed load: the speed of a shared machine changes by a fifth
within minutes, and would be taken for an effect of the load.
"""

from __future__ import annotations

import gc
import multiprocessing
import shutil
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from http import HTTPStatus
from itertools import pairwise
from pathlib import Path
from types import TracebackType
from typing import Any

from headrace.bench.asking import LeanClient
from headrace.bench.measurement import (
    DATABASE,
    Note,
    connected,
    percentiles,
    running_broker,
    running_cluster,
    seal,
    settings_text,
    silent,
    stolen_in,
    versions,
)
from headrace.bench.options import Options
from headrace.connectors.http import request_node
from headrace.local_cluster import LocalCluster
from headrace.producers.cluster import Cluster
from headrace.producers.writer import TableWriter, WriterSettings
from headrace.schemas.errors import HeadraceError
from headrace.workload import DEFAULT_START_NS, cpu

OPTIONS = Options(
    {
        "hosts": 400,
        "hours": 24,
        "rate": 50.0,
        "scans": 60,
        "repeats": 24,
        "alone_s": 20.0,
        "fifo_s": 60.0,
        "seed": 1,
        "dir": "",
    },
)
RATIO_MOST, SHORT_MS_MOST, LONG_RATIO_LEAST, STEP_MS_MOST, REFUSED_MOST = 2.0, 250.0, 0.9, 5.0, 0
FIFO_SLICE_MS = 86_400_000
TABLE = f'"{DATABASE}"."cpu"'
SHORTS_AT_ONCE = 200
TIMEOUT_MS = 900_000
STEP_METRIC = "headrace_query_step_seconds_bucket"
CLIENT_START_S = 2.0
SHORT_WAIT_S = 120.0
"""How long short queries that are still asked may take, before the benchmark fails."""
_CONTEXT = multiprocessing.get_context("spawn")
_stopping: Any = None
"""In a client: the event that ends the short queries."""


class ClientFailed(HeadraceError):
    """A query of the benchmark gave no answer."""


@dataclass(frozen=True, slots=True)
class Shorts:
    """What short queries met: milliseconds from the moment at which each was due, and how many were refused."""

    taken_ms: list[float]
    refused: int

    def with_others(self, others: Shorts) -> Shorts:
        """Both together."""
        return Shorts([*self.taken_ms, *others.taken_ms], self.refused + others.refused)

    def figures(self) -> dict[str, float]:
        """The percentiles, and the longest."""
        if not self.taken_ms:
            raise ClientFailed("no short query was answered", action="give the benchmark more time")
        found = percentiles(self.taken_ms)
        return {"p50_ms": found["p50"], "p99_ms": found["p99"], "max_ms": max(self.taken_ms), "count": found["count"]}


def run(options: Mapping[str, str], note: Note = silent) -> dict[str, Any]:
    """Options: hosts, hours, rate, scans, repeats, alone_s, fifo_s, seed, dir. Raises ClientFailed."""
    settings = OPTIONS.chosen(options)
    directory = Path(tempfile.mkdtemp(prefix="headrace-fairness-", dir=settings.pop("dir") or None))
    try:
        with (
            running_broker(directory / "broker") as broker,
            running_cluster(
                directory / "node", broker, 1, query_threads="2", query_timeout_ms=str(TIMEOUT_MS)
            ) as local,
            connected(local.bootstrap, local.cluster) as cluster,
        ):
            note(f"writing {settings['hosts']} hosts of {settings['hours']} hours")
            _fill(local, cluster, settings)
            figures = _measure(local, settings, note)
            return figures | {"bars": bars(figures), "settings": settings, "versions": versions()}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def table(result: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """The result as rows for people."""
    lines = [
        (name, f"p50 {each['p50_ms']:.1f} ms, p99 {each['p99_ms']:.1f} ms, longest {each['max_ms']:.0f} ms")
        for name, each in ((name, result[name]) for name in ("unloaded", "loaded", "fifo"))
    ]
    lines += [
        (f"{name}, stolen", f"{share:.1%} of the processors' time") for name, share in result["stolen_share"].items()
    ]
    bar_lines = [
        (name, f"{bar['value']:.2f}, {bar['bar']}: {'met' if bar['met'] else 'missed'}")
        for name, bar in result["bars"].items()
    ]
    return [*settings_text(result), *lines, *bar_lines]


def bars(figures: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each figure that has a bar, and whether it reaches it."""
    most = {
        "ratio": (figures["ratio"], RATIO_MOST),
        "short_longest_ms": (figures["loaded"]["max_ms"], SHORT_MS_MOST),
        "step_p99_ms": (figures["step_ms"]["p99"], STEP_MS_MOST),
        "refused": (figures["refused"], REFUSED_MOST),
    }
    found = {
        name: {"value": value, "bar": f"at most {bar:g}", "met": value <= bar} for name, (value, bar) in most.items()
    }
    value = figures["long_ratio"]
    found["long_ratio"] = {"value": value, "bar": f"at least {LONG_RATIO_LEAST:g}", "met": value >= LONG_RATIO_LEAST}
    return found


def _fill(local: LocalCluster, cluster: Cluster, settings: Mapping[str, Any]) -> None:
    source = cpu(
        hosts=settings["hosts"],
        start_ns=DEFAULT_START_NS,
        duration_s=settings["hours"] * 3_600,
        seed=settings["seed"],
    )
    with TableWriter(cluster, DATABASE, "cpu", WriterSettings()) as writer:
        for _, rows in source.batches(tables=["cpu"]):
            writer.write(rows, [name for name in rows.schema.names if not name.startswith(("usage_", "time"))])
        writer.flush()
        offsets = writer.newest()
    seal(local, offsets)


def _measure(local: LocalCluster, settings: Mapping[str, Any], note: Note) -> dict[str, Any]:
    url, stolen = local.url("n1"), dict[str, float]()
    with _Clients(_long_work(settings), url) as clients:
        note("short queries alone")
        # Caches and connections of the first seconds are no part of what is usual.
        clients.shorts(url, settings, 3.0)
        before = clients.shorts(url, settings, settings["alone_s"])
        note("the long queries alone")
        with stolen_in(stolen, "long_before"):
            before_s = clients.longs(url)
        note(f"they took {before_s:.0f} s; the same beside {settings['rate']:g} short ones a second")
        steps_before = _steps(url)
        with stolen_in(stolen, "loaded"):
            loaded, loaded_s = clients.both(url, settings)
        steps = _step_figures(steps_before, _steps(url))
        note(f"they took {loaded_s:.0f} s; the long queries alone once more")
        with stolen_in(stolen, "long_behind"):
            behind_s = clients.longs(url)
        note(f"they took {behind_s:.0f} s; short queries alone once more")
        unloaded = before.with_others(clients.shorts(url, settings, settings["alone_s"]))
    alone_s = (before_s + behind_s) / 2
    note("the same at a FIFO pool")
    _become_fifo(local)
    # Others: those of the first node may still wait for it.
    with _Clients(_long_work(settings), local.url("n1")) as clients:
        fifo, _ = clients.both(local.url("n1"), settings, settings["fifo_s"])
    return {
        "unloaded": unloaded.figures(),
        "loaded": loaded.figures(),
        "fifo": fifo.figures(),
        "ratio": loaded.figures()["p99_ms"] / unloaded.figures()["p99_ms"],
        "long_ratio": alone_s / loaded_s,
        "long_alone_s": alone_s,
        "long_before_s": before_s,
        "long_behind_s": behind_s,
        "long_loaded_s": loaded_s,
        "step_ms": steps,
        "stolen_share": stolen,
        "refused": unloaded.refused + loaded.refused,
    }


def _become_fifo(local: LocalCluster) -> None:
    """Start the node again with slices that never end."""
    local.stop()
    local.environment |= {
        "HEADRACE__QUERY__SLICE_MS": str(FIFO_SLICE_MS),
        "HEADRACE__QUERY__SHORT_THREADS": "0",
        "HEADRACE__QUERY__QUERIES_MAX": str(10 * SHORTS_AT_ONCE),
        "HEADRACE__QUERY__QUERIES_PER_USER_MAX": str(10 * SHORTS_AT_ONCE),
    }
    local.start()


def _long_work(settings: Mapping[str, Any]) -> list[tuple[str, int]]:
    """The eight long queries, and how often each is asked, one after the other."""
    many = " UNION ALL ".join([f"FROM {TABLE}"] * settings["scans"])
    scans = [f"SELECT sum({field}) FROM ({many}) WHERE usage_idle >= 0" for field in ("usage_user", "usage_system")]
    scans += [f"SELECT max({field}), min(usage_irq) FROM ({many})" for field in ("usage_nice", "usage_iowait")]
    scans += [f"SELECT count(*) FROM ({many}) WHERE usage_user + usage_steal > 300"]
    every = f"SELECT hostname, avg(usage_user), max(usage_idle) FROM ({many}) GROUP BY hostname"
    sort = (
        "SELECT sum(place * usage_idle) FROM"
        f" (SELECT usage_idle, row_number() OVER (ORDER BY usage_user) AS place FROM {TABLE})"
    )
    join = f"SELECT sum(a.usage_user * b.usage_idle) FROM {TABLE} AS a JOIN {TABLE} AS b USING (hostname, time)"
    return [*((sql, 1) for sql in (*scans, every)), (sort, settings["repeats"]), (join, settings["repeats"])]


class _Clients:
    """The processes that ask: one for each long query, and one for the short ones. They start once.

    To start one takes longer than many queries, and a processor that the node then lacks.
    """

    def __init__(self, work: Sequence[tuple[str, int]], url: str) -> None:
        self._work = work
        self._url = url
        self._stopping = _CONTEXT.Event()
        self._pool = _CONTEXT.Pool(len(work) + 1, _client_begins, (self._stopping,))

    def __enter__(self) -> _Clients:
        self._pool.map(_ask_first, [self._url] * (len(self._work) + 1), chunksize=1)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._pool.terminate()

    def shorts(self, url: str, settings: Mapping[str, Any], seconds: float) -> Shorts:
        """Short queries alone."""
        pending = self._ask_shorts(url, settings)
        time.sleep(seconds)
        return self._stopped(pending)

    def longs(self, url: str, timeout_s: float | None = None) -> float:
        """Run the long queries; the seconds until all have ended, or until `timeout_s` is over."""
        began_s = time.monotonic()
        pending = self._pool.starmap_async(_ask_long, [(url, *each) for each in self._work], chunksize=1)
        if timeout_s is None:
            pending.get()
        else:
            pending.wait(timeout_s)
        return time.monotonic() - began_s

    def both(self, url: str, settings: Mapping[str, Any], timeout_s: float | None = None) -> tuple[Shorts, float]:
        """Short queries while the long ones run; what they met, and the seconds of the long ones."""
        pending = self._ask_shorts(url, settings)
        # Behind an error or an interrupt nobody waits for the short ones: they end with their process.
        taken_s = self.longs(url, timeout_s)
        return self._stopped(pending), taken_s

    def _ask_shorts(self, url: str, settings: Mapping[str, Any]) -> Any:
        self._stopping.clear()
        return self._pool.apply_async(_ask_shorts, (url, settings["hosts"], settings["rate"]))

    def _stopped(self, pending: Any) -> Shorts:
        self._stopping.set()
        shorts: Shorts = pending.get(SHORT_WAIT_S)
        return shorts


def _client_begins(stopping: Any) -> None:
    """In each client: what ends the short queries."""
    global _stopping
    _stopping = stopping
    # A terminal sends it to all processes. The first one ends the clients: one that ends by itself is replaced.
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _ask_first(url: str) -> None:
    """The first question of a process loads modules, for which nine of them would need both processors for a second."""
    _ask(url, "SELECT 1")
    # A collection of all modules takes 20 to 30 ms and more under load: short queries would wait in their own process.
    gc.collect()
    gc.freeze()
    # Long enough that each process takes one.
    time.sleep(CLIENT_START_S)


def _ask_long(url: str, sql: str, times: int) -> None:
    for _ in range(times):
        _ask(url, sql)


def _ask_shorts(url: str, hosts: int, rate: float) -> Shorts:
    """Ask at a fixed rate, whatever the answers take. Raises what a question did."""
    taken_ms, refused, failures = list[float](), list[int](), list[Exception]()

    def ask(number: int, due_s: float) -> None:
        try:
            status, _ = client.ask(_document(_short(number, hosts)), TIMEOUT_MS / 1_000)
        except Exception as error:
            failures.append(error)
            return
        # A refusal is quick: among the times it would hide what others waited.
        if status != HTTPStatus.OK:
            refused.append(number)
        else:
            taken_ms.append((time.monotonic() - due_s) * 1_000)

    client = LeanClient(url)
    with ThreadPoolExecutor(SHORTS_AT_ONCE) as threads:
        began_s, number = time.monotonic(), 0
        while not _stopping.is_set():
            due_s = began_s + number / rate
            time.sleep(max(0.0, due_s - time.monotonic()))
            threads.submit(ask, number, due_s)
            number += 1
        threads.shutdown(cancel_futures=True)
    if failures:
        raise failures[0]
    return Shorts(taken_ms, len(refused))


def _short(number: int, hosts: int) -> str:
    """One series, of a quarter of an hour."""
    host, begin = number * 7 % hosts, number * 11 % 40 * 900
    start = f"make_timestamp_ns({DEFAULT_START_NS + begin * 1_000_000_000})"
    return (
        f"SELECT max(usage_user), count(*) FROM {TABLE} WHERE hostname = 'host_{host}'"
        f" AND time >= {start} AND time < {start} + INTERVAL 15 MINUTE"
    )


def _ask(url: str, sql: str) -> Any:
    with request_node(
        f"{url}/api/v1/query", method="POST", document=_document(sql), timeout_s=TIMEOUT_MS / 1_000
    ) as answer:
        return answer.json()


def _document(sql: str) -> dict[str, Any]:
    return {"sql": sql, "format": "json", "timeout_ms": TIMEOUT_MS}


def _steps(url: str) -> dict[float, float]:
    """Steps so far by the upper bound of their seconds."""
    with request_node(f"{url}/metrics", method="GET", timeout_s=60.0) as answer:
        lines = b"".join(answer.chunks()).decode().splitlines()
    pairs = (line.rsplit(" ", 1) for line in lines if line.startswith(STEP_METRIC))
    return {float(labels.split('le="')[1].split('"')[0]): float(count) for labels, count in pairs}


def _step_figures(before: Mapping[float, float], after: Mapping[float, float]) -> dict[str, float]:
    """Percentiles in ms, within a bucket by a line; `max` is the bound of the last bucket that has a step."""
    counts = {bound: after[bound] - before.get(bound, 0.0) for bound in sorted(after)}
    total = max(counts.values())
    edges = [(0.0, 0.0), *counts.items()]

    def at(share: float) -> float:
        for (low, below), (high, upto) in pairwise(edges):
            if upto >= share * total and upto > below:
                return 1_000 * (
                    low if high == float("inf") else low + (high - low) * (share * total - below) / (upto - below)
                )
        return 0.0

    return {"p50": at(0.5), "p99": at(0.99), "max": at(1.0)}
