"""`headrace bench recovery`: how long a node needs to recover, beside the same work without Headrace.

Three parts on one broker, legs interleaved within each. Replay: a stopped node's store rebuilt from its
topic, beside decode + sort + Parquet of the same rows and a drain of the topic. Files: a wiped member whose
log was trimmed copies another member's files, beside a plain copy of these files with a sync each. Restart: a
node is killed and started again with few and with many bytes of segments. Every leg's content is compared.
"""

from __future__ import annotations

import os
import random
import re
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil

from headrace.bench.content import ContentDiffers, check_node
from headrace.bench.measurement import (
    DATABASE,
    Note,
    connected,
    content_hash,
    ratio,
    ratio_text,
    running_broker,
    running_cluster,
    seal,
    settings_text,
    silent,
    summary,
    used_s,
    versions,
)
from headrace.bench.noise import TAGS, Noise
from headrace.bench.options import Options, rows_below_hosts
from headrace.bench.replay import LEAST, TABLE, measure_replay
from headrace.connectors.deadline import Deadline
from headrace.connectors.files import fsync_directory, fsync_file
from headrace.connectors.kafka.broker import EmbeddedBroker
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.topics import Topics
from headrace.local_cluster import LocalCluster
from headrace.node_probe import probe
from headrace.producers.writer import TableWriter, WriterSettings
from headrace.schemas.errors import HeadraceError

OPTIONS = Options(
    {
        "hosts": 4_000,
        "rows": 4_000_000,
        "files_mb": 400,
        "small_mb": 200,
        "large_mb": 2_000,
        "rounds": 5,
        "seed": 1,
        "dir": "",
    },
    problem_of=rows_below_hosts,
)
RESTART_LEAST = 0.9
WAIT_S = 300.0
POLL_S = 0.01
_STAMP = re.compile(r"^(\S+Z) ")
_BYTES = re.compile(r"bytes=(\d+)")


class BenchStuck(HeadraceError):
    """What a leg waits for does not happen."""


@dataclass(frozen=True, slots=True)
class Copied:
    """One recovery from files: seconds until the last group is in place, and until the node is ready."""

    size_bytes: int
    seconds: float
    ready_seconds: float
    receiver_cpu_s: float
    source_cpu_s: float


def run(options: Mapping[str, str], note: Note = silent) -> dict[str, Any]:
    """Options: hosts and rows (of the replay), files_mb, small_mb and large_mb (of segments), rounds, seed,
    dir. Raises ContentDiffers.
    """
    settings = OPTIONS.chosen(options)
    directory = Path(tempfile.mkdtemp(prefix="headrace-recovery-", dir=settings.pop("dir") or None))
    try:
        with running_broker(directory / "broker") as broker:
            return {
                "settings": settings,
                "versions": versions(),
                "replay": measure_replay(directory, broker, settings, note),
                "files": _measure_files(directory, broker, settings, note),
                "restart": _measure_restart(directory, broker, settings, note),
                "content": "compared after every leg",
            }
    finally:
        shutil.rmtree(directory, ignore_errors=True)


