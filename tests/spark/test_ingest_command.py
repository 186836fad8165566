"""`headrace ingest run` and the plain `spark-submit` job as processes: output, exit codes, and the content
after kill -9.
"""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest

from headrace.connectors.kafka.broker import EmbeddedBroker
from headrace.connectors.kafka.broker_process import free_port
from headrace.connectors.log.port import LogUnavailable
from headrace.consumers.membership.bootstrap import read_slot_table
from headrace.pipeline.checkpoint import JAVA_LIVES
from headrace.terminal.stop_signals import STOPPING
from headrace.workload import iot
from headrace.workload.checksum import checksums, compare, workload_checksums
from headrace.workload.encode import to_line_protocol
from tests.spark.conftest import IngestCluster, new_ingest_cluster
from tests.spark.stored import stored_tables
from tests.waiting import eventually

ROOT = Path(__file__).resolve().parents[2]
WAIT_S = 400
DRIVER, JAVA = "driver", "java"
WORKER_LATE = "a Python process of Spark did not start in 10 s: "
"""What a run notes on an overloaded machine, before it starts its query again."""


def command(cluster: IngestCluster, *more: str) -> list[str]:
    """`headrace ingest run` on the cluster's raw topic, line protocol, database db."""
    given = ["--cluster", cluster.topics.cluster, "--bootstrap", cluster.bootstrap, "--topic", cluster.raw]
    checkpoint = str(cluster.directory / "deep" / "er" / "checkpoint")
    return [
        *(sys.executable, "-m", "headrace", "ingest", "run", *given),
        *("--database", "db", "--format", "influx", "--any-time", "--time-resolution", "ns"),
        *("--checkpoint", checkpoint, *more),
    ]


def finished(line: list[str]) -> subprocess.CompletedProcess[str]:
    """Run to the end, with captured output."""
    return subprocess.run(line, capture_output=True, text=True, timeout=WAIT_S, check=False, cwd=ROOT)


@contextmanager
def running(line: list[str]) -> Iterator[subprocess.Popen[str]]:
    """A process in its own process group, killed at the end; its JVM ends with it."""
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


def forwarded(cluster: IngestCluster) -> int:
    """The number of forward messages: all records of the logs, since no node appends its own."""
    # Only the ends: the tests look several times a second, and the logs are long.
    groups = read_slot_table(cluster.log, cluster.topics).headers
    return sum(cluster.log.describe(cluster.topics.forward(group)).end for group in groups)


def forwarded_once_available(cluster: IngestCluster) -> int:
    """The number of forward messages, retried until Kafka knows it: a starting broker answers before its
    topics do.
    """
    deadline = time.monotonic() + WAIT_S
    while True:
        try:
            return forwarded(cluster)
        except LogUnavailable:
            assert time.monotonic() < deadline, "Kafka does not come back"
            time.sleep(0.3)


def without_progress(cluster: IngestCluster, stderr: str) -> list[str]:
    """The lines of stderr but those of every 10 seconds, and those of an overloaded machine."""
    return [line for line in stderr.splitlines() if not line.startswith((f"{cluster.raw}: ", WORKER_LATE))]


def documents(stderr: str) -> list[dict[str, Any]]:
    """The same with `--json`: each line is an object."""
    found = [each for each in map(json.loads, stderr.splitlines()) if "progress" not in each]
    return [each for each in found if not str(each.get("note")).startswith(WORKER_LATE)]


def wait_for_more(cluster: IngestCluster, than: int, process: subprocess.Popen[str]) -> None:
    """Wait until there are more forward messages."""
    deadline = time.monotonic() + WAIT_S
    while forwarded(cluster) <= than:
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline, "nothing was forwarded"
        time.sleep(0.3)


def is_whole(cluster: IngestCluster, rows: int) -> bool:
    """Whether all readings are in the logs."""
    return len(stored_tables(cluster.log, cluster.topics)["readings"]) >= rows


def kill_java(cluster: IngestCluster, process: subprocess.Popen[str]) -> None:
    """Kill the JVM of a run without `--json`, and wait for the run's error."""
    [java] = [child for child in psutil.Process(process.pid).children() if "java" in child.name()]
    java.kill()
    stdout, stderr = process.communicate(timeout=WAIT_S)
    assert (1, "") == (process.returncode, stdout)
    lines = without_progress(cluster, stderr)
    assert 2 == len(lines), stderr
    error, action = lines
    assert "error: Spark's Java process ended" == error
    assert action.startswith("what to do: ")


