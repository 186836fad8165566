"""What end-to-end tests do and look at: a cluster of real processes, writing, asking, sealing, verifying."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa

from connectors.log.kafka import KafkaLog
from connectors.log.topics import Topics
from consumers.membership.cluster import read_slot_table
from consumers.membership.quorum import StatusWatch
from consumers.membership.tables import TableLog
from consumers.membership.writer import Cluster, Writer, WriterSettings
from consumers.serve.client import NodeClient
from headrace.local_cluster import LocalCluster, probe
from headrace.workload.checksum import checksums, compare, workload_checksums
from headrace.workload.workload import Workload
from schemas.errors import HeadraceError
from tests.waiting import WAIT_S, eventually

DATABASE = "fleet"
BLOCK_BYTES = 4_096


@contextmanager
def running_cluster(
    directory: Path, bootstrap: str, name: str, nodes: int = 3, **environment: str
) -> Iterator[LocalCluster]:
    """A ready cluster of real node processes; `store_seal_rows="100"` sets HEADRACE__STORE__SEAL_ROWS. Nothing is left running."""
    cluster = local_cluster(directory, bootstrap, name, nodes, **environment)
    try:
        cluster.start()
        yield cluster
    finally:
        end(cluster)


def local_cluster(directory: Path, bootstrap: str, name: str, nodes: int = 3, **environment: str) -> LocalCluster:
    """A cluster that is not started yet."""
    variables = {f"HEADRACE__{key.replace('_', '__', 1).upper()}": value for key, value in environment.items()}
    return LocalCluster(directory, name, nodes, variables, bootstrap)


def end(cluster: LocalCluster) -> None:
    """Kill every node, however it stands: what a stop does is the business of the tests of stopping."""
    for node in cluster.file.nodes:
        cluster.kill(node.name)


@contextmanager
def connected(cluster: LocalCluster) -> Iterator[Cluster]:
    """What writers and deleters share."""
    log, topics = KafkaLog(cluster.bootstrap), Topics(cluster.cluster)
    shared = Cluster(
        log,
        topics,
        read_slot_table(log, topics),
        TableLog(log, topics),
        StatusWatch(log, topics),
        log.appender(),
    )
    try:
        yield shared
    finally:
        shared.watch.close()
        shared.tables.close()
        shared.appender.close()
        log.close()


def write(
    shared: Cluster, table: str, rows: pa.Table, tags: Sequence[str], database: str = DATABASE, quorum: int = 1
) -> dict[str, int]:
    """Write rows and wait until they are in the log; the newest offset of each group."""
    with Writer(shared, database, table, WriterSettings(quorum=quorum)) as writer:
        writer.write(rows, tags)
    return writer.newest()


def write_workload(
    shared: Cluster,
    workload: Workload,
    rows_per_batch: int = 100_000,
    database: str = DATABASE,
    before_batch: Callable[[int], None] = lambda _number: None,
) -> None:
    """Write a whole workload; `before_batch` is called with the number of each batch before it is written."""
    writers = {name: Writer(shared, database, name) for name in workload.tables}
    for number, (name, rows) in enumerate(workload.batches(rows_per_batch)):
        before_batch(number)
        writers[name].write(rows, workload.tags)
    for writer in writers.values():
        writer.close()


def ask(url: str, sql: str) -> pa.Table:
    """The whole answer of one node; waits while the node is not ready."""
    holding: list[pa.Table] = []

    def answered() -> bool:
        with suppress_retriable():
            answer = b"".join(NodeClient(url).query(sql, format="arrow"))
            holding.append(pa.ipc.open_stream(answer).read_all())
        return bool(holding)

    eventually(answered, f"an answer of {url}")
    return holding[0]


@contextmanager
def suppress_retriable() -> Iterator[None]:
    """Let errors pass that say of themselves that a later try may succeed."""
    try:
        yield
    except HeadraceError as error:
        if not error.retriable:
            raise


def differences(
    url: str, workload: Workload, expected: Mapping[str, pa.Table], database: str = DATABASE
) -> dict[str, list[str]]:
    """What one node holds otherwise than `expected` (see workload_checksums), by table; empty when all is equal."""
    found = {}
    for table in workload.tables:
        rows = ask(url, f"SELECT * FROM {database}.{table}")
        lines = compare(expected[table], checksums(rows, workload.tags))
        if lines:
            found[table] = lines[:5]
    return found


def assert_holds(cluster: LocalCluster, workload: Workload, names: Sequence[str] | None = None) -> None:
    """Every node (or those named) answers with exactly the workload's rows, once everything written is applied."""
    expected = workload_checksums(workload)
    verify(cluster, allow_missing=0 if names is None else len(cluster.file.nodes) - len(names))
    for node in cluster.file.nodes:
        if names is None or node.name in names:
            assert {} == differences(cluster.url(node.name), workload, expected), f"at node {node.name}"


