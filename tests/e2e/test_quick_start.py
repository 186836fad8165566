"""The quick start of the README, pasted into a shell."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from contextlib import closing
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

import headrace
from headrace.connectors.formats.interface import FormatOptions
from headrace.connectors.kafka.broker_process import free_port
from headrace.consumers.sync.receiver_metrics import COUNTERS, GAUGES, receiver_text
from headrace.local_cluster import LocalCluster
from headrace.node_process import NodeProcess
from headrace.pipeline.ingest_metrics import IngestMetrics
from headrace.pipeline.job import IngestJob
from tests.forked import ForkService
from tests.waiting import eventually

pytestmark = pytest.mark.broker
FIRST_HOUR = Path(__file__).with_name("first_hour.sh")
ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text("utf-8")
SELECTOR = re.compile(r"\b(headrace_\w+)(\{[^}]*\})?")
MATCHER = re.compile(r'(\w+)(=~|=)"([^"]*)"')
ADDED_BY_PROMETHEUS = {"instance", "job"}


def block(language: str, containing: str) -> str:
    """The only fenced block of the README in a language that contains a text."""
    found = [text for text in re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S) if containing in text]
    assert len(found) == 1, f"{len(found)} blocks hold {containing!r}"
    return str(found[0])


def run(
    command: list[str], directory: Path, timeout_s: float = 180, forks: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in a directory, as in an activated environment.

    With `forks`, the socket of a ForkService, `headrace` is a fork unless the command says otherwise.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE__")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    if forks is not None:
        environment["HEADRACE_FORKS"] = str(forks)
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def paste(containing: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Paste a block of the README into a shell."""
    return run(["sh", "-eu", "-c", block("sh", containing)], directory)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty folder in which the README's `headrace up` has run; Kafka is on a random port."""
    directory = tmp_path_factory.mktemp("quick")
    try:
        started = paste("headrace up  ", directory)
        assert 0 == started.returncode, started.stderr
        yield directory
    finally:
        if (directory / ".headrace" / "cluster.json").exists():
            stopped = run(["sh", str(FIRST_HOUR.with_suffix("") / "down.sh")], directory)
            assert 0 == stopped.returncode, f"{stopped.stdout}\n{stopped.stderr}"


@pytest.mark.slow(17)
def test_the_shell_part_works(folder: Path) -> None:
    """A file is written and queried, the status is shown, and sealed files are read: no command has an option for
    the connection.

    The test retries: a query of another process may come before the rows are applied.
    """

    def succeeded() -> bool:
        done = paste("cat > pumps.lp", folder)
        assert "3 rows, 9 points" in done.stdout, done.stderr
        rows = re.search(r"p1\W+12\.7\W+p2\W+11\.9", done.stdout)
        return done.returncode == 0 and rows is not None and "headrace / n" in done.stdout

    eventually(succeeded, "the results in the README")
    sealed = paste("headrace seal", folder)
    assert 0 == sealed.returncode, sealed.stderr
    # Each retry of the block above wrote the rows again, and each file may hold them.
    assert re.search(r"│ +[3-9] │", sealed.stdout), sealed.stdout


@pytest.mark.slow(25)
def test_the_edge_part_works(folder: Path) -> None:
    """Rows of a node without Kafka arrive in the cluster; its port is another one here, and both processes end."""
    (folder / "pumps.lp").write_text("pumps,pump=p1 flow=1.5 1767225600000000000\n")
    commands = block("sh", "sync receive").replace("8086", str(free_port()))
    ends = 'trap "kill \\$(jobs -p); wait" EXIT\n'
    done = run(["bash", "-eu", "-c", ends + commands], folder)
    assert 0 == done.returncode, f"{done.stdout}\n{done.stderr}"
    assert "1 accepted, 0 rejected" in done.stderr, done.stderr
    assert re.search(r"│ +1 │\s*\S+\s*$", done.stdout), done.stdout


@pytest.mark.slow(11)
def test_the_python_part_works(folder: Path) -> None:
    """A client writes a reading of another site and counts it at once."""
    done = run([sys.executable, "-c", block("python", "import headrace")], folder)
    assert re.search(r"south +1", done.stdout), done.stderr


@pytest.mark.slow(40)
def test_the_cluster_grows_and_shrinks(folder: Path) -> None:
    """A fourth node joins and leaves; its process ends by itself."""
    done = paste("cluster add", folder)
    assert 0 == done.returncode, done.stderr
    assert re.search(r"add n4: table \d+ counts", done.stdout), done.stdout
    assert re.search(r"remove n4: table \d+ counts", done.stdout), done.stdout
    eventually(lambda: ["n1", "n2", "n3"] == [node.name for node in running(folder)], "the end of n4", timeout_s=120)


def running(folder: Path) -> list[NodeProcess]:
    """The nodes whose processes run: a test may have added and removed one."""
    return [node for node in LocalCluster.load(folder / ".headrace").file.nodes if node.running]


