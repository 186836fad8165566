"""The demo: all its checks pass, `--keep` leaves the cluster running, an interruption stops every process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from headrace.local_cluster import LocalCluster
from tests.e2e.actions import headrace, query
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
TRUCKS = "20"


def command_lines(directory: Path) -> list[str]:
    """Command lines of processes that name a directory."""
    found = []
    for process in psutil.process_iter():
        try:
            words = " ".join(process.cmdline())
        except psutil.Error:
            continue
        if str(directory) in words:
            found.append(words)
    return found


def is_running(process: psutil.Process) -> bool:
    """Whether a process runs and is no zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.slow(105)
def test_every_check_passes_and_the_cluster_can_be_kept(tmp_path: Path) -> None:
    """The checks of every step pass; then the cluster answers, and `down` ends all of it."""
    directory = tmp_path / "kept"
    done = headrace("demo", "--trucks", TRUCKS, "--json", "--keep", "--data-dir", str(directory), timeout_s=400)
    try:
        assert 0 == done.returncode, f"{done.stdout}\n{done.stderr}"
        document = json.loads(done.stdout)
        assert document["ok"]
        assert [] == [check for check in document["checks"] if not check["ok"]]
        names = " ".join(check["name"] for check in document["checks"])
        assert all(word in names for word in ("Spark", "machine", "kill -9", "lost disk"))
        assert all(seconds > 0 for seconds in document["figures"].values())
        assert all(word in done.stderr for word in ("headrace query", "headrace down", "http://"))

        kept = LocalCluster.load(directory)
        rows = query(kept.url("n3"), "SELECT count(*) AS n FROM demo.readings").column("n").to_pylist()
        assert [int(TRUCKS) * 360] == rows
    finally:
        stopped = headrace("down", "--dir", str(directory))
    assert 0 == stopped.returncode, stopped.stderr
    eventually(lambda: command_lines(directory) == [], "the end of every process of the demo")


@pytest.mark.soak
def test_an_interruption_leaves_nothing_running(tmp_path: Path) -> None:
    """Ctrl-C while Spark works: exit code 130; nodes, broker and Spark end, and the logs are kept."""
    directory = tmp_path / "interrupted"
    command = [sys.executable, "-m", "headrace", "demo", "--trucks", TRUCKS, "--data-dir", str(directory)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as demo:
        try:
            parent = psutil.Process(demo.pid)
            eventually(
                lambda: any("checkpoints" in words for words in command_lines(directory)),
                "a Spark job of the demo",
                timeout_s=120,
            )
            children = parent.children(recursive=True)
            demo.send_signal(signal.SIGINT)
            _, errors = demo.communicate(timeout=120)
        finally:
            demo.kill()
    assert 130 == demo.returncode, errors.decode()
    assert str(directory).encode() in errors
    assert len(children) >= 4
    eventually(lambda: [each for each in children if is_running(each)] == [], "the end of the demo's processes")
    assert [] == command_lines(directory)
    assert (directory / "n1.log").exists()
