"""Screenshots of a node's page at the widths of a telephone, a laptop and a desk: `make shots`.

Three nodes run in this process on a log in memory, with readings of the generator, so the page shows what it shows
in production. The browser is one that the machine has: the script downloads nothing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlencode

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.topics import Topics
from headrace.consumers.membership.bootstrap import read_slot_table
from headrace.consumers.membership.schema_log import SchemaLog
from headrace.consumers.membership.settings import ClusterSettings
from headrace.consumers.node.node import Node
from headrace.consumers.node.settings import NodeSettings, ServerSettings
from headrace.consumers.replication.heartbeat import StatusWatch
from headrace.producers.cluster import Cluster, FixedRouting
from headrace.producers.writer import TableWriter
from headrace.terminal.command import configure_logging
from headrace.workload.workload import cpu, iot

BROWSERS = (
    "chromium",
    "chromium-browser",
    "chromium-headless-shell",
    "google-chrome",
    "google-chrome-stable",
    "firefox",
)
WIDTHS = {390: 2_600, 1_280: 1_700, 1_920: 1_700}
NAMES = ("n1", "n2", "n3")
READY_S = 60.0
SHOT_S = 120.0
PAGES = {
    "page": "SELECT * FROM fleet.readings ORDER BY time DESC LIMIT 400",
    "chart": "SELECT time_bucket(INTERVAL 2 minutes, time) AS time, fleet, avg(velocity) AS velocity\n"
    "FROM fleet.readings GROUP BY ALL ORDER BY ALL",
    "error": "SELECT velocty FROM fleet.readings",
}
OUTAGE = {"outage": PAGES["chart"]}


def found_browser() -> str:
    """The browser of this machine, `HEADRACE_BROWSER` first; empty when there is none."""
    named = os.environ.get("HEADRACE_BROWSER")
    return next(filter(None, map(shutil.which, [named] if named else BROWSERS)), "")


def start_nodes(directory: Path, log: MemoryLog) -> list[Node]:
    """Three nodes that serve."""
    nodes = []
    for name in NAMES:
        settings = ServerSettings(
            cluster=ClusterSettings(name="plant", bootstrap="memory", slots=60),
            node=NodeSettings(id=name, nodes=NAMES, data_dir=str(directory / name), http="127.0.0.1:0"),
        )
        node = Node(settings, log)
        node.start(lambda _line: None)
        node.serve()
        nodes.append(node)
    wait_for(lambda: all(node.ready()[0] for node in nodes))
    return nodes


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait until a condition holds. Raises SystemExit."""
    ends_s = time.monotonic() + READY_S
    while not holds():
        if time.monotonic() > ends_s:
            raise SystemExit("the nodes were not ready in time")
        time.sleep(0.1)


def write_readings(log: MemoryLog) -> None:
    """Write the tables of two workloads."""
    topics = Topics("plant")
    tables, watch = SchemaLog(log, topics), StatusWatch(log, topics)
    shared = Cluster(log, topics, FixedRouting(read_slot_table(log, topics)), tables, watch, log.appender())
    for database, workload in (("fleet", iot(8, duration_s=3_600)), ("servers", cpu(4, duration_s=600))):
        writers = {name: TableWriter(shared, database, name) for name in workload.tables}
        for name, rows in workload.batches(100_000):
            writers[name].write(rows, workload.tags)
        for writer in writers.values():
            writer.close()
    tables.close()


def shoot(browser: str, url: str, width: int, height: int, target: Path, profile: Path) -> None:
    """Write one screenshot. Raises SystemExit with what the browser reports."""
    if "firefox" in Path(browser).name:
        arguments = [
            "--headless",
            "--profile",
            str(profile),
            "--screenshot",
            str(target),
            f"--window-size={width},{height}",
        ]
    else:
        # Virtual time runs ahead until the page is quiet: the picture does not depend on how busy the machine is.
        arguments = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={profile}"]
        arguments += [f"--window-size={width},{height}", "--virtual-time-budget=6000", f"--screenshot={target}"]
    profile.mkdir(exist_ok=True)
    done = subprocess.run([browser, *arguments, url], capture_output=True, text=True, timeout=SHOT_S, check=False)
    if not target.exists():
        raise SystemExit(f"{browser} made no picture of {url}:\n{done.stderr[-2_000:]}")


def take(browser: str, address: str, pages: Mapping[str, str], target: Path, profile: Path) -> None:
    """Take a picture of each page at each width, and print its path."""
    for width, height in WIDTHS.items():
        for name, sql in pages.items():
            picture = target / f"{name}-{width}.png"
            picture.unlink(missing_ok=True)
            shoot(browser, f"{address}/?{urlencode({'q': sql})}", width, height, picture.resolve(), profile)
            sys.stdout.write(f"{picture}\n")


def main() -> None:
    """Take every picture, into the directory that the command line names."""
    browser = found_browser()
    if not browser:
        names = ", ".join(BROWSERS)
        sys.stdout.write(f"no browser found: none of {names} is in PATH; HEADRACE_BROWSER names another\n")
        return
    target = Path(sys.argv[1] if len(sys.argv) > 1 else "build/shots")
    target.mkdir(parents=True, exist_ok=True)
    # The nodes of the last picture lose their log on purpose.
    configure_logging("error")
    with tempfile.TemporaryDirectory() as scratch:
        log = MemoryLog(clock_ms=lambda: time.time_ns() // 1_000_000)
        nodes = start_nodes(Path(scratch), log)
        try:
            write_readings(log)
            wait_for(lambda: all(status["lag_records"] == 0 for status in nodes[0].status()["groups"]))
            take(browser, nodes[0].http_address, PAGES, target, Path(scratch) / "profile")
            log.unavailable = True
            wait_for(lambda: not nodes[0].ready()[0])
            take(browser, nodes[0].http_address, OUTAGE, target, Path(scratch) / "profile")
        finally:
            log.unavailable = False
            for node in nodes:
                node.stop()


if __name__ == "__main__":
    main()
