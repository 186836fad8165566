"""`headrace bench sync`: sealed segments from an edge node to a centre, beside rsync and the limits.

One run: an edge node without Kafka gets incompressible rows over HTTP and seals them, day by day, into files of about
`file_mb`: one for each day and bucket. Then `sync send --once` sends them to a centre of one node. Measured are the
seconds of that command, and the CPU time of all processes together: edge node, sender, broker, receiver, node of the
centre. Beside it, over the same files: rsync's daemon with MD5 where rsync is installed, and three limits. MD5 alone;
a copy through a socket with a sync for each file; the chunks produced and drained with a sync for each file. Every
round is another database. What arrives is read back and compared.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import psutil
import pyarrow as pa

from headrace.bench.content import check_node
from headrace.bench.measurement import (
    Leg,
    Note,
    ProcessClock,
    broker_pid,
    in_child,
    node_pids,
    ratio,
    ratio_text,
    running_broker,
    running_cluster,
    settings_text,
    silent,
    summary,
    versions,
)
from headrace.bench.noise import DAY_NS, HOSTS, ROW_BYTES, START_NS, STEPS_A_BATCH, STEPS_A_DAY, TAGS, Noise
from headrace.bench.options import Options
from headrace.bench.sync_limits import copied_through_socket, drained, hashed, synced_by_rsync
from headrace.connectors.deadline import Deadline
from headrace.connectors.http import NodeUnreachable, call_node
from headrace.connectors.kafka.broker import EmbeddedBroker
from headrace.connectors.kafka.broker_process import free_port
from headrace.local_cluster import LocalCluster
from headrace.node_client import NodeClient
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import DEFAULT_BUCKETS
from headrace.workload.checksum import checksums, total

OPTIONS = Options(
    {"mb": 800, "file_mb": 8, "rounds": 3, "seed": 1, "digest": "xxh3", "dir": ""}, among={"digest": ("xxh3", "md5")}
)
TABLE = "noise"
RATE_LEAST, PER_CPU_LEAST = 1.5, 1.2
COMMAND = (sys.executable, "-m", "headrace")
READY_TIMEOUT_S = 60.0
SEND_TIMEOUT_S = 600.0
POLL_S = 0.05
COPIES = 4
"""How much memory is used before each leg, in sizes of the files.