def table(result: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """The result as rows for people."""
    replay, files, restart = result["replay"], result["files"], result["restart"]
    shown = [*settings_text(result)]
    shown.append(("replay: data", f"{replay['data']['points']:,} points of TSBS cpu, hash {replay['data']['hash']}"))
    for name, figures in replay["legs"].items():
        wall, cpu_ = figures["points_per_second"], figures["points_per_cpu_second"]
        shown.append((f"replay: {name}", f"{_million(wall)} M points/s, {_million(cpu_)} M per CPU-second"))
    shown += [
        ("replay over decode, sort, encode", ratio_text(replay["of_bare"])),
        ("the same, per CPU-second", ratio_text(replay["of_bare_per_cpu_second"])),
        ("replay over drain", ratio_text(replay["of_drain"])),
        ("files: data", f"{files['data']['bytes'] / 1e6:,.0f} MB of segments and index, hash {files['data']['hash']}"),
        ("files: from another member", f"{_span(files['megabytes_per_second'])} MB/s"),
        ("files: plain copy with fsync", f"{_span(files['plain_megabytes_per_second'])} MB/s"),
        ("files over plain copy", ratio_text(files["of_plain"])),
        ("files: wiped until ready", f"{_span(files['ready_seconds'])} s"),
        ("files: CPU of receiver, source", f"{_span(files['receiver_cpu_s'])} s, {_span(files['source_cpu_s'])} s"),
    ]
    for name, figures in restart["sizes"].items():
        of = f"{figures['bytes'] / 1e6:,.0f} MB in {figures['segments']} segments, hash {figures['hash']}"
        shown.append((f"restart: {name}", f"{_span(figures['seconds'])} s, {_span(figures['cpu_s'])} CPU-s, {of}"))
    shown.append(("restart, small over large", ratio_text(restart["small_of_large"])))
    shown.append(("content", result["content"]))
    return shown


def _million(figure: Mapping[str, float]) -> str:
    return f"{figure['median'] / 1e6:.1f} ({figure['min'] / 1e6:.1f} to {figure['max'] / 1e6:.1f})"


def _span(figure: Mapping[str, float]) -> str:
    return f"{figure['median']:,.2f} ({figure['min']:,.2f} to {figure['max']:,.2f})"


# Files, then the log.


def _measure_files(directory: Path, broker: EmbeddedBroker, settings: Mapping[str, Any], note: Note) -> dict[str, Any]:
    noise = Noise(settings["files_mb"] * 1_000_000, settings["seed"])
    expected, rounds = noise.checksums(), settings["rounds"]
    note("files: filling two nodes")
    with running_cluster(directory / "files", broker, 2, store_log_keep_records="1") as local:
        _fill(local, noise)
        _await(lambda: all(begin for begin in _begins(local).values()), "logs that are trimmed")
        copied: list[Copied] = []
        plain: list[float] = []
        for number in range(rounds + 1):
            note(f"files: round {number} of {rounds}" if number else "files: warming up")
            taken = _copy_from_member(local)
            check_node(local.url("n2"), DATABASE, TABLE, TAGS, expected)
            rate = copy_plainly(local.data_directory("n1") / "segments", directory / "plain")
            if number:
                copied.append(taken)
                plain.append(rate)
    rates = [each.size_bytes / each.seconds / 1e6 for each in copied]
    return {
        "data": {"name": "noise", "rows": noise.rows, "bytes": copied[0].size_bytes, "hash": content_hash(expected)},
        "megabytes_per_second": summary(rates),
        "plain_megabytes_per_second": summary(plain),
        "of_plain": ratio(rates, plain, LEAST),
        "ready_seconds": summary([each.ready_seconds for each in copied]),
        "receiver_cpu_s": summary([each.receiver_cpu_s for each in copied]),
        "source_cpu_s": summary([each.source_cpu_s for each in copied]),
    }


def _fill(local: LocalCluster, noise: Noise) -> None:
    # Random bits gain nothing from compression on their way.
    with connected(local.bootstrap, local.cluster) as cluster:
        writer = TableWriter(cluster, DATABASE, TABLE, WriterSettings(compression="none"))
        for rows in noise.batches():
            writer.write(rows, TAGS)
        seal(local, writer.close())


def _begins(local: LocalCluster) -> dict[str, int]:
    """Where the log of each group begins."""
    log, topics = KafkaLog(local.bootstrap), Topics(local.cluster)
    try:
        return {node.name: log.describe(topics.forward(node.name)).begin for node in local.file.nodes}
    finally:
        log.close()


def _copy_from_member(local: LocalCluster) -> Copied:
    """Wipe n2 and start it: all its groups come from n1."""
    local.kill("n2")
    local.wipe("n2")
    # What earlier legs left in the page cache would be written to disk during this one.
    os.sync()
    lines_before, source = len(_log_lines(local, "n2")), psutil.Process(local.node("n1").pid)
    source_s, begun_s = used_s(source), time.monotonic()
    local.start_node("n2")
    _await_ready(local, "n2")
    ready_seconds = time.monotonic() - begun_s
    # From the node's own log: the copy is a part of the way to ready, and no request shows when it begins.
    lines = _log_lines(local, "n2")[lines_before:]
    begins = [_stamp(line) for line in lines if "copying files" in line]
    ends = [_stamp(line) for line in lines if "recovered from files" in line]
    if not ends:
        raise BenchStuck("the wiped node became ready without another member's files")
    sizes = [found.group(1) for line in lines if "recovered from files" in line and (found := _BYTES.search(line))]
    receiver_s = used_s(psutil.Process(local.node("n2").pid))
    seconds = (max(ends) - min(begins)).total_seconds()
    return Copied(sum(map(int, sizes)), seconds, ready_seconds, receiver_s, used_s(source) - source_s)


def _log_lines(local: LocalCluster, node: str) -> list[str]:
    return (local.directory / f"{node}.log").read_text(errors="replace").splitlines()


def _stamp(line: str) -> datetime:
    found = _STAMP.match(line)
    assert found is not None, f"a line of a node's log without a time: {line}"
    return datetime.fromisoformat(found.group(1))


def copy_plainly(source: Path, target: Path) -> float:
    """Copy every file below a directory and sync it: MB/s."""
    files = [path for path in source.rglob("*") if path.is_file()]
    os.sync()
    begun_s = time.monotonic()
    try:
        for path in files:
            copy = target / path.relative_to(source)
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy)
            fsync_file(copy)
        # As durable as a recovery leaves them: directories synced too.
        for parent, _, _ in os.walk(target, topdown=False):
            fsync_directory(Path(parent))
        seconds = time.monotonic() - begun_s
    finally:
        shutil.rmtree(target, ignore_errors=True)
    return sum(path.stat().st_size for path in files) / seconds / 1e6


