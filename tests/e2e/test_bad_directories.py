"""A node refuses an unusable data directory, or that of another node, with one clear line, and changes
nothing in it.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.connectors.kafka.broker import BrokerInfo
from headrace.connectors.kafka.broker_process import free_port
from headrace.consumers.replication.failure_detector import OFFLINE_MS
from headrace.local_cluster import LocalCluster
from headrace.node_probe import probe
from headrace.workload.workload import iot
from tests.e2e.actions import connected, headrace, local_cluster, seal, write_workload
from tests.e2e.conftest import MakeDisk
from tests.forked import run_forked
from tests.waiting import eventually


@pytest.fixture(scope="module")
def cluster(broker: BrokerInfo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """A stopped cluster of one node with sealed and unsealed rows."""
    created = local_cluster(tmp_path_factory.mktemp("cluster"), broker.bootstrap, "directories", 1)
    created.start()
    try:
        with connected(created) as shared:
            write_workload(shared, iot(10, duration_s=60))
            seal(created)
            write_workload(shared, iot(5, duration_s=60))
        created.stop()
        yield created
    finally:
        created.kill("n1")


@pytest.fixture
def directory(cluster: LocalCluster, tmp_path: Path) -> Path:
    """A copy of the stopped node's data directory."""
    return Path(shutil.copytree(cluster.data_directory("n1"), tmp_path / "data"))


def run_node(
    cluster: LocalCluster, directory: Path, *more: str, name: str = "", node: str = "n1"
) -> subprocess.CompletedProcess[str]:
    """`headrace node run` on a directory, to its end."""
    return run_forked(
        *("node", "run", "--cluster", name or cluster.cluster, "--id", node, "--nodes", node, "--replication", "1"),
        *("--bootstrap", cluster.bootstrap, "--data-dir", str(directory), "--http", "127.0.0.1:0", *more),
        timeout_s=60.0,
        environment={"HEADRACE__NODE__STARTUP_TIMEOUT_S": "5"},
    )


def contents(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, except the lock file, whose text only names its last holder."""
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file() and path.name != "lock"
    }


def assert_refused(done: subprocess.CompletedProcess[str], *words: str) -> None:
    """Assert that the command failed with one error line that contains these words, and without a
    traceback.
    """
    assert 1 == done.returncode, done.stderr
    lines = [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert 1 == len(lines), done.stderr
    assert "Traceback" not in done.stderr
    for word in words:
        assert word in lines[0]


def test_a_directory_of_another_cluster_is_refused(cluster: LocalCluster, directory: Path) -> None:
    """The error names both clusters, and the directory is unchanged."""
    before = contents(directory)
    assert_refused(run_node(cluster, directory, name="another"), "belongs to cluster 'directories', not 'another'")
    assert before == contents(directory)


def test_a_directory_of_another_node_is_refused(cluster: LocalCluster, directory: Path) -> None:
    """The error names both nodes, and the directory is unchanged."""
    before = contents(directory)
    assert_refused(run_node(cluster, directory, node="n9"), "belongs to node 'n1', not 'n9'")
    assert before == contents(directory)


def test_a_directory_of_another_format_is_refused(cluster: LocalCluster, directory: Path) -> None:
    """The error names the format found and the supported one."""
    identity = json.loads((directory / "node.json").read_text())
    (directory / "node.json").write_text(json.dumps({**identity, "format": 99}))
    before = contents(directory)
    assert_refused(run_node(cluster, directory), "format 99", "reads 1")
    assert before == contents(directory)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": 1}', "\x00\xff"])
def test_a_damaged_identity_is_refused(cluster: LocalCluster, directory: Path, text: str) -> None:
    """The error names the file that cannot be read."""
    (directory / "node.json").write_bytes(text.encode("latin-1"))
    assert_refused(run_node(cluster, directory), "node.json")


def test_a_directory_that_another_process_holds_is_refused(cluster: LocalCluster) -> None:
    """The error names the process, which continues undisturbed."""
    cluster.start_node("n1")
    try:
        cluster.wait_ready()
        pid = cluster.node("n1").pid
        assert_refused(run_node(cluster, cluster.data_directory("n1")), f"held by the process with pid {pid}")
        assert cluster.node("n1").running
    finally:
        cluster.stop_node("n1")


def test_a_copy_of_a_directory_ends_beside_the_original(cluster: LocalCluster, directory: Path) -> None:
    """The later process ends and names the address of the first, which continues."""
    cluster.start_node("n1")
    try:
        cluster.wait_ready()
        http = cluster.node("n1").http
        assert_refused(run_node(cluster, directory), "node n1 runs already", http)
        assert cluster.node("n1").running
        # Its former self ended a moment ago, with statuses on their way.
        cluster.kill("n1")
        cluster.start_node("n1")
        cluster.wait_ready()
        time.sleep(2 * OFFLINE_MS / 1_000)
        assert cluster.node("n1").running
    finally:
        cluster.stop_node("n1")


def test_a_read_only_disk_is_refused(
    cluster: LocalCluster, directory: Path, tmp_path: Path, small_disk: MakeDisk
) -> None:
    """The error says that the file system is read-only."""
    disk = tmp_path / "disk"
    small_disk(disk, 64)
    shutil.copytree(directory, disk, dirs_exist_ok=True)
    subprocess.run(["mount", "-o", "remount,ro", str(disk)], check=True)
    assert_refused(run_node(cluster, disk), "ead-only file system")


def test_a_file_in_place_of_a_directory_is_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    """The error names the path."""
    (tmp_path / "data").write_text("mine")
    assert_refused(run_node(cluster, tmp_path / "data"), str(tmp_path / "data"))
    assert "mine" == (tmp_path / "data").read_text()


def test_a_missing_segment_is_detected_and_the_store_rebuilt(
    cluster: LocalCluster, directory: Path, tmp_path: Path
) -> None:
    """A store with a missing segment is not opened: it is moved to `damaged`, and the group recovers from its
    log.
    """
    segment = next(directory.rglob("*.parquet"))
    segment.unlink()
    address, log = f"127.0.0.1:{free_port()}", tmp_path / "log"
    command = [
        *(sys.executable, "-m", "headrace", "node", "run", "--cluster", cluster.cluster, "--id", "n1", "--nodes", "n1"),
        *("--replication", "1", "--bootstrap", cluster.bootstrap, "--data-dir", str(directory), "--http", address),
    ]
    with log.open("wb") as output, subprocess.Popen(command, stdout=output, stderr=output) as node:
        try:
            eventually(lambda: probe(f"http://{address}/health/ready")[0], "a node that has recovered")
        finally:
            node.kill()
    assert segment.name in log.read_text()
    assert (directory / "damaged" / "n1-1").exists()


def test_a_cluster_created_with_other_settings_is_refused(cluster: LocalCluster, tmp_path: Path) -> None:
    """A node that was started with another replication names the setting that differs."""
    done = headrace(
        *("node", "run", "--cluster", cluster.cluster, "--id", "n2", "--nodes", "n1,n2", "--replication", "2"),
        *("--bootstrap", cluster.bootstrap, "--data-dir", str(tmp_path / "n2")),
    )
    assert_refused(done, "created with other settings", "replication is 1, this node was started with 2")