A page that a virtual machine uses for the first time costs ten times as much as another one. The first legs would pay
for those that follow.
"""


class SyncFailed(HeadraceError):
    """A process of the benchmark ended early, or the files were not all accepted."""


def run(options: Mapping[str, str], note: Note = silent) -> dict[str, Any]:
    """Options: mb of rows a round, file_mb of a file, rounds, seed, digest (xxh3 or md5), dir.

    Raises SyncFailed, ContentDiffers.
    """
    settings = OPTIONS.chosen(options)
    directory = Path(tempfile.mkdtemp(prefix="headrace-sync-", dir=settings.pop("dir") or None))
    try:
        with (
            running_broker(directory / "broker") as broker,
            running_cluster(directory / "centre", broker, 1) as centre,
            running_process(directory, "edge", *_edge_words(directory, port := free_port())) as edge,
            running_process(directory, "receive", *_receiver_words(directory, centre)) as receiver,
        ):
            url = f"http://127.0.0.1:{port}"
            _await_ready(url)
            processes = {"edge": [edge.pid], "broker": [broker_pid(broker)], "receiver": [receiver.pid]}
            processes["node"] = node_pids(centre)
            measured = _Measured(directory, broker, centre, url, processes, settings)
            rounds = []
            for number in range(settings["rounds"] + 1):
                note(f"round {number} of {settings['rounds']}" if number else "warming up")
                taken = measured.round(number)
                rounds += [taken] if number else []
            return _result(rounds, measured.files) | {"settings": settings, "versions": versions()}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def table(result: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """The result as rows for people."""
    shown = [*settings_text(result), ("data", f"{result['data']['mb']:,.0f} MB in {result['data']['files']} files")]
    for name, leg in result["legs"].items():
        rate, per_cpu = leg["mb_per_second"], leg["mb_per_cpu_second"]
        shown.append((name, f"{rate['median']:,.0f} MB/s, {per_cpu['median']:,.0f} MB per CPU-second"))
        if len(leg["cpu_seconds"]) > 1:
            shown.append(("", ", ".join(f"{process} {used:.2f} s" for process, used in leg["cpu_seconds"].items())))
    for name, figure in result["ratios"].items():
        shown.append((name, ratio_text(figure)))
    return [*shown, ("content", result["content"])]


@dataclass(slots=True)
class _Measured:
    """The processes, and what a round does with them."""

    directory: Path
    broker: EmbeddedBroker
    centre: LocalCluster
    edge: str
    processes: Mapping[str, Sequence[int]]
    settings: Mapping[str, Any]
    files: tuple[int, int] = (0, 0)

    def round(self, number: int) -> dict[str, Leg]:
        """Every leg once; the files of a database of its own."""
        database = f"round{number}"
        written = self._fill(database)
        files = sorted((self.directory / "edge-data").rglob(f"segments/**/{database}/**/*.parquet"))
        if not files:
            raise SyncFailed(f"the edge node has no segments of {database}", action="see edge.log")
        self.files = len(files), sum(path.stat().st_size for path in files)
        target = self.directory / "limit"
        bootstrap = self.broker.status().bootstrap or ""
        broker = {"broker": self.processes["broker"]}
        legs: dict[str, Callable[[], Leg]] = {
            "headrace": self._send,
            "md5": lambda: _in_child({}, hashed, files),
            "socket": lambda: _in_child({}, copied_through_socket, files, target),
            "produce and drain": lambda: _in_child(broker, drained, files, target, bootstrap, f"limit{number}"),
        }
        if shutil.which("rsync"):
            legs["rsync"] = lambda: _in_child({}, synced_by_rsync, files, target, free_port())
        taken = {}
        # In alternating order: none always runs on the caches that the same other one left.
        for name, leg in list(legs.items())[:: 1 if number % 2 else -1]:
            # What earlier legs left in the page cache would be written to disk during this one.
            os.sync()
            in_child(_use_memory, COPIES * self.files[1])
            taken[name] = leg()
            shutil.rmtree(target, ignore_errors=True)
        check_node(self.centre.url("n1"), database, TABLE, TAGS, written)
        return taken

    def _fill(self, database: str) -> pa.Table:
        """Write rows and seal them, day by day; the checksums of all."""
        noise, sums = Noise(self.settings["mb"] * 1_000_000, self.settings["seed"]), []
        a_day = max(1, self.settings["file_mb"] * DEFAULT_BUCKETS * 1_000_000 // (ROW_BYTES * HOSTS * STEPS_A_BATCH))
        for number, batch in enumerate(noise.batches()):
            if number and number % a_day == 0:
                self._seal()
            times = batch["time"].combine_chunks().to_numpy()
            within = times - times.min() + number % a_day * (DAY_NS // STEPS_A_DAY * STEPS_A_BATCH)
            moved = START_NS + number // a_day * DAY_NS + within
            rows = batch.set_column(batch.schema.get_field_index("time"), "time", pa.array(moved.astype(np.int64)))
            sums.append(checksums(rows, TAGS))
            self._write(database, rows)
        self._seal()
        return total(sums)

    def _seal(self) -> None:
        call_node(f"{self.edge}/api/v1/seal?group=e1", method="POST", timeout_s=SEND_TIMEOUT_S)
        deadline = Deadline(SEND_TIMEOUT_S)
        while any(group["live_rows"] for group in NodeClient(self.edge).status()["groups"]):
            if deadline.passed():
                raise SyncFailed("the edge node has not sealed", action="see edge.log")
            time.sleep(POLL_S)

    def _write(self, database: str, rows: pa.Table) -> None:
        place = rows.schema.get_field_index("time")
        rows = rows.set_column(place, "time", rows["time"].cast(pa.timestamp("ns")))
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
        path = f"/api/v1/write?database={database}&table={TABLE}&tags={','.join(TAGS)}"
        request = urllib.request.Request(f"{self.edge}{path}", sink.getvalue().to_pybytes(), method="POST")
        with urllib.request.urlopen(request, timeout=SEND_TIMEOUT_S) as answer:
            answer.read()

    def _send(self) -> Leg:
        words = ["sync", "send", "--node", self.edge, "--to-bootstrap", self.broker.status().bootstrap or ""]
        words += ["--to-cluster", self.centre.cluster, "--data-dir", str(self.directory / "sender"), "--once"]
        words += ["--seal-age-s", "0", "--digest", self.settings["digest"], "--json"]
        clock = ProcessClock(self.processes)
        with (self.directory / "send.log").open("wb") as log:
            process = subprocess.Popen([*COMMAND, *words], stdout=log, stderr=log)
            try:
                _, status, usage = os.wait4(process.pid, 0)
            except BaseException:
                process.kill()
                process.wait()
                raise
        leg = clock.leg()
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            text = (self.directory / "send.log").read_text(errors="replace")[-500:]
            raise SyncFailed(f"sync send ended with exit code {process.returncode}: {text}")
        return Leg(leg.seconds, {"sender": usage.ru_utime + usage.ru_stime, **leg.cpu_seconds})


def _result(rounds: Sequence[Mapping[str, Leg]], files: tuple[int, int]) -> dict[str, Any]:
    number, size_bytes = files
    taken = {name: [each[name] for each in rounds] for name in rounds[0]}
    rates = {name: [leg.per_second(size_bytes) / 1e6 for leg in legs] for name, legs in taken.items()}
    per_cpu = {name: [leg.per_cpu_second(size_bytes) / 1e6 for leg in legs] for name, legs in taken.items()}
    legs = {
        name: {
            "mb_per_second": summary(rates[name]),
            "mb_per_cpu_second": summary(per_cpu[name]),
            "cpu_seconds": {
                process: median(leg.cpu_seconds[process] for leg in found) for process in found[0].cpu_seconds
            },
        }
        for name, found in taken.items()
    }
    ratios = {}
    for name in rates:
        if name == "headrace":
            continue
        least = (RATE_LEAST, PER_CPU_LEAST) if name == "rsync" else (None, None)
        ratios[f"over {name}"] = ratio(rates["headrace"], rates[name], least[0])
        ratios[f"over {name}, per CPU-second"] = ratio(per_cpu["headrace"], per_cpu[name], least[1])
    data = {"mb": size_bytes / 1e6, "files": number}
    return {"data": data, "legs": legs, "ratios": ratios, "content": "compared after every round"}


def _in_child(others: Mapping[str, Sequence[int]], work: Callable[..., float], *arguments: Any) -> Leg:
    """A leg in a process of its own; `others` work for it too."""
    clock = ProcessClock(others)
    seconds, cpu_s = in_child(_timed, work, arguments)
    return Leg(seconds, {"client": cpu_s, **clock.leg().cpu_seconds})


def _timed(work: Callable[..., float], arguments: Sequence[Any]) -> tuple[float, float]:
    """(wall, CPU) seconds of a leg; it returns the CPU seconds of what it started itself."""
    before, begun_s = time.process_time(), time.monotonic()
    others_s = work(*arguments)
    return time.monotonic() - begun_s, time.process_time() - before + others_s


def _use_memory(size_bytes: int) -> None:
    """Write to so much memory, or half of what is free, and free it."""
    np.ones(min(size_bytes, psutil.virtual_memory().available // 2) // 8, np.uint64)


def _edge_words(directory: Path, port: int) -> Sequence[str]:
    words = ("node", "run", "--log", "local", "--cluster", "edge", "--id", "e1")
    return (*words, "--data-dir", str(directory / "edge-data"), "--http", f"127.0.0.1:{port}")


def _receiver_words(directory: Path, centre: LocalCluster) -> Sequence[str]:
    words = ("sync", "receive", "--cluster", centre.cluster, "--bootstrap", centre.bootstrap)
    return (*words, "--data-dir", str(directory / "receiver-data"))


@contextmanager
def running_process(directory: Path, name: str, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command of Headrace that runs on until the block ends."""
    with (directory / f"{name}.log").open("wb") as log:
        process = subprocess.Popen([*COMMAND, *words], stdout=log, stderr=log)
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(READY_TIMEOUT_S)
        finally:
            # Also behind a second interrupt: nobody else would end it.
            process.kill()
            process.wait()


def _await_ready(url: str) -> None:
    deadline = Deadline(READY_TIMEOUT_S)
    while True:
        try:
            if NodeClient(url).status()["ready"]:
                return
        except NodeUnreachable:
            pass
        if deadline.passed():
            raise SyncFailed(f"the edge node at {url} does not serve", action="see edge.log")
        time.sleep(POLL_S)


__all__ = ["run", "table"]
