"""`headrace bench migrate`: what a node that joins costs those who write meanwhile, and how fast its data arrives.

One run: three nodes with sealed days of data get a fourth, which takes a quarter of the slots, while a writer
writes as fast as it can, and a query is asked each half second. The writer is a process of its own, as that of an
application. The pause is the acknowledgement time of its blocks during the change, minus their median before. What
comes before lasts long enough for the seals that writing itself costs. The limit is a plain copy, with a sync each,
of the files that arrived: both meet the same writer, and the copy is made once more without it. What that copy costs
the writer is reported beside the bars: on a machine whose cores are all busy no migration can cost less. All rows are
read back and compared.
"""

from __future__ import annotations

import os
import shutil
import tempfile
import time
import uuid
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pyarrow as pa

from headrace.bench.asking import Queries, asking
from headrace.bench.content import check_node, tag_names
from headrace.bench.live_writer import LIVE, Blocks, WriterFailed, block_of, first_block, shifted, writing
from headrace.bench.measurement import (
    DATABASE,
    Note,
    connected,
    percentiles,
    running_broker,
    running_cluster,
    settings_text,
    silent,
    versions,
)
from headrace.bench.noise import DAY_NS, HOSTS, ROW_BYTES, STEPS_A_BATCH, STEPS_A_DAY, TAGS, Noise
from headrace.bench.options import Options
from headrace.bench.recovery import copy_plainly
from headrace.cluster_change import ClusterChanges
from headrace.connectors.deadline import Deadline
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.topics import Topics
from headrace.local_cluster import LocalCluster
from headrace.node_process import NodeProcess
from headrace.producers.cluster import Cluster
from headrace.producers.writer import TableWriter, WriterSettings
from headrace.workload.checksum import checksums, total

STEP_NS = DAY_NS // STEPS_A_DAY
NODES = 3
SEALED = "sealed"
PAUSE_P99_MS_MOST = 20.0
COPY_RATIO_MOST = 1.5
INGEST_RATIO_LEAST = 0.9
WARM_SHARE = 0.2
"""Connections and caches of the first blocks are no part of what is usual."""
COPIES_LEAST_S = 5.0
"""The copy beside the writer is repeated for so long: a short one would meet few of its blocks."""
COMPARED_MB, COMPARED_MS = "16384", "600000"
"""The rows that are read back and compared are more than a query may hold, and take longer, by default."""
CHANGE_TIMEOUT_S = 900.0
JOIN_TIMEOUT_S = 30.0
QUERY = f'SELECT count(*) FROM "{DATABASE}"."{SEALED}" WHERE host = \'host_1\''
"""One series over all days: it needs files of every group."""


def _problem(given: Mapping[str, Any]) -> str:
    """The rows must fit into the days."""
    fits = given["days"] * HOSTS * STEPS_A_DAY >= _noise(given).rows
    return "" if fits else f"a day has {HOSTS * STEPS_A_DAY:,} rows at most: give more days"


def _noise(settings: Mapping[str, Any]) -> Noise:
    return Noise(settings["rows"] * ROW_BYTES, settings["seed"])


OPTIONS = Options(
    {"hosts": 1_000, "rows": 25_000_000, "days": 40, "block_rows": 20_000, "before_s": 30.0, "seed": 1, "dir": ""},
    problem_of=_problem,
)


