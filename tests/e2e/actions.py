"""Actions and checks of the end-to-end tests: clusters of real processes, writes, queries, seals,
verification.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa

from headrace._member_views import LogView
from headrace.admin_client import AdminClient
from headrace.connectors.log.kafka import KafkaLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.integrity.verify import exit_code
from headrace.consumers.membership.bootstrap import read_slot_table
from headrace.consumers.membership.routing import MembershipRouting
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.replication.heartbeat import StatusWatch
from headrace.local_cluster import LocalCluster
from headrace.node_client import NodeClient
from headrace.node_probe import probe
from headrace.producers.cluster import Cluster
from headrace.producers.writer import TableWriter, WriterSettings
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import TimeResolution
from headrace.workload.checksum import checksums, compare, workload_checksums
from headrace.workload.workload import Workload
from tests.forked import ForkedCluster, run_forked
from tests.waiting import WAIT_S, eventually

DATABASE = "fleet"
BLOCK_BYTES = 4_096
SEAL_TIMEOUT_S = 120.0
VERIFY_TIMEOUT_S = 60.0
MISSING_TIMEOUT_S = 3.0


@contextmanager
def running_cluster(
    directory: Path,
    bootstrap: str,
    name: str,
    nodes: int = 3,
    *,
    replication: int = 0,
    kind: type[LocalCluster] = ForkedCluster,
    **environment: str,
) -> Iterator[LocalCluster]:
    """A ready cluster of node processes, all killed at the end. `replication` 0 = all nodes.

    `store_seal_rows="100"` sets HEADRACE__STORE__SEAL_ROWS.
    """
    cluster = local_cluster(directory, bootstrap, name, nodes, kind=kind, **environment)
    cluster.file.replication = replication
    try:
        cluster.start()
        yield cluster
    finally:
        kill_all(cluster)


def local_cluster(
    directory: Path,
    bootstrap: str,
    name: str,
    nodes: int = 3,
    *,
    kind: type[LocalCluster] = ForkedCluster,
    **environment: str,
) -> LocalCluster:
    """A cluster that is not started yet."""
    variables = {f"HEADRACE__{key.replace('_', '__', 1).upper()}": value for key, value in environment.items()}
    return kind(directory, name, nodes, variables, bootstrap)


def kill_all(cluster: LocalCluster) -> None:
    """Kill every node in whatever state it is; clean stops have their own tests."""
    for node in cluster.file.nodes:
        cluster.kill(node.name)


@contextmanager
def connected(cluster: LocalCluster) -> Iterator[Cluster]:
    """The shared connection of writers and deleters."""
    log, topics = KafkaLog(cluster.bootstrap), Topics(cluster.cluster)
    shared = Cluster(
        log,
        topics,
        MembershipRouting(log, topics),
        SchemaLog(log, topics),
        StatusWatch(log, topics),
        log.appender(),
    )
    try:
        yield shared
    finally:
        shared.watch.close()
        shared.routing.close()
        shared.tables.close()
        shared.appender.close()
        log.close()


def write(
    shared: Cluster, table: str, rows: pa.Table, tags: Sequence[str], database: str = DATABASE, quorum: int = 1
) -> dict[str, int]:
    """Write rows, of times with nanoseconds, and wait until they are in the log; returns the newest offset of each
    group.
    """
    settings = WriterSettings(quorum=quorum, resolution=TimeResolution.NS)
    with TableWriter(shared, database, table, settings) as writer:
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
    writers = {name: TableWriter(shared, database, name) for name in workload.tables}
    for number, (name, rows) in enumerate(workload.batches(rows_per_batch)):
        before_batch(number)
        writers[name].write(rows, workload.tags)
    for writer in writers.values():
        writer.close()


def query(url: str, sql: str, after: Mapping[str, int] | None = None) -> pa.Table:
    """The complete answer of one node, with all up to these offsets; waits while the node is not ready."""
    answers: list[pa.Table] = []

    def answered() -> bool:
        with suppress_retriable():
            answer = b"".join(NodeClient(url).query(sql, format="arrow", after=after))
            answers.append(pa.ipc.open_stream(answer).read_all())
        return bool(answers)

    eventually(answered, f"an answer of {url}")
    return answers[0]


@contextmanager
def suppress_retriable() -> Iterator[None]:
    """Suppress errors that are marked as retriable."""
    try:
        yield
    except HeadraceError as error:
        if not error.retriable:
            raise


def differences(
    url: str, workload: Workload, expected: Mapping[str, pa.Table], database: str = DATABASE
) -> dict[str, list[str]]:
    """The differences of one node from `expected` (see workload_checksums) by table; empty when there are
    none.
    """
    found = {}
    for table in workload.tables:
        rows = query(url, f"SELECT * FROM {database}.{table}")
        lines = compare(expected[table], checksums(rows, workload.tags))
        if lines:
            found[table] = lines[:5]
    return found


def assert_holds(cluster: LocalCluster, workload: Workload, names: Sequence[str] | None = None) -> None:
    """Every node, or each of `names`, answers with exactly the workload's rows once everything is applied."""
    expected = workload_checksums(workload)
    verify(cluster, allow_missing=0 if names is None else len(cluster.file.nodes) - len(names))
    for node in cluster.file.nodes:
        if names is None or node.name in names:
            assert {} == differences(cluster.url(node.name), workload, expected), f"at node {node.name}"