# Restart.


def _measure_restart(
    directory: Path, broker: EmbeddedBroker, settings: Mapping[str, Any], note: Note
) -> dict[str, Any]:
    noises = {name: Noise(settings[f"{name}_mb"] * 1_000_000, settings["seed"]) for name in ("small", "large")}
    expected = {name: noise.checksums() for name, noise in noises.items()}
    rounds = settings["rounds"]
    taken: dict[str, tuple[list[float], list[float]]] = {name: ([], []) for name in noises}
    note("restart: filling two nodes")
    with (
        running_cluster(directory / "small", broker, 1) as small,
        running_cluster(directory / "large", broker, 1) as large,
    ):
        clusters = {"small": small, "large": large}
        groups = {}
        for name, local in clusters.items():
            _fill(local, noises[name])
            check_node(local.url("n1"), DATABASE, TABLE, TAGS, expected[name])
            groups[name] = _group(local)
            local.kill("n1")
        os.sync()
        for number in range(rounds + 1):
            note(f"restart: round {number} of {rounds}" if number else "restart: warming up")
            # In random order: neither cluster is always the one that starts after the other.
            for name in random.sample(list(clusters), 2):
                seconds, cpu_s = _restart(clusters[name])
                if number:
                    taken[name][0].append(seconds)
                    taken[name][1].append(cpu_s)
        for name, local in clusters.items():
            local.start()
            check_node(local.url("n1"), DATABASE, TABLE, TAGS, expected[name])
    sizes = {
        name: {
            "bytes": groups[name]["segment_bytes"],
            "segments": groups[name]["segments"],
            "rows": noises[name].rows,
            "hash": content_hash(expected[name]),
            "seconds": summary(seconds),
            "cpu_s": summary(cpu_s),
        }
        for name, (seconds, cpu_s) in taken.items()
    }
    return {"sizes": sizes, "small_of_large": ratio(taken["small"][0], taken["large"][0], RESTART_LEAST)}


def _group(local: LocalCluster) -> dict[str, Any]:
    _, status = probe(f"{local.url('n1')}/api/v1/status")
    group: dict[str, Any] = status["groups"][0]
    return group


def _restart(local: LocalCluster) -> tuple[float, float]:
    """Start a node that was killed, wait until it serves, and kill it again: (wall, CPU) seconds until then."""
    begun_s = time.monotonic()
    local.start_node("n1")
    _await_ready(local, "n1")
    taken = time.monotonic() - begun_s, used_s(psutil.Process(local.node("n1").pid))
    local.kill("n1")
    return taken


def _await_ready(local: LocalCluster, node: str) -> None:
    _await(lambda: probe(f"{local.url(node)}/health/ready")[0], f"node {node} ready")


def _await(holds: Callable[[], bool], what: str) -> None:
    deadline = Deadline(WAIT_S)
    while not holds():
        if deadline.passed():
            raise BenchStuck(f"in {WAIT_S:g} s there was never: {what}", action="see the logs of the nodes")
        time.sleep(POLL_S)


__all__ = ["ContentDiffers", "run", "table"]