@pytest.mark.slow(12)
def test_without_a_broker_there_is_one_clear_error(tmp_path: Path) -> None:
    """Without a listener the command names the address that does not answer, and fails."""
    given = ["--cluster", "c", "--bootstrap", "127.0.0.1:9", "--topic", "raw", "--database", "db", "--format", "influx"]
    line = [sys.executable, "-m", "headrace", "ingest", "run", *given, "--data-dir", str(tmp_path), "--timeout", "0.5"]
    done = finished(line)
    assert 1 == done.returncode
    assert "" == done.stdout
    error, action = done.stderr.splitlines()[-2:]
    assert error.startswith("error: Kafka at 127.0.0.1:9 does not answer")
    assert "broker" in action


@pytest.mark.slow(90)
@pytest.mark.timeout(900)
@pytest.mark.parametrize("ends", [(JAVA, DRIVER), pytest.param((JAVA, DRIVER, DRIVER, DRIVER), marks=pytest.mark.soak)])
def test_kill_9_within_and_between_micro_batches_leaves_the_content_exact(
    cluster: IngestCluster, ends: Sequence[str]
) -> None:
    """The driver or Spark's Java process is killed while rows are written, and the run restarted from its checkpoint.

    The death of Java, as the kernel causes it when memory is short, is a named error without a traceback. SIGTERM to
    the whole group, Spark's processes among them, at the end stops a run cleanly with its counts.
    """
    fleet = iot(trucks=60, duration_s=4_000, disorder=True)
    rng = random.Random(11)
    lines = [line.encode() for line in to_line_protocol("readings", fleet.read("readings")).to_pylist()]
    cluster.create_raw(partitions=2)
    cluster.produce(lines, partitions=2)
    # Without a pause a query that has nothing to read looks for it all the time.
    options = ("--max-messages", "4000", "--interval-s", "0.2")
    line = command(cluster, *options, "--json")
    for ended in ends:
        with running(command(cluster, *options) if ended == JAVA else line) as process:
            wait_for_more(cluster, forwarded(cluster), process)
            time.sleep(rng.uniform(0, 0.4))
            if ended == JAVA:
                kill_java(cluster, process)
            else:
                process.kill()
    with running(line) as process:
        deadline = time.monotonic() + WAIT_S
        # The logs are read and applied only once they have stopped growing.
        before, count = -1, forwarded(cluster)
        while before < count or not is_whole(cluster, fleet.rows_of("readings")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "rows are missing"
            time.sleep(2.0)
            before, count = count, forwarded(cluster)
        os.killpg(process.pid, signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=WAIT_S)
    # Whether the Java process of the killed run lives on for a moment is a matter of chance.
    notes = [each for each in documents(stderr) if each != {"note": JAVA_LIVES}]
    assert (0, [{"note": STOPPING}]) == (process.returncode, notes)
    assert {"rows", "points", "rejected", "batches", "seconds"} == set(json.loads(stdout))
    found = checksums(stored_tables(cluster.log, cluster.topics)["readings"], fleet.tags)
    assert [] == compare(workload_checksums(fleet)["readings"], found)


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_broker_killed_during_a_run_leaves_the_content_exact(
    own_broker: EmbeddedBroker, cluster_name: str, tmp_path: Path
) -> None:
    """Kafka is killed with kill -9 while workers read and write, for a moment and for longer: the run
    continues by itself.
    """
    fleet = iot(trucks=60, duration_s=4_000)
    info = own_broker.start()
    with new_ingest_cluster(info.bootstrap, cluster_name, tmp_path) as cluster:
        lines = [line.encode() for line in to_line_protocol("readings", fleet.read("readings")).to_pylist()]
        cluster.create_raw(partitions=2)
        cluster.produce(lines, partitions=2)
        with running(command(cluster, "--max-messages", "4000", "--interval-s", "0", "--available-now")) as process:
            for away_s in (0.0, 15.0):
                wait_for_more(cluster, forwarded_once_available(cluster), process)
                broker = psutil.Process(info.pid)
                broker.kill()
                broker.wait(20)
                time.sleep(away_s)
                info = own_broker.start()
            _, stderr = process.communicate(timeout=WAIT_S)
        assert 0 == process.returncode, stderr
        forwarded_once_available(cluster)
        found = checksums(stored_tables(cluster.log, cluster.topics)["readings"], fleet.tags)
        assert [] == compare(workload_checksums(fleet)["readings"], found)


@pytest.mark.slow(14)
@pytest.mark.parametrize(
    ("number", "to_group", "code"),
    [
        # Ctrl-C is in tests/e2e/first_hour/ingest_stop.sh.
        pytest.param(signal.SIGINT, True, 130, id="ctrl-c", marks=pytest.mark.soak),
        pytest.param(signal.SIGTERM, False, 0, id="terminate", marks=pytest.mark.soak),
        # Without --http it is the end of the test of kill -9.
        pytest.param(signal.SIGTERM, True, 0, id="terminate the whole group", marks=pytest.mark.soak),
    ],
)
def test_a_signal_stops_a_run_with_one_line_and_its_counts(
    cluster: IngestCluster, number: signal.Signals, to_group: bool, code: int
) -> None:
    """No traceback, whichever process gets the signal: what has begun is finished and counted, also in its metrics."""
    cluster.create_raw(partitions=1)
    cluster.produce([b"t,host=a x=1,y=2 5"])
    address = f"127.0.0.1:{free_port()}"
    with running(command(cluster, "--json", "--interval-s", "0", "--http", address)) as process:
        wait_for_more(cluster, 0, process)
        labels = f'cluster="{cluster.topics.cluster}",topic="{cluster.raw}"'
        eventually(
            lambda: f"headrace_ingest_rows_total{{{labels}}} 1.0" in httpx.get(f"http://{address}/metrics").text,
            "the row in the metrics",
        )
        (os.killpg if to_group else os.kill)(process.pid, number)
        stdout, stderr = process.communicate(timeout=WAIT_S)
    served = {"note": f"metrics at http://{address}/metrics"}
    assert (code, [served, {"note": STOPPING}]) == (process.returncode, documents(stderr))
    document = json.loads(stdout)
    assert (1, 2, 0) == (document["rows"], document["points"], document["rejected"])


@pytest.mark.soak
def test_an_available_now_run_that_is_stopped_early_fails_and_the_next_reads_everything(
    cluster: IngestCluster,
) -> None:
    """Stopped while Spark starts, `--available-now` fails: a script must not take it for complete. The next
    run prints one object; a bad record is counted and becomes a dead letter, and the exit code is still 0.

    The checkpoint's parent directories are created.
    """
    cluster.create_raw(partitions=1)
    bad = b"t,host=a x=1 7\n\xfe\x00bad"
    cluster.produce([b"t,host=a x=1,y=2 5", bad], keys=[None, b"k\x00"])
    line = command(cluster, "--json", "--available-now")
    with running(line) as process:
        log = cluster.directory / "deep" / "er" / "checkpoint" / "headrace" / "spark.log"
        deadline = time.monotonic() + WAIT_S
        while not log.exists():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "Spark is not started"
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        stdout, stderr = process.communicate(timeout=WAIT_S)
    assert 1 == process.returncode, stderr
    assert 0 == json.loads(stdout)["rows"]
    stopping, failed = documents(stderr)
    assert ({"note": STOPPING}, "StoppedEarly") == (stopping, failed["error"]["type"])
    done = finished(line)
    assert 0 == done.returncode
    [refused] = documents(done.stderr)
    assert 1 == refused["refused"]["lines"]
    document = json.loads(done.stdout)
    assert document.pop("seconds") > 0
    assert {"rows": 2, "points": 3, "rejected": 1, "batches": 1} == document
    [letter] = cluster.dead_letters()
    assert (b"k\x00", bad) == (letter.key, letter.value)


@pytest.mark.slow(22)
def test_a_signal_ends_the_wait_for_a_broker(tmp_path: Path) -> None:
    """Before the first micro-batch there is nothing to finish: Ctrl-C ends the command at once."""
    given = ["--cluster", "c", "--bootstrap", "127.0.0.1:9", "--topic", "raw", "--database", "db", "--format", "influx"]
    line = [sys.executable, "-m", "headrace", "ingest", "run", *given, "--data-dir", str(tmp_path), "--timeout", "200"]
    with running(line) as process:
        assert process.stderr is not None
        assert "waiting up to 200 s" in process.stderr.readline()
        # A line can be read before its write has returned, and Python repeats one whose write is interrupted.
        time.sleep(0.5)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=60)
    assert (130, "", "interrupted\n") == (process.returncode, stdout, stderr)


@pytest.mark.soak
@pytest.mark.parametrize("messages", [1, 400_000])
def test_the_death_of_the_java_process_is_one_clear_error(cluster: IngestCluster, messages: int) -> None:
    """Between two micro-batches, and within a large one, as in the middle of the test of kill -9."""
    cluster.create_raw(partitions=1)
    cluster.produce([b"t,host=a x=1,y=2 5"] * messages)
    with running(command(cluster, "--interval-s", "0")) as process:
        wait_for_more(cluster, 0, process)
        kill_java(cluster, process)
