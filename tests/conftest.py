"""Fixtures and settings shared by all tests."""

from __future__ import annotations

import atexit
import fcntl
import gc
import os
import shutil
import signal
import tempfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from headrace.connectors.kafka.broker import BrokerInfo, EmbeddedBroker
from headrace.connectors.kafka.java import OPTIONS_VARIABLE

settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# A Java process of some seconds spends most of its time compiling code that it runs once: the quick compiler
# is enough.
os.environ.setdefault(OPTIONS_VARIABLE, "-XX:TieredStopAtLevel=1")

# A shell starts background jobs with SIGINT ignored, and every process that the tests start would inherit
# that.
signal.signal(signal.SIGINT, signal.default_int_handler)


SHARED = pytest.StashKey[Path]()
"""The directory that the processes of one run share."""

GC_OBJECTS = 20_000
# Estimated seconds of a test without a duration in its `slow` marker.
SLOW_S, BROKER_S, QUICK_S = 10.0, 2.0, 0.05

# Files with long tests that share nothing but the broker of the run: each test goes to any worker.
SPLIT_FILES = frozenset(
    f"tests/{name}.py"
    for name in (
        "bench/test_cluster_benches",
        "broker/test_embedded_broker",
        "e2e/test_demo",
        "e2e/test_disk_full",
        "e2e/test_kill",
        "e2e/test_leaders",
        "e2e/test_real_data",
        "e2e/test_up_down",
        "sim/test_cluster",
        "spark/test_deployment",
        "spark/test_ingest_command",
        "spark/test_secured_broker",
        "unit/connectors/formats/test_fast_and_slow_agree",
        "unit/migration/test_puller",
        "unit/recovery/test_coordinator",
        "unit/recovery/test_supervisor",
        "unit/replication/test_slot_stores",
        "unit/wal/test_exhaustive",
    )
)

# Their tests wait for processes, most of the time: several workers have them at once.
WAITING = ("spark session", "changes of clusters", *(f"tests/{name}/" for name in ("bench", "broker", "e2e", "spark")))
COMPUTING_NICENESS = 5
COMPUTING_WORKERS_MIN = 3

CHANGES_OF_CLUSTERS = frozenset(
    f"tests/e2e/{name}.py" for name in ("test_change_faults", "test_change_troubles", "test_cluster_changes")
)


def pytest_configure(config: pytest.Config) -> None:
    """The first process of a run creates the shared directory and passes it to its workers."""
    # Collecting makes a million objects that live to the end: no collection has to look at them.
    gc.disable()
    worker_input: dict[str, Any] | None = getattr(config, "workerinput", None)
    config.stash[SHARED] = Path(worker_input["shared"] if worker_input else tempfile.mkdtemp(prefix="headrace-tests-"))
    if worker_input and computes(worker_input["workerid"], worker_input["workercount"]):
        # It has what the others leave: where they wait for each other's processes, every test takes twice the time.
        os.nice(COMPUTING_NICENESS)
    if not worker_input:
        # What a process that was killed leaves behind goes with the shared directory.
        scratch = config.stash[SHARED] / "tmp"
        scratch.mkdir()
        os.environ["TMPDIR"] = str(scratch)
        os.environ[OPTIONS_VARIABLE] = f"{os.environ.get(OPTIONS_VARIABLE, '')} -Djava.io.tmpdir={scratch}"


def pytest_collection_finish() -> None:
    """Garbage is collected again, from what the tests make, and not at every 700th object."""
    gc.freeze()
    gc.set_threshold(GC_OBJECTS, 20, 20)
    gc.enable()


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Pass the shared directory to a worker of pytest-xdist."""
    node.workerinput["shared"] = str(node.config.stash[SHARED])


def pytest_unconfigure(config: pytest.Config) -> None:
    """Stop the shared broker and delete the shared directory."""
    # DuckDB reports as leaked what is not collected at the end. Not before that: pytest collects garbage twice more, and
    # would look at all that was frozen.
    atexit.register(gc.unfreeze)
    if not hasattr(config, "workerinput") and SHARED in config.stash:
        EmbeddedBroker(config.stash[SHARED] / "broker").stop()
        shutil.rmtree(config.stash[SHARED], ignore_errors=True)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Mark tests by their fixtures, so that `-m "not broker and not spark"` is the quick half.

    The longest scopes begin first.
    """
    seconds: dict[str, float] = {}
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "broker" in fixtures or "own_broker" in fixtures:
            item.add_marker(pytest.mark.broker)
        if Path(__file__).with_name("spark") in item.path.parents:
            item.add_marker(pytest.mark.spark)
        scope = scope_of(item.nodeid)
        seconds[scope] = seconds.get(scope, 0.0) + expected_seconds(item)
    yield
    # After pytest-randomly, which shuffles in this hook too.
    items.sort(key=lambda item: (-seconds[scope_of(item.nodeid)], scope_of(item.nodeid)))


