"""`headrace bench migrate`: what a node that joins costs those who write meanwhile, and how fast its data arrives.

One run: three nodes with sealed days of data get a fourth, which takes a quarter of the slots, while a writer
writes as fast as it can. The pause is the acknowledgement time of its blocks during the change, minus their median
before. The limit is a plain copy, with a sync each, of the files that arrived. All rows are read back and compared.
"""

from __future__ import annotations

import shutil
import tempfile
import threading
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from headrace.bench.content import read_checksums, tag_names, written_checksums
from headrace.bench.measurement import (
    DATABASE,
    Note,
    chosen,
    connected,
    percentiles,
    ratio,
    ratio_text,
    running_broker,
    running_cluster,
    settings_text,
    silent,
    versions,
)
from headrace.bench.noise import HOSTS, ROW_BYTES, STEPS_A_DAY, TAGS, Noise
from headrace.bench.recovery import copy_plainly
from headrace.cluster_change import ClusterChanges
from headrace.connectors.deadline import Deadline
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.topics import Topics
from headrace.local_cluster import LocalCluster
from headrace.node_process import NodeProcess
from headrace.producers.cluster import Cluster
from headrace.producers.writer import TableWriter, WriterSettings
from headrace.schemas.errors import HeadraceError
from headrace.workload import cpu
from headrace.workload.checksum import checksums, total

OPTIONS = {"hosts": 1_000, "rows": 25_000_000, "days": 40, "block_rows": 20_000, "before_s": 10.0, "seed": 1, "dir": ""}
START_NS = 1_700_000_000_000_000_000
DAY_NS = 86_400_000_000_000
NODES = 3
SEALED, LIVE = "sealed", "live"
PAUSE_P99_MS_MOST = 20.0
COPY_RATIO_MOST = 1.5
INGEST_RATIO_LEAST = 0.9
CHANGE_TIMEOUT_S = 900.0
JOIN_TIMEOUT_S = 30.0


class WriterFailed(HeadraceError):
    """The writer that measures the pause ended early."""


@dataclass(slots=True)
class Blocks:
    """The blocks of the writer: the moment of each, its milliseconds until acknowledged, and the rows of all."""

    moments_s: list[float] = field(default_factory=list)
    taken_ms: list[float] = field(default_factory=list)
    written: list[pa.Table] = field(default_factory=list)
    failure: Exception | None = None

    def between(self, begin_s: float, end_s: float) -> list[float]:
        """The times of blocks that were acknowledged between two moments."""
        pairs = zip(self.moments_s, self.taken_ms, strict=True)
        return [taken for moment, taken in pairs if begin_s <= moment < end_s]


