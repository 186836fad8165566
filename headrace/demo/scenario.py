"""The demo from beginning to end: ingest, query, kill, wipe, and a check after each."""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from shlex import quote
from typing import Any

import pyarrow as pa

import headrace
from headrace.demo.checks import check_replicas, check_tables, seal
from headrace.demo.load import TABLE, WriteLoad
from headrace.demo.readings import fleet, produce
from headrace.demo.show import show_queries, show_summary
from headrace.demo.spark import ingest
from headrace.demo.stage import CLUSTER, DATABASE, FLEET_TOPIC, MACHINE_TOPIC, Stage
from headrace.local_cluster import LocalCluster
from headrace.terminal.command import UsageInvalid
from headrace.terminal.output import Output
from headrace.workload import cpu
from headrace.workload.checksum import checksums, workload_checksums

LOAD_S = 4.0
# By default a group seals after five minutes. The demo is shorter, and has segments to compare only this way.
ENVIRONMENT = {"HEADRACE__STORE__SEAL_AGE_MS": "15000", "HEADRACE__QUERY__MEMORY_LIMIT_MB": "1000"}


def run(output: Output, directory: Path | None, trucks: int, keep: bool) -> bool:
    """Run the demo; whether every promise held.

    Unless `keep`, no process stays, and no file of a demo that held. Raises UsageInvalid for a directory in use.
    """
    if directory is not None:
        _require_empty(directory)
    place = directory or Path(tempfile.mkdtemp(prefix="headrace-demo-"))
    stage = Stage(LocalCluster(place, CLUSTER, 3, ENVIRONMENT), output)
    done = False
    try:
        _play(stage, trucks)
        show_summary(stage)
        done = True
    finally:
        if keep and done:
            _print_next_steps(stage)
        else:
            stage.cluster.stop()
            # Logs and data of a demo that failed are what explains the failure.
            if directory is None and stage.ok and done:
                shutil.rmtree(place, ignore_errors=True)
            else:
                output.note(f"data and logs stay in {place}")
    return stage.ok


def _require_empty(directory: Path) -> None:
    """Refuse a directory with files: the demo wipes a node, stops the broker, and writes another `cluster.json`."""
    if directory.exists() and any(directory.iterdir()):
        raise UsageInvalid(f"{directory} is not empty", action="the demo needs a directory of its own: name a new one")


def _play(stage: Stage, trucks: int) -> None:
    workload = fleet(trucks)
    with stage.step(1, "one Kafka broker and three nodes, each a process of its own"):
        stage.cluster.start(stage.output.note)
        stage.line(f"    Kafka at {stage.cluster.bootstrap}; every row on all three nodes")
    with stage.step(2, f"{workload.rows:,} rows of {trucks} trucks, and this machine's own metrics, onto raw topics"):
        samples = produce(stage, workload)
        stage.line(f"    line protocol on {FLEET_TOPIC}, {samples} samples as JSON on {MACHINE_TOPIC}")
    with stage.step(3, "Spark Structured Streaming takes both topics in"):
        results = ingest(stage)
        _check_ingest(stage, results, workload.rows)
    with stage.step(4, "SQL over what has arrived"):
        show_queries(stage, lambda sql: _query(stage, sql))
    expected = workload_checksums(workload)
    tags: dict[str, Any] = dict.fromkeys(workload.tables, workload.tags)
    with stage.step(5, "kill -9 of a node while a writer keeps writing; it recovers by itself"):
        written = _kill_under_load(stage)
        expected[TABLE], tags[TABLE] = checksums(written, _cpu_tags()), _cpu_tags()
        seal(stage)
        check_replicas(stage, "after kill -9")
        check_tables(stage, "after kill -9", expected, tags)
    with stage.step(6, "a node loses its disk; it is rebuilt from the topics"):
        _lose_a_disk(stage)
        check_replicas(stage, "after a lost disk")
        check_tables(stage, "after a lost disk", expected, tags)


def _check_ingest(stage: Stage, results: dict[str, dict[str, Any]], rows: int) -> None:
    got = results[FLEET_TOPIC]
    problems = (
        []
        if got["rows"] == rows and got["rejected"] == 0
        else [f"{got['rows']} of {rows} rows, {got['rejected']} rejected"]
    )
    stage.check("Spark took every row in", problems, f"{got['rows']:,} rows, none rejected")
    machine = results[MACHINE_TOPIC]
    problems = [] if machine["rows"] > 0 and machine["rejected"] == 0 else [f"{machine}"]
    stage.check("this machine's metrics are in", problems, f"{machine['rows']:,} rows")
    stage.figures["spark_rows_per_second_with_start"] = got["rows"] / got["seconds"]


def _kill_under_load(stage: Stage) -> pa.Table:
    cluster, load = stage.cluster, WriteLoad(stage)
    load.start()
    time.sleep(LOAD_S / 2)
    cluster.kill("n2")
    stage.line("    n2 is killed, the writer keeps writing")
    time.sleep(LOAD_S / 2)
    started = time.monotonic()
    cluster.start_node("n2")
    cluster.wait_ready(["n2"])
    stage.figures["seconds_from_restart_to_serving"] = time.monotonic() - started
    written = load.stop()
    stage.line(f"    n2 serves again; {written.num_rows:,} rows were acknowledged meanwhile")
    cluster.wait_ready()
    return written


def _lose_a_disk(stage: Stage) -> None:
    cluster = stage.cluster
    cluster.kill("n3")
    cluster.wipe("n3")
    started = time.monotonic()
    cluster.start_node("n3")
    cluster.wait_ready(["n3"])
    stage.figures["seconds_to_rebuild_a_node"] = time.monotonic() - started
    cluster.wait_ready()


def _query(stage: Stage, sql: str) -> list[dict[str, Any]]:
    with headrace.connect(stage.cluster.bootstrap, stage.cluster.cluster) as client:
        rows: list[dict[str, Any]] = client.query(sql).to_dicts()
        return rows


def _cpu_tags() -> tuple[str, ...]:
    return cpu(hosts=1, start_ns=0, duration_s=10).tags


def _print_next_steps(stage: Stage) -> None:
    cluster = stage.cluster
    node = cluster.file.nodes[0].name
    stage.output.note("the cluster is left running")
    stage.output.note(f"  ask:   headrace query 'SELECT count(*) FROM {DATABASE}.readings' --node {cluster.url(node)}")
    stage.output.note(f"  look:  {cluster.url(node)}/")
    stage.output.note(f"  stop:  headrace down --dir {quote(str(cluster.directory))}")