def expected_seconds(item: pytest.Item) -> float:
    """Estimated duration of a test."""
    if slow := item.get_closest_marker("slow"):
        return float(slow.args[0]) if slow.args else SLOW_S
    return BROKER_S if item.get_closest_marker("broker") or item.get_closest_marker("spark") else QUICK_S


def scope_of(node_id: str) -> str:
    """The scope of a test: tests of one scope run on one worker, in sequence.

    A scope is a file, whose tests may share a cluster, or all tests that share the Spark session, or the
    changes of clusters under load.
    """
    path = node_id.partition("::")[0]
    if path in SPLIT_FILES:
        return node_id
    if path.startswith("tests/spark/"):
        return "spark session"
    # Each keeps a cluster busy all the time: beside one another they would slow down everything.
    return "changes of clusters" if path in CHANGES_OF_CLUSTERS else path


def computes(worker: str, workers: int) -> bool:
    """Whether a worker begins with the tests that only compute: the last one, of several."""
    return workers >= COMPUTING_WORKERS_MIN and worker == f"gw{workers - 1}"


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """The scheduler of pytest-xdist that distributes whole scopes, with the scopes of `scope_of`."""
    from xdist.scheduler.loadscope import LoadScopeScheduling

    class Scheduler(LoadScopeScheduling):  # type: ignore[misc]
        """Distributes scopes to workers in the order of collection, first those that are for the worker."""

        def _split_scope(self, nodeid: str) -> str:
            return scope_of(nodeid)

        def _assign_work_unit(self, node: Any) -> None:
            wants_waiting = not computes(node.gateway.id, self.numnodes)
            scope = next((each for each in self.workqueue if each.startswith(WAITING) == wants_waiting), None)
            if scope is not None:
                self.workqueue.move_to_end(scope, last=False)
            super()._assign_work_unit(node)

        def remove_node(self, node: Any) -> str | None:
            """What was left for a worker that ended goes to others; returns the test that ended it, which failed.

            That of pytest-xdist gives out finished scopes too. A worker with none to run waits for ever, and so
            does the run. It also gives out the test that ended the worker.
            """
            assigned = self.assigned_work.pop(node)
            left = [test for tests in assigned.values() for test, done in tests.items() if not done]
            for test in left[1:]:
                self.workqueue.setdefault(scope_of(test), {})[test] = False
            for other in self.assigned_work:
                self._reschedule(other)
            return left[0] if left else None

    return Scheduler(config, log)


@pytest.fixture(scope="session")
def broker(pytestconfig: pytest.Config) -> BrokerInfo:
    """One real broker, with `.bootstrap`, for all tests and workers of a run; `cluster_name` keeps tests
    apart.

    The first test that needs it starts it, the end of the run stops it.
    """
    directory = pytestconfig.stash[SHARED]
    embedded = EmbeddedBroker(directory / "broker")
    with (directory / "broker.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (directory / "broker").exists():
            embedded.start()
        status = embedded.status()
    assert status.bootstrap is not None, "the broker of all tests has ended"
    assert status.pid is not None
    return BrokerInfo(status.bootstrap, status.pid)


@pytest.fixture
def cluster_name() -> str:
    """A cluster name (topic prefix) that no other test uses."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker for one test, not started yet, which the test may stop and restart; stopped after the test."""
    embedded = EmbeddedBroker(tmp_path / "own-broker")
    try:
        yield embedded
    finally:
        embedded.stop()
