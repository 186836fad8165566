"""`headrace up` and `down`: a cluster in one command that keeps its data, stops cleanly and leaves nothing
running.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from headrace.local_cluster import LocalCluster
from headrace.workload.workload import iot
from tests.e2e.actions import assert_holds, connected, headrace, write_workload
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.broker]
WORKLOAD = iot(50, duration_s=600)
CLEAN_STOP_S = 15.0


@pytest.fixture
def directory(tmp_path: Path) -> Iterator[Path]:
    """The directory of a cluster; every process that still runs there at the end is killed."""
    yield tmp_path / "cluster"
    for process in processes(tmp_path):
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()


def processes(directory: Path) -> list[psutil.Process]:
    """Every process whose command line names a directory."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or []
        counts = process.pid != os.getpid() and process.info["status"] != psutil.STATUS_ZOMBIE
        if counts and any(str(directory) in word for word in words):
            found.append(process)
    return found


def up(directory: Path) -> subprocess.CompletedProcess[str]:
    """`headrace up` with two nodes."""
    return headrace("up", "--nodes", "2", "--dir", str(directory), "--json")


def down(directory: Path) -> subprocess.CompletedProcess[str]:
    """`headrace down`."""
    return headrace("down", "--dir", str(directory), "--json")


def bare(directory: Path, *arguments: str) -> str:
    """The output of a command without connection options, in the folder beside the cluster's directory."""
    done = headrace(*arguments, cwd=directory.parent)
    assert 0 == done.returncode, done.stderr
    return done.stdout


@pytest.mark.slow(35)
def test_up_and_down_keep_data_and_leave_nothing_running(directory: Path) -> None:
    """A second down finds nothing to do, and a later up has every row. What a second up mends is in first_hour.sh."""
    settings = directory.parent / "headrace.toml"
    settings.write_text('[cluster]\nname = "mine"  # kept\n')
    started = up(directory)
    assert 0 == started.returncode, started.stderr
    document = json.loads(started.stdout)
    assert {"n1", "n2"} == {node["name"] for node in document["nodes"]}
    assert (str(settings), ["kafka", "n1", "n2"]) == (document["settings_file"], document["started"])
    assert f'bootstrap = "{document["bootstrap"]}"' in settings.read_text()
    assert f"{settings}: cluster.bootstrap" in started.stderr
    assert "# kept" in settings.read_text()
    cluster = LocalCluster.load(directory)
    with connected(cluster) as shared:
        write_workload(shared, WORKLOAD, 5_000)
    assert_holds(cluster, WORKLOAD)
    assert "mine / n" in bare(directory, "status")
    for number in range(2):
        stopped = down(directory)
        assert 0 == stopped.returncode, stopped.stderr
        # On a busy machine lines of what it waits for come between.
        lines = [line for line in stopped.stderr.splitlines() if line.startswith("stopping")]
        assert (["stopping n1, n2", "stopping Kafka"] if number == 0 else []) == lines
        assert [] == processes(directory)
    assert [] == list(directory.glob("n*/**/*.partial"))
    assert 0 == up(directory).returncode
    cluster = LocalCluster.load(directory)
    assert_holds(cluster, WORKLOAD)
    assert_stops_quickly(cluster)
    kill_broker(cluster)
    stopped = down(directory)
    assert 0 == stopped.returncode
    assert "is killed" not in stopped.stderr
    assert [] == processes(directory)


def kill_broker(cluster: LocalCluster) -> None:
    """Kill the broker of a cluster, and wait for its end."""
    process = psutil.Process(cluster.broker_pid)
    process.kill()
    process.wait(10)


def assert_stops_quickly(cluster: LocalCluster) -> None:
    """SIGTERM ends a node soon and without an error in its log."""
    pid = cluster.node("n1").pid
    process, started = psutil.Process(pid), time.monotonic()
    process.send_signal(signal.SIGTERM)
    eventually(lambda: not psutil.pid_exists(pid) or process.status() == psutil.STATUS_ZOMBIE, "the end of the node")
    assert CLEAN_STOP_S > time.monotonic() - started
    log = (cluster.directory / "n1.log").read_text()
    assert "Traceback" not in log
    assert "error" not in log


@pytest.mark.slow(15)
@pytest.mark.parametrize(("after_s", "number"), [(0.0, signal.SIGTERM), (2.0, signal.SIGINT), (4.0, signal.SIGHUP)])
def test_an_interrupted_up_leaves_nothing_running(directory: Path, after_s: float, number: int) -> None:
    """Ctrl-C, SIGTERM or a closed terminal at any moment stops every started process, and the next start works."""
    command = [sys.executable, "-m", "headrace", "up", "--nodes", "2", "--dir", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stderr is not None
        assert b"Kafka" in child.stderr.readline()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(after_s)
        child.send_signal(number)
        _, errors = child.communicate(timeout=60)
    assert child.returncode in (0, 130), errors
    if child.returncode == 130:
        assert [] == processes(directory)
        assert b"Traceback" not in errors
        assert 0 == up(directory).returncode
    assert 0 == down(directory).returncode
    assert [] == processes(directory)
