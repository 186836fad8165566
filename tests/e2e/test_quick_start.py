"""The quick start of the README, run as a test, and commands and parameters on the same cluster."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import headrace
from headrace.connectors.kafka.broker import BrokerInfo
from headrace.local_cluster import LocalCluster
from tests.e2e.actions import running_cluster
from tests.terminal import HEADRACE, terminal
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


@pytest.mark.slow(20)
def test_commands_fit_their_terminal(cluster: LocalCluster, tmp_path: Path) -> None:
    """At 40, 80 and 200 columns no line of `status`, `query` and `verify` is wider, and rows become records at 40."""
    names = {"HEADRACE__CLUSTER__NAME": cluster.cluster, "HEADRACE__CLUSTER__BOOTSTRAP": cluster.bootstrap}
    wide = "SELECT i AS number, TIMESTAMP '2026-01-01' AS time, repeat('x', 150) AS text FROM range(3) t(i)"
    for columns in (40, 80, 200):
        for command, shown in (
            (("status",), "leader"),
            (("query", wide), "2026-01-01 00:00:00"),
            (("verify",), "equal"),
        ):
            with terminal(*HEADRACE, *command, columns=columns, environment=names) as running:
                code, text = running.wait()
            assert 0 == code, text
            assert shown in text
            # Remarks on stderr are folded by the terminal; the lines of data are not.
            data = [line for line in text.splitlines() if "waiting for" not in line]
            assert max(map(len, data)) <= columns, text
            assert columns > 40 or "── 1 ─" in text, text


def test_parameters_are_bound(cluster: LocalCluster) -> None:
    """A client's query takes numbers, texts, moments and lists as values, whatever a text holds."""
    moment = datetime(2026, 5, 1, 12, tzinfo=UTC)
    with headrace.connect(cluster.bootstrap, cluster.cluster) as client:
        with client.writer("bound", "pumps", tags=["pump"]) as writer:
            writer.write(
                [{"time": moment + timedelta(seconds=number), "pump": f"p{number}", "v": number} for number in range(4)]
            )
        sql = "SELECT pump FROM bound.pumps WHERE time >= $since AND pump IN $pumps AND v < $below ORDER BY pump"
        values = {"since": moment + timedelta(seconds=1), "pumps": ["p0", "p1", "p2", "' OR 1=1"], "below": 2.5}
        assert [{"pump": "p1"}, {"pump": "p2"}] == client.query(sql, values).to_dicts()
        with pytest.raises(headrace.QueryError, match=r"no value for parameter \$since"):
            client.query(sql, {"pumps": [], "below": 1})