def run(options: Mapping[str, str], note: Note = silent) -> dict[str, Any]:
    """Options: hosts, rows (sealed), days, block_rows, before_s, seed, dir. Raises WriterFailed."""
    settings = chosen(options, OPTIONS)
    directory = Path(tempfile.mkdtemp(prefix="headrace-migrate-", dir=settings.pop("dir") or None))
    try:
        with (
            running_broker(directory / "broker") as broker,
            running_cluster(directory / "grow", broker, NODES, replication=1) as local,
            connected(local.bootstrap, local.cluster) as cluster,
        ):
            note(f"writing {settings['rows']:,} rows of {ROW_BYTES} bytes over {settings['days']} days")
            sealed = _fill(cluster, settings)
            _seal(local)
            return _measure(local, cluster, sealed, settings, note) | {"settings": settings, "versions": versions()}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def table(result: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """The result as rows for people."""
    pause, bars = result["write_pause_ms"], result["bars"]
    return [
        *settings_text(result),
        ("write pause", f"p50 {pause['p50']:.1f} ms, p99 {pause['p99']:.1f} ms, bar {PAUSE_P99_MS_MOST:g}"),
        ("write pause before", f"p99 {result['write_pause_ms_before']['p99']:.1f} ms"),
        ("ingest during the change", f"{result['ingest_ratio']:.2f} of before, bar {INGEST_RATIO_LEAST:g}"),
        ("the whole change", f"{result['seconds']:.1f} s, migrating {result['migrating_seconds']:.1f} s"),
        ("plain copy with sync", f"{result['copy_seconds']:.2f} s of {result['bytes_moved'] / 1e6:,.0f} MB"),
        ("migrating over plain copy", ratio_text(bars["ratio"])),
        ("rows lost, double", f"{result['rows_lost']}, {result['rows_double']}"),
    ]


def _fill(cluster: Cluster, settings: Mapping[str, Any]) -> pa.Table:
    """Write the sealed table, rows that do not compress, spread over the days; returns the checksums of its rows."""
    noise = Noise(settings["rows"] * ROW_BYTES, settings["seed"])
    span_ns = -(-noise.rows // (HOSTS * STEPS_A_DAY)) * DAY_NS
    written = []
    with TableWriter(cluster, DATABASE, SEALED, WriterSettings(compression="none")) as writer:
        for number, batch in enumerate(noise.batches()):
            # Of another day than the batch before, and never at the times of another batch.
            rows = _shifted(batch, number % settings["days"] * span_ns)
            writer.write(rows, TAGS)
            written.append(checksums(rows, TAGS))
    return total(written)


def _shifted(rows: pa.Table, by_ns: int) -> pa.Table:
    """The same rows at a later time."""
    place = rows.schema.get_field_index("time")
    column = rows.column("time")
    later = pa.array(column.cast(pa.int64()).to_numpy() + by_ns).cast(column.type)
    return rows.set_column(place, rows.schema.field("time"), later)


def _seal(local: LocalCluster) -> None:
    from headrace.admin_client import AdminClient
    from headrace.consumers.membership.bootstrap import read_slot_table

    log, topics = KafkaLog(local.bootstrap), Topics(local.cluster)
    with closing(log), closing(AdminClient(log, topics, read_slot_table(log, topics))) as admin:
        admin.seal_all(CHANGE_TIMEOUT_S, lambda _line: None)


def _measure(
    local: LocalCluster, cluster: Cluster, sealed: pa.Table, settings: Mapping[str, Any], note: Note
) -> dict[str, Any]:
    name = f"n{NODES + 1}"
    local.file.nodes.append(NodeProcess(name, ""))
    local.start_node(name)
    blocks = Blocks()
    phases: dict[str, float] = {}
    with _writing(cluster, blocks, settings):
        note(f"writing alone for {settings['before_s']:g} s")
        time.sleep(settings["before_s"])
        began_s = time.monotonic()
        note(f"adding {name}")
        result = _add(local, name, phases)
        ended_s = time.monotonic()
        time.sleep(1.0)
    if blocks.failure is not None:
        raise WriterFailed(f"the writer ended: {blocks.failure}") from blocks.failure
    local.wait_ready()
    before = blocks.between(began_s - settings["before_s"] / 2, began_s)
    during = blocks.between(began_s, ended_s)
    usual_ms = median(before)
    note("copying the same files plainly")
    copied = local.data_directory(name) / "segments"
    size = sum(path.stat().st_size for path in copied.rglob("*.parquet"))
    copy_s = size / 1e6 / copy_plainly(copied, local.directory / "plain")
    lost, double = _compared(local, sealed, blocks)
    migrating_s = ended_s - phases.get("migrating", ended_s)
    return {
        "write_pause_ms": percentiles([max(0.0, each - usual_ms) for each in during]),
        "write_pause_ms_before": percentiles([max(0.0, each - usual_ms) for each in before]),
        "write_pause_ms_by_phase": _by_phase(blocks, phases, began_s, ended_s, usual_ms),
        "usual_ms": usual_ms,
        "ingest_ratio": (len(during) / (ended_s - began_s)) / (len(before) / (settings["before_s"] / 2)),
        "seconds": ended_s - began_s,
        "migrating_seconds": migrating_s,
        "copy_seconds": copy_s,
        "bytes_moved": size,
        "slots_moved": result["slots_moved"],
        "ratio": migrating_s / copy_s,
        "bars": {"ratio": ratio([migrating_s], [copy_s])},
        "rows_lost": lost,
        "rows_double": double,
    }


def _by_phase(
    blocks: Blocks, phases: Mapping[str, float], began_s: float, ended_s: float, usual_ms: float
) -> dict[str, Any]:
    """The pauses in each phase of the change that was seen."""
    begins = [("begin", began_s), *sorted(phases.items(), key=lambda each: each[1]), ("end", ended_s)]
    found = {}
    for (name, begin_s), (_, end_s) in pairwise(begins):
        pauses = [max(0.0, each - usual_ms) for each in blocks.between(begin_s, end_s)]
        found[name] = {"seconds": end_s - begin_s} | (percentiles(pauses) if pauses else {})
    return found


def _add(local: LocalCluster, name: str, phases: dict[str, float]) -> dict[str, Any]:
    log = KafkaLog(local.bootstrap)
    with closing(log), closing(ClusterChanges(log, Topics(local.cluster))) as changes:
        request = {"id": uuid.uuid4().hex, "kind": "add", "node": name}
        deadline = Deadline(JOIN_TIMEOUT_S)
        while not changes.waits_to_join(name) and not deadline.passed():
            time.sleep(0.1)
        changes.begin(request)
        return changes.follow(
            request["id"],
            lambda change: _note_phase(phases, change["phase"]),
            CHANGE_TIMEOUT_S,
        ).document()


def _note_phase(phases: dict[str, float], phase: str) -> None:
    phases.setdefault(phase, time.monotonic())


@contextmanager
def _writing(cluster: Cluster, blocks: Blocks, settings: Mapping[str, Any]) -> Iterator[None]:
    """Write blocks, one after the other, while the body runs."""
    stopping = threading.Event()
    thread = threading.Thread(target=_write, args=(cluster, blocks, settings, stopping), daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join()


def _write(cluster: Cluster, blocks: Blocks, settings: Mapping[str, Any], stopping: threading.Event) -> None:
    hosts = settings["hosts"]
    span_s = max(1, settings["block_rows"] // hosts) * 10
    rows, span_ns = (
        cpu(hosts=hosts, start_ns=START_NS, duration_s=span_s, seed=settings["seed"]).read("cpu"),
        span_s * 10**9,
    )
    try:
        with TableWriter(cluster, DATABASE, LIVE) as writer:
            number = 0
            while not stopping.is_set():
                # Another day each, so that the blocks fall into all groups; later rows of it each time.
                rounds, day = divmod(number, settings["days"])
                block = _shifted(rows, day * DAY_NS + rounds * span_ns)
                begun = time.perf_counter()
                writer.write(block, tag_names(block))
                writer.flush()
                blocks.taken_ms.append((time.perf_counter() - begun) * 1_000)
                blocks.moments_s.append(time.monotonic())
                blocks.written.append(block)
                number += 1
    except Exception as error:
        blocks.failure = error


def _compared(local: LocalCluster, sealed: pa.Table, blocks: Blocks) -> tuple[int, int]:
    """Rows that an answer lacks, and rows that it has twice or otherwise than written."""
    lost = double = 0
    live = written_checksums(blocks.written), tag_names(blocks.written[0])
    for name, (written, tags) in ((SEALED, (sealed, TAGS)), (LIVE, live)):
        wanted = {row["series"]: row for row in written.to_pylist()}
        found = {row["series"]: row for row in read_checksums(local.url("n1"), DATABASE, name, tags).to_pylist()}
        for series in wanted.keys() | found.keys():
            want, have = (each.get(series, {"rows": 0}) for each in (wanted, found))
            lost += max(0, want["rows"] - have["rows"])
            double += max(0, have["rows"] - want["rows"])
            # As many rows with other values: a row was replaced by a wrong one.
            double += int(want["rows"] == have["rows"] and want != have)
    return lost, double
