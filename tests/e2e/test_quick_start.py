"""The quick start of the README, run as a test."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.connectors.kafka.broker import BrokerInfo
from headrace.local_cluster import LocalCluster
from tests.e2e.actions import running_cluster
from tests.waiting import eventually

README = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")


def block(language: str, containing: str) -> str:
    """The only fenced block of the README in a language that contains a text."""
    found = [text for text in re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S) if containing in text]
    assert len(found) == 1, f"{len(found)} blocks hold {containing!r}"
    return str(found[0])


@pytest.fixture(scope="module")
def cluster(broker: BrokerInfo, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Three nodes under the default cluster name of the commands."""
    with running_cluster(tmp_path_factory.mktemp("quick"), broker.bootstrap, "quick-start") as cluster:
        yield cluster


def run(command: list[str], cluster: LocalCluster, directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in a directory with the README's `headrace.toml`."""
    settings = block("toml", "bootstrap").replace("127.0.0.1:9092", cluster.bootstrap)
    (directory / "headrace.toml").write_text(settings.replace("[cluster]", f'[cluster]\nname = "{cluster.cluster}"'))
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.slow(9)
def test_the_shell_part_works(cluster: LocalCluster, tmp_path: Path) -> None:
    """A file is written and queried, and the status is shown.

    The test retries: a query of another process may come before the rows are applied.
    """

    def succeeded() -> bool:
        done = run(["sh", "-eu", "-c", block("sh", "cat > pumps.lp")], cluster, tmp_path)
        assert "3 rows, 9 points" in done.stdout, done.stderr
        rows = re.search(r"p1\W+12\.7\W+p2\W+11\.9", done.stdout)
        return done.returncode == 0 and rows is not None and f"{cluster.cluster} / n" in done.stdout

    eventually(succeeded, "the results in the README")


def test_the_python_part_works(cluster: LocalCluster, tmp_path: Path) -> None:
    """A client writes a reading of another site and counts it at once."""
    done = run([sys.executable, "-c", block("python", "import headrace")], cluster, tmp_path)
    assert re.search(r"south +1", done.stdout), done.stderr