def headrace(*arguments: str, timeout_s: float = 120.0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a headrace command to its end."""
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        **{"env": {**os.environ, **options.pop("environment", {})}, **options},
    )


def verify(cluster: LocalCluster, allow_missing: int = 0) -> list[dict[str, Any]]:
    """`headrace verify` says that all members are equal; its groups."""
    done = headrace(
        *("verify", "--cluster", cluster.cluster, "--bootstrap", cluster.bootstrap),
        *("--allow-missing", str(allow_missing), "--timeout", "20" if allow_missing == 0 else "3", "--json"),
    )
    assert 0 == done.returncode, f"{done.stdout}{done.stderr}"
    groups: list[dict[str, Any]] = json.loads(done.stdout)["groups"]
    return groups


def seal(cluster: LocalCluster) -> list[dict[str, Any]]:
    """`headrace seal` has sealed everything; its groups."""
    done = headrace("seal", "--cluster", cluster.cluster, "--bootstrap", cluster.bootstrap, "--json")
    assert 0 == done.returncode, f"{done.stdout}{done.stderr}"
    groups: list[dict[str, Any]] = json.loads(done.stdout)["groups"]
    return groups


def status(cluster: LocalCluster, name: str) -> dict[str, Any]:
    """A node's status document."""
    return NodeClient(cluster.url(name)).status()


def group_status(cluster: LocalCluster, name: str, group: str) -> dict[str, Any]:
    """How one group stands at one node."""
    found: dict[str, Any] = next(each for each in status(cluster, name)["groups"] if each["group"] == group)
    return found


def assert_follows_first(cluster: LocalCluster, name: str, group: str, log_before: str) -> None:
    """Since its log was `log_before`, the first role that a node took in a group was that of a follower. It may lead by now: headers take their
    groups back in time."""
    taken: list[str] = []

    def took_a_role() -> bool:
        written = log_text(cluster, name).removeprefix(log_before)
        taken[:] = re.findall(rf"\] role +group={group} .*role=(follower|leader)", written)
        return bool(taken)

    eventually(took_a_role, f"a role of {name} in group {group}")
    assert "follower" == taken[0], taken


def readiness(cluster: LocalCluster, name: str) -> tuple[bool, str]:
    """Whether a node is ready, and its answer as text."""
    ready, answer = probe(cluster.url(name) + "/health/ready")
    return ready, answer if isinstance(answer, str) else json.dumps(answer)


def log_text(cluster: LocalCluster, name: str) -> str:
    """All that a node has written to its log."""
    return (cluster.directory / f"{name}.log").read_text(errors="replace")


def eventually_says(cluster: LocalCluster, name: str, words: str, timeout_s: float = WAIT_S) -> str:
    """Wait until a node is not ready and says why with these words; all it said."""
    heard = ["nothing"]

    def says() -> bool:
        ready, heard[0] = readiness(cluster, name)
        return not ready and words in heard[0]

    with suppress(AssertionError):
        eventually(says, words, timeout_s)
        return heard[0]
    raise AssertionError(f"node {name} never said {words!r}; last it said {heard[0]}")


def fill(directory: Path) -> Path:
    """A file that takes all space of a disk."""
    ballast, size_bytes, step_bytes = directory / "ballast", 0, 1 << 20
    with ballast.open("wb") as file:
        while step_bytes >= BLOCK_BYTES:
            try:
                os.posix_fallocate(file.fileno(), size_bytes, step_bytes)
                size_bytes += step_bytes
            except OSError:
                step_bytes //= 2
    return ballast
