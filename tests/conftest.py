"""Fixtures and settings shared by all tests."""

from __future__ import annotations

import os
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from connectors.kafka.broker import BrokerInfo, EmbeddedBroker
from connectors.kafka.java import OPTIONS_VARIABLE

settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("explore", deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))

# Most of the time of a Java process that lives for seconds goes into compiling what it never repeats: the quick compiler alone is enough for tests.
os.environ.setdefault(OPTIONS_VARIABLE, "-XX:TieredStopAtLevel=1")

# In the background of a shell SIGINT is ignored, which everything that the tests start would inherit.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark tests by what they need, so that `-m "not broker and not spark"` is the quick half, and let files with slow tests come first: quick ones
    keep all workers busy to the end."""
    for item in items:
        fixtures = getattr(item, "fixturenames", ())
        if "broker" in fixtures or "own_broker" in fixtures:
            item.add_marker(pytest.mark.broker)
        if Path(__file__).with_name("spark") in item.path.parents:
            item.add_marker(pytest.mark.spark)
    slow = {item.path for item in items if any(map(item.get_closest_marker, ("slow", "spark")))}
    items.sort(key=lambda item: item.path not in slow)


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerInfo]:
    """One real broker for all tests of this worker, with `.bootstrap`; keep apart with `cluster_name`."""
    embedded = EmbeddedBroker(tmp_path_factory.mktemp("broker") / "data")
    info = embedded.start()
    try:
        yield info
    finally:
        embedded.stop()


@pytest.fixture
def cluster_name() -> str:
    """A cluster name (topic prefix) that no other test uses."""
    return f"t{uuid.uuid4().hex[:12]}"


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker of this test alone, not started yet, to be stopped and restarted at will; ended with the test."""
    embedded = EmbeddedBroker(tmp_path / "own-broker")
    try:
        yield embedded
    finally:
        embedded.stop()