def headrace(*arguments: str, timeout_s: float = 120.0, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a headrace command to its end, in a Python of its own; `run_forked` costs a third."""
    return subprocess.run(
        [sys.executable, "-m", "headrace", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
        **{"env": {**os.environ, **options.pop("environment", {})}, **options},
    )


def verify(cluster: LocalCluster, allow_missing: int = 0) -> list[dict[str, Any]]:
    """Assert that all members are equal, except those that may be missing; returns the groups.

    Runs `headrace verify` itself where some may be missing.
    """
    if allow_missing:
        return verify_by_command(cluster, allow_missing)
    with operator(cluster) as admin:
        groups = admin.verify(VERIFY_TIMEOUT_S, lambda _line: None)
    assert 0 == exit_code(groups, 0), groups
    return [asdict(group) for group in groups]


def verify_by_command(cluster: LocalCluster, allow_missing: int = 0) -> list[dict[str, Any]]:
    """Assert with `headrace verify` that all members are equal; returns its groups."""
    timeout_s = VERIFY_TIMEOUT_S if allow_missing == 0 else MISSING_TIMEOUT_S
    done = run_forked(
        *("verify", "--cluster", cluster.cluster, "--bootstrap", cluster.bootstrap),
        *("--allow-missing", str(allow_missing), "--timeout", f"{timeout_s:g}", "--json"),
    )
    assert 0 == done.returncode, f"{done.stdout}{done.stderr}"
    groups: list[dict[str, Any]] = json.loads(done.stdout)["groups"]
    return groups


def seal(cluster: LocalCluster) -> list[dict[str, Any]]:
    """Seal everything at every live member; returns the groups."""
    with operator(cluster) as admin:
        return [asdict(group) for group in admin.seal_all(SEAL_TIMEOUT_S, lambda _line: None)]


def seal_by_command(cluster: LocalCluster) -> list[dict[str, Any]]:
    """Seal everything with `headrace seal`; returns its groups."""
    done = run_forked("seal", "--cluster", cluster.cluster, "--bootstrap", cluster.bootstrap, "--json")
    assert 0 == done.returncode, f"{done.stdout}{done.stderr}"
    groups: list[dict[str, Any]] = json.loads(done.stdout)["groups"]
    return groups


@contextmanager
def operator(cluster: LocalCluster) -> Iterator[AdminClient]:
    """The admin client of `headrace seal` and `headrace verify`, in this process: a command spends most of
    its time on its start.
    """
    log, topics = KafkaLog(cluster.bootstrap), Topics(cluster.cluster)
    try:
        admin = AdminClient(LogView(log, topics, read_slot_table(log, topics)))
        try:
            yield admin
        finally:
            admin.close()
    finally:
        log.close()


def status(cluster: LocalCluster, name: str) -> dict[str, Any]:
    """A node's status document."""
    return NodeClient(cluster.url(name)).status()


def group_status(cluster: LocalCluster, name: str, group: str) -> dict[str, Any]:
    """The status of one group at one node."""
    found: dict[str, Any] = next(each for each in status(cluster, name)["groups"] if each["group"] == group)
    return found


def assert_follows_first(cluster: LocalCluster, name: str, group: str, log_before: str) -> None:
    """Assert that the first role of a node in a group, since its log was `log_before`, was follower.

    It may lead by now: headers take their groups back in time.
    """
    roles: list[str] = []

    def has_a_role() -> bool:
        written = log_text(cluster, name).removeprefix(log_before)
        roles[:] = re.findall(rf"\] role +group={group} .*role=(follower|leader)", written)
        return bool(roles)

    eventually(has_a_role, f"a role of {name} in group {group}")
    assert "follower" == roles[0], roles


def readiness(cluster: LocalCluster, name: str) -> tuple[bool, str]:
    """Whether a node is ready, and its answer as text."""
    ready, answer = probe(cluster.url(name) + "/health/ready")
    return ready, answer if isinstance(answer, str) else json.dumps(answer)


def log_text(cluster: LocalCluster, name: str) -> str:
    """The log of a node."""
    return (cluster.directory / f"{name}.log").read_text(errors="replace")


def eventually_unready(cluster: LocalCluster, name: str, reason: str, timeout_s: float = WAIT_S) -> str:
    """Wait until a node is not ready with a reason that contains a text; returns its answer."""
    answer = ["no answer"]

    def is_unready() -> bool:
        ready, answer[0] = readiness(cluster, name)
        return not ready and reason in answer[0]

    with suppress(AssertionError):
        eventually(is_unready, reason, timeout_s)
        return answer[0]
    raise AssertionError(f"node {name} never reported {reason!r}; its last answer is {answer[0]}")


def fill(directory: Path) -> Path:
    """Create a file that takes all free space of a disk."""
    ballast, size_bytes, step_bytes = directory / "ballast", 0, 1 << 20
    with ballast.open("wb") as file:
        while step_bytes >= BLOCK_BYTES:
            try:
                os.posix_fallocate(file.fileno(), size_bytes, step_bytes)
                size_bytes += step_bytes
            except OSError:
                step_bytes //= 2
    return ballast