def test_parameters_are_bound(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's query takes numbers, texts, moments and lists as values, whatever a text holds."""
    monkeypatch.chdir(folder)
    moment = datetime(2026, 5, 1, 12, tzinfo=UTC)
    with headrace.connect() as client:
        with client.writer("bound", "pumps", tags=["pump"]) as writer:
            writer.write(
                [{"time": moment + timedelta(seconds=number), "pump": f"p{number}", "v": number} for number in range(4)]
            )
        sql = "SELECT pump FROM bound.pumps WHERE time >= $since AND pump IN $pumps AND v < $below ORDER BY pump"
        values = {"since": moment + timedelta(seconds=1), "pumps": ["p0", "p1", "p2", "' OR 1=1"], "below": 2.5}
        assert [{"pump": "p1"}, {"pump": "p2"}] == client.query(sql, values).to_dicts()
        with pytest.raises(headrace.QueryError, match=r"no value for parameter \$since"):
            client.query(sql, {"pumps": [], "below": 1})


def test_every_node_serves_the_page_and_its_parts(folder: Path) -> None:
    """`GET /` and each file that the page names."""
    for node in running(folder):
        with httpx.Client(base_url=f"http://{node.http}") as browser:
            page = browser.get("/")
            parts = re.findall(r'(?:src|href)="(/static/[^"]+)"', page.text)
            assert len(parts) > 5
            assert [200] * (1 + len(parts)) == [page.status_code, *(browser.get(part).status_code for part in parts)]


def test_alerts_and_dashboard_find_their_series(folder: Path) -> None:
    """Each metric, label and value of a label that they name is one of a running node, of ingest or of a receiver."""
    job = IngestJob("c", "k:1", "raw", "db", "influx", FormatOptions())
    # A node has the metrics of a centre once a sender has registered one.
    centres = f"http://{running(folder)[0].http}/api/v1/sync"
    body = {"centre": "far", "cluster": "far", "sender": str(uuid.uuid4()), "name": ""}
    httpx.post(f"{centres}/register", json=body).raise_for_status()
    texts = [httpx.get(f"http://{node.http}/metrics").text for node in running(folder)]
    httpx.delete(f"{centres}/centres/far").raise_for_status()
    texts.append(receiver_text("c", dict.fromkeys(COUNTERS, 0.0), dict.fromkeys(GAUGES, 0.0), {}))
    series: dict[str, list[Mapping[str, str]]] = {}
    for family in (
        each for text in (*texts, IngestMetrics(job).text()) for each in text_string_to_metric_families(text)
    ):
        for sample in family.samples:
            series.setdefault(sample.name, []).append(sample.labels)
    for expression, shown in ops_expressions():
        kept = set[str]()
        for name, matchers in SELECTOR.findall(expression):
            assert name in series, expression
            kept |= set(series[name][0])
            for label, _, values in MATCHER.findall(matchers):
                found = {labels[label] for labels in series[name]}
                assert values == "$cluster" or set(values.split("|")) <= found, expression
        for grouped in re.findall(r"\b(?:by|on|ignoring) \(([^)]*)\)", expression):
            assert set(re.split(r", *", grouped)) <= kept | ADDED_BY_PROMETHEUS, expression
        # What a sum leaves out cannot be shown.
        by = [set(re.split(r", *", each)) for each in re.findall(r"\bby \(([^)]*)\)", expression)]
        assert shown <= (set.intersection(*by) if by else kept | ADDED_BY_PROMETHEUS), (expression, shown)


def ops_expressions() -> Iterator[tuple[str, set[str]]]:
    """Each expression of Headrace's metrics, and the labels that its texts show."""
    for rule in yaml.safe_load((ROOT / "ops/alerts.yml").read_text("utf-8"))["groups"][0]["rules"]:
        texts = " ".join(rule["annotations"].values())
        yield rule["expr"], set(re.findall(r"\{\{ *\$labels\.(\w+)", texts))
    for panel in json.loads((ROOT / "ops/grafana-dashboard.json").read_text("utf-8"))["panels"]:
        for target in panel["targets"]:
            yield target["expr"], set(re.findall(r"\{\{ *(\w+)", target["legendFormat"]))


@pytest.mark.slow(250)
@pytest.mark.timeout(1_500)
def test_the_first_hour(folder: Path) -> None:
    """What new users met: wrong units, repeated times, odd files, narrow terminals, ingest, missing things, dead nodes;
    each with its exit code.
    """
    # A path of more than about 100 bytes is none for a socket.
    with tempfile.TemporaryDirectory(prefix="headrace-forks-") as short, closing(ForkService(Path(short) / "forks")):
        done = run(["sh", str(FIRST_HOUR)], folder, 1_450, Path(short) / "forks")
    assert 0 == done.returncode, f"{done.stdout}\n{done.stderr}"
    assert done.stdout.endswith("the first hour is over\n")
