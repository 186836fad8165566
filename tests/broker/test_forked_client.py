"""A client in a process that was forked from the one that made it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from headrace.connectors.kafka.broker import BrokerInfo
from tests.forward_logs import create_cluster, dicts

pytestmark = pytest.mark.broker

SCRIPT = """
import gc, os, sys, warnings
import headrace
warnings.simplefilter("ignore", DeprecationWarning)  # Python's own, of a fork in a process with threads
client = headrace.connect(*sys.argv[1:3])
writer = client.writer("db", "t", ["host"])
writer.write([{"time": 1_700_000_000_000_000_000, "host": "parent", "v": 1}])
try:
    # Makes the reader of statuses, which has a client of its own.
    client.query("SELECT 1", timeout_ms=100)
except headrace.HeadraceError:
    pass

def end():
    sys.exit(7)

def leave():
    global client, writer
    with client, writer:
        del client, writer
        gc.collect()
    sys.exit(8)

def call():
    for each in (
        lambda: writer.write([{"time": 1_700_000_000_000_000_000, "host": "child", "v": 2}]),
        writer.flush, writer.close, client.flush, client.tables, client.close,
        lambda: client.table("db", "t"), lambda: client.writer("db", "t"), lambda: client.query("SELECT 1"),
        lambda: client.delete("db", "t", {"host": "parent"}), lambda: client.drop_table("db", "t"),
        lambda: client.set_retention("db", "t", None),
    ):
        try:
            each()
        except headrace.HeadraceError as error:
            print(type(error).__name__, error.action)
    with headrace.connect(*sys.argv[1:3]) as own, own.writer("db", "t", ["host"]) as own_writer:
        own_writer.write([{"time": 1_700_000_000_000_000_000, "host": "child", "v": 3}])
    sys.exit(9)

for run in (end, leave, call):
    child = os.fork()
    if child == 0:
        run()
    print("child", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
client.close()
"""
REFUSED = "ClientNotShared connect again in the child\n"


def test_a_forked_child_ends_cleanly(broker: BrokerInfo, cluster_name: str, tmp_path: Path) -> None:
    """One that only ends, or leaves the blocks of client and writer, says nothing and is not ended by a dump of
    librdkafka. Each method is refused at once, a client of its own works, and so does that of the parent.
    """
    create_cluster(broker.bootstrap, cluster_name)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, broker.bootstrap, cluster_name],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=110,
    )
    assert (f"child 7\nchild 8\n{12 * REFUSED}child 9\n", "", 0) == (done.stdout, done.stderr, done.returncode)
    assert {"parent", "child"} == {row["host"] for row in dicts(broker.bootstrap, cluster_name, "t")}