def run(options: Mapping[str, str], note: Note = silent) -> dict[str, Any]:
    """Options: hosts, rows (sealed), days, block_rows, before_s, seed, dir. Raises WriterFailed, ContentDiffers."""
    settings = OPTIONS.chosen(options)
    directory = Path(tempfile.mkdtemp(prefix="headrace-migrate-", dir=settings.pop("dir") or None))
    try:
        with (
            running_broker(directory / "broker") as broker,
            running_cluster(
                directory / "grow",
                broker,
                NODES,
                replication=1,
                query_remote_mb_max=COMPARED_MB,
                query_timeout_ms=COMPARED_MS,
            ) as local,
            connected(local.bootstrap, local.cluster) as cluster,
        ):
            note(f"writing {settings['rows']:,} rows of {ROW_BYTES} bytes over {settings['days']} days")
            sealed = _fill(cluster, settings)
            _seal(local)
            figures = _measure(local, sealed, settings, note)
            return figures | {"bars": bars(figures), "settings": settings, "versions": versions()}
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def table(result: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """The result as rows for people."""
    pause, bars = result["write_pause_ms"], result["bars"]
    return [
        *settings_text(result),
        ("write pause", f"p50 {pause['p50']:.1f} ms, p99 {_bar_text(bars['write_pause_p99_ms'])}"),
        ("write pause before", f"p99 {result['write_pause_ms_before']['p99']:.1f} ms"),
        ("write pause beside the copy", f"p99 {result['write_pause_ms_beside_copy'].get('p99', 0.0):.1f} ms"),
        (
            "the writer had no processor",
            f"p99 {result['ready_ms']['p99']:.1f} ms of a block, before {result['ready_ms_before']['p99']:.1f} ms",
        ),
        ("ingest during over before", _bar_text(bars["ingest_ratio"])),
        ("the same beside the copy", f"{result['ingest_ratio_beside_copy']:.2f}"),
        ("the whole change", f"{result['seconds']:.1f} s, migrating {result['migrating_seconds']:.1f} s"),
        (
            "plain copy with sync",
            f"{result['copy_seconds']:.2f} s of {result['bytes_moved'] / 1e6:,.0f} MB in {result['files_moved']} files,"
            f" without the writer {result['copy_seconds_alone']:.2f} s",
        ),
        ("migrating over plain copy", _bar_text(bars["ratio"])),
        ("the whole change over plain copy", f"{result['change_ratio']:.2f}"),
        (
            "longest query",
            f"{result['query_ms_longest']:.0f} ms, before the change {result['query_ms_longest_before']:.0f} ms",
        ),
        ("content", result["content"]),
    ]


def _bar_text(bar: Mapping[str, Any]) -> str:
    limit = f"at most {bar['most']:g}" if "most" in bar else f"at least {bar['least']:g}"
    return f"{bar['value']:.2f}, {limit}: {'met' if bar['met'] else 'missed'}"


def _fill(cluster: Cluster, settings: Mapping[str, Any]) -> pa.Table:
    """Write the sealed table, rows that do not compress, spread over the days; returns the checksums of its rows."""
    noise, days = _noise(settings), settings["days"]
    written = []
    with TableWriter(cluster, DATABASE, SEALED, WriterSettings(compression="none")) as writer:
        for number, batch in enumerate(noise.batches()):
            # Of another day than the batch before, and behind the batches that the day has.
            round_, day = divmod(number, days)
            rows = shifted(batch, day * DAY_NS + (round_ - number) * STEPS_A_BATCH * STEP_NS)
            writer.write(rows, TAGS)
            written.append(checksums(rows, TAGS))
    return total(written)


def _seal(local: LocalCluster) -> None:
    from headrace._member_views import LogView
    from headrace.admin_client import AdminClient
    from headrace.consumers.membership.bootstrap import read_slot_table

    log, topics = KafkaLog(local.bootstrap), Topics(local.cluster)
    with closing(log), closing(AdminClient(LogView(log, topics, read_slot_table(log, topics)))) as admin:
        admin.seal_all(CHANGE_TIMEOUT_S, lambda _line: None)


def _measure(local: LocalCluster, sealed: pa.Table, settings: Mapping[str, Any], note: Note) -> dict[str, Any]:
    name = f"n{NODES + 1}"
    local.file.nodes.append(NodeProcess(name, ""))
    local.start_node(name)
    # Until it waits to be added: one whose port another program took meanwhile starts again.
    local.wait_ready([name])
    blocks, queries = Blocks(), Queries()
    phases: dict[str, float] = {}
    with asking(local.url("n1"), QUERY, queries), writing(local.bootstrap, local.cluster, settings, blocks):
        note(f"writing alone for {settings['before_s']:g} s")
        time.sleep(settings["before_s"])
        began_s = time.monotonic()
        note(f"adding {name}")
        result = _add(local, name, phases)
        ended_s = time.monotonic()
        note("copying the same files plainly, beside the same writer")
        arrived = _arrived(local, name)
        if not _size(arrived):
            raise WriterFailed(f"{name} has got no file", action="give more rows, or more days")
        copies_s = _copies(arrived)
        copied_s = time.monotonic()
    if queries.failure is not None:
        raise WriterFailed(f"the queries ended: {queries.failure}")
    local.wait_ready()
    copy_alone_s = _copy_seconds(arrived)
    live, tags = _live_checksums(settings, len(blocks.taken_ms))
    check_node(local.url("n1"), DATABASE, SEALED, TAGS, sealed)
    check_node(local.url("n1"), DATABASE, LIVE, tags, live)
    change = _Change(began_s, ended_s, copied_s, phases, settings["before_s"])
    migrating_s, copy_s = migrating_seconds(phases, began_s, ended_s), median(copies_s)
    return _pauses(blocks, queries, change) | {
        "seconds": ended_s - began_s,
        "migrating_seconds": migrating_s,
        "copy_seconds": copy_s,
        "copy_seconds_alone": copy_alone_s,
        "ratio": migrating_s / copy_s,
        "change_ratio": (ended_s - began_s) / copy_s,
        "bytes_moved": _size(arrived),
        "files_moved": len(list(arrived.rglob("*.parquet"))),
        "slots_moved": result["slots_moved"],
        "content": "compared: no row is lost, double or another one",
    }


def migrating_seconds(phases: Mapping[str, float], began_s: float, ended_s: float) -> float:
    """The seconds from the begin of the phase `migrating`, as it was seen, to the end."""
    # A phase between two looks is not seen: then all of the change counts, and not nothing.
    return ended_s - phases.get("migrating", began_s)


@dataclass(frozen=True, slots=True)
class _Change:
    """When the change ran, until when files were copied behind it, its phases, and how long was measured before."""

    began_s: float
    ended_s: float
    copied_s: float
    phases: Mapping[str, float]
    before_s: float


def _pauses(blocks: Blocks, queries: Queries, change: _Change) -> dict[str, Any]:
    """What the writer and the queries met during the change, and before it."""
    began_s, ended_s = change.began_s, change.ended_s
    usual_s = change.before_s * (1 - WARM_SHARE)
    before = blocks.between(began_s - usual_s, began_s)
    during, beside_copy = blocks.between(began_s, ended_s), blocks.between(ended_s, change.copied_s)
    if not before or not during:
        raise WriterFailed("the writer wrote no block in time", action="give more before_s, or fewer block_rows")
    usual_ms, usual_rate = median(before), len(before) / usual_s
    return {
        "write_pause_ms": _pause(during, usual_ms),
        "write_pause_ms_before": _pause(before, usual_ms),
        "write_pause_ms_beside_copy": _pause(beside_copy, usual_ms),
        "ready_ms_before": percentiles(blocks.ready_between(began_s - usual_s, began_s)),
        "ready_ms": percentiles(blocks.ready_between(began_s, ended_s)),
        "write_pause_ms_by_phase": _by_phase(blocks, change.phases, began_s, ended_s, usual_ms),
        "usual_ms": usual_ms,
        "ingest_ratio": len(during) / (ended_s - began_s) / usual_rate,
        "ingest_ratio_beside_copy": len(beside_copy) / (change.copied_s - ended_s) / usual_rate,
        "query_ms_longest": max(queries.between(began_s, ended_s), default=0.0),
        "query_ms_longest_before": max(queries.between(0.0, began_s), default=0.0),
    }


def _pause(taken_ms: Sequence[float], usual_ms: float) -> dict[str, float]:
    """Percentiles of what blocks took longer than usual; empty without blocks."""
    return percentiles([max(0.0, each - usual_ms) for each in taken_ms]) if taken_ms else {}


def bars(figures: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Each figure that has a bar, and whether it reaches it."""
    return {
        "write_pause_p99_ms": _bar(figures["write_pause_ms"]["p99"], most=PAUSE_P99_MS_MOST),
        "ratio": _bar(figures["ratio"], most=COPY_RATIO_MOST),
        "ingest_ratio": _bar(figures["ingest_ratio"], least=INGEST_RATIO_LEAST),
    }


def _bar(value: float, *, least: float | None = None, most: float | None = None) -> dict[str, Any]:
    """A figure with its bar, and whether it reaches it."""
    if most is not None:
        return {"value": value, "most": most, "met": value <= most}
    assert least is not None
    return {"value": value, "least": least, "met": value >= least}


def _arrived(local: LocalCluster, name: str) -> Path:
    """The files of a node as they are now, linked: merges and seals come meanwhile."""
    source, target = local.data_directory(name) / "segments", local.directory / "arrived"
    for path in source.rglob("*.parquet"):
        link = target / path.relative_to(source)
        link.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(path, link)
        except FileNotFoundError:
            # A merge has replaced it.
            continue
    return target


def _size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*.parquet"))


def _copies(files: Path) -> list[float]:
    """The seconds of plain copies, one after the other."""
    taken_s = [_copy_seconds(files)]
    while sum(taken_s) < COPIES_LEAST_S:
        taken_s.append(_copy_seconds(files))
    return taken_s


def _copy_seconds(files: Path) -> float:
    return _size(files) / 1e6 / copy_plainly(files, files.with_name("plain"))


def _by_phase(
    blocks: Blocks, phases: Mapping[str, float], began_s: float, ended_s: float, usual_ms: float
) -> dict[str, Any]:
    """The pauses in each phase of the change that was seen."""
    begins = [("begin", began_s), *sorted(phases.items(), key=lambda each: each[1]), ("end", ended_s)]
    found = {}
    for (name, begin_s), (_, end_s) in pairwise(begins):
        found[name] = {"seconds": end_s - begin_s} | _pause(blocks.between(begin_s, end_s), usual_ms)
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


def _live_checksums(settings: Mapping[str, Any], blocks: int) -> tuple[pa.Table, list[str]]:
    """The checksums of what the writer wrote, and its tags."""
    first = first_block(settings)
    tags = tag_names(first)
    return total([checksums(block_of(settings, first, number), tags) for number in range(blocks)]), tags
