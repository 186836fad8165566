"""`headrace bench http`: line protocol over HTTP from many clients, beside `headrace write` of the same bytes.

One run: a broker and one node. Each round writes the same lines twice, into two databases: as a file by the code of
`headrace write`, and over HTTP by clients that send some thousand lines a request and wait for each answer. The CPU
time of the writing process, the broker and the node is counted; start-up is not. The content of all databases is
compared at the end; a run in which it differs has no figures.
"""

from __future__ import annotations

import http.client
import io
import os
import shutil
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any
from urllib.parse import urlsplit

from headrace._access import LogAccess
from headrace._connection import ClusterConnection, open_cluster
from headrace._file_writer import FileWriter
from headrace.bench.content import ContentDiffers, check_content
from headrace.bench.measurement import (
    Leg,
    Note,
    ProcessClock,
    await_applied,
    broker_pid,
    node_pids,
    ratio,
    ratio_text,
    silent,
)
from headrace.bench.options import Options, rows_below_hosts
from headrace.connectors.formats.interface import FormatOptions
from headrace.local_cluster import LocalCluster
from headrace.producers.writer import WriterSettings
from headrace.schemas.errors import HeadraceError
from headrace.settings import load_settings
from headrace.workload import cpu
from headrace.workload.encode import line_protocol_bytes

START_NS = 1_700_000_000_000_000_000
LEAST = 0.5
OPTIONS = Options(
    {"rows": 500_000, "hosts": 1_000, "clients": 10, "lines": 5_000, "rounds": 3, "seed": 1, "dir": ""},
    problem_of=rows_below_hosts,
)


def run(options: Mapping[str, str], note: Note = silent) -> dict[str, Any]:
    """Options: rows, hosts, clients, lines (of a request), rounds, seed, dir. Raises ContentDiffers."""
    given = OPTIONS.chosen(options)
    workload = cpu(
        hosts=given["hosts"], start_ns=START_NS, duration_s=given["rows"] // given["hosts"] * 10, seed=given["seed"]
    )
    tables = list(workload.batches(given["lines"]))
    blocks = [line_protocol_bytes(name, rows) for name, rows in tables]
    directory = Path(tempfile.mkdtemp(prefix="headrace-bench-", dir=given["dir"] or None))
    local = LocalCluster(directory, "bench", 1)
    file, over_http = list[Leg](), list[Leg]()
    try:
        local.start()
        for number in range(given["rounds"] + 1):
            note(f"round {number} of {given['rounds']}" if number else "warming up")
            taken = _round(local, blocks, given["clients"], number)
            file += [taken["file"]] if number else []
            over_http += [taken["http"]] if number else []
        for database in (f"{kind}{number}" for kind in ("file", "http") for number in range(given["rounds"] + 1)):
            check_content(local, database, tables[0][0], [rows for _, rows in tables])
    finally:
        local.stop()
        shutil.rmtree(directory, ignore_errors=True)
    rows = workload.rows
    return {
        "data": {"name": "tsbs cpu", "rows": rows, "bytes": sum(map(len, blocks)), **given},
        "write": _figures(file, rows),
        "http": _figures(over_http, rows),
        "ratio_per_cpu_second": ratio(
            [leg.per_cpu_second(rows) for leg in over_http], [leg.per_cpu_second(rows) for leg in file], LEAST
        ),
        "content": "verified",
    }


def table(result: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """The result as rows for people."""
    data = result["data"]
    shown = [
        ("data", f"{data['rows']:,} rows, {data['bytes'] / 1e6:.0f} MB of line protocol, {data['rounds']} rounds"),
        ("HTTP", f"{data['clients']} clients, {data['lines']:,} lines a request"),
    ]
    for name, title in (("write", "headrace write"), ("http", "over HTTP")):
        found = result[name]
        share = ", ".join(f"{process} {seconds:.2f} s" for process, seconds in found["cpu_seconds"].items())
        shown.append((title, f"{found['rows_per_second'] / 1e6:.2f} M rows/s"))
        shown.append(("", f"{found['rows_per_cpu_second'] / 1e6:.2f} M rows per CPU-second ({share})"))
    return (
        *shown,
        ("HTTP to write, per CPU-second", ratio_text(result["ratio_per_cpu_second"])),
        ("content", "verified"),
    )


def _figures(legs: Sequence[Leg], rows: int) -> dict[str, Any]:
    return {
        "rows_per_second": median(leg.per_second(rows) for leg in legs),
        "rows_per_cpu_second": median(leg.per_cpu_second(rows) for leg in legs),
        "cpu_seconds": {name: median(leg.cpu_seconds[name] for leg in legs) for name in legs[0].cpu_seconds},
    }


def _round(local: LocalCluster, blocks: Sequence[bytes], clients: int, number: int) -> dict[str, Leg]:
    """Both ways once, in alternating order."""
    ways = {
        "file": lambda: _write_file(local, f"file{number}", blocks),
        "http": lambda: _write_http(local, f"http{number}", blocks, clients),
    }
    return {kind: ways[kind]() for kind in list(ways)[:: 1 if number % 2 else -1]}


def _clock(local: LocalCluster) -> ProcessClock:
    return ProcessClock({"client": [os.getpid()], "broker": [broker_pid(local.broker)], "node": node_pids(local)})


def _write_file(local: LocalCluster, database: str, blocks: Sequence[bytes]) -> Leg:
    settings = load_settings({"cluster.bootstrap": local.bootstrap, "cluster.name": local.cluster})
    connection = ClusterConnection(lambda: open_cluster(settings))
    access = LogAccess(connection)
    connection.open()
    try:
        clock = _clock(local)
        writing = FileWriter(access, database, WriterSettings(), lambda _line: None, 0)
        for _ in writing.write(io.BytesIO(b"".join(blocks)), "influx", FormatOptions()):
            pass
        # The node works on: what it has left would count for the way behind this one.
        await_applied(local)
        return clock.leg()
    finally:
        access.close()


def _write_http(local: LocalCluster, database: str, blocks: Sequence[bytes], clients: int) -> Leg:
    address = urlsplit(local.url(local.file.nodes[0].name)).netloc
    refused: list[str] = []

    def send(first: int) -> None:
        try:
            send_all(first)
        except Exception as error:
            refused.append(repr(error))

    def send_all(first: int) -> None:
        connection = http.client.HTTPConnection(address, timeout=120)
        for block in blocks[first::clients]:
            connection.request("POST", f"/write?db={database}&precision=ns", block)
            answer = connection.getresponse()
            text = answer.read().decode()
            if answer.status != http.client.NO_CONTENT:
                refused.append(f"{answer.status} {text}")
        connection.close()

    clock = _clock(local)
    threads = [threading.Thread(target=send, args=(first,)) for first in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    await_applied(local)
    leg = clock.leg()
    if refused:
        raise HeadraceError(f"{len(refused)} requests were refused: {refused[0]}")
    return leg


__all__ = ["ContentDiffers", "run", "table"]
