"""A new data directory under the id of a node that runs."""

from __future__ import annotations

import threading
import time
from dataclasses import replace

import pytest

from headrace.connectors.log.append import append_one
from headrace.connectors.log.memory import MemoryLog
from headrace.consumers.node.other_store import NodeRuns, check_alone
from headrace.consumers.replication.failure_detector import OFFLINE_MS
from headrace.schemas.presence import Presence, encode_presence, presence_key

TOPIC = "c.status"
OTHER = Presence("n1", "i1", "s1", "http://127.0.0.1:1", 1, 10, True, 1, 1, True)


@pytest.fixture
def log() -> MemoryLog:
    """A log with the topic of statuses."""
    made = MemoryLog()
    made.create_topic(TOPIC, {})
    return made


def send(log: MemoryLog, presence: Presence) -> None:
    """A status of a node."""
    append_one(log, TOPIC, encode_presence(presence), key=presence_key(presence.node))


def test_a_node_that_nobody_has_seen_starts_at_once(log: MemoryLog) -> None:
    """Others may send as much as they want."""
    began_s = time.monotonic()
    check_alone(log, TOPIC, "n1", threading.Event())
    send(log, replace(OTHER, node="n2"))
    check_alone(log, TOPIC, "n1", threading.Event())
    assert time.monotonic() - began_s < OFFLINE_MS / 1_000


def test_a_node_whose_id_is_in_use_names_the_other_one(log: MemoryLog) -> None:
    """It sends a status while this one waits."""
    send(log, OTHER)
    timer = threading.Timer(0.3, send, (log, replace(OTHER, records=2)))
    timer.start()
    with pytest.raises(NodeRuns, match="node n1 runs already at http://127.0.0.1:1"):
        check_alone(log, TOPIC, "n1", threading.Event())
    timer.join()


def test_a_node_whose_directory_was_deleted_waits_until_it_is_forgotten(log: MemoryLog) -> None:
    """Its former self has sent a status a moment ago, and sends none any more."""
    send(log, OTHER)
    began_s = time.monotonic()
    check_alone(log, TOPIC, "n1", threading.Event())
    assert time.monotonic() - began_s < OFFLINE_MS / 1_000 + 1


def test_a_node_that_is_stopped_waits_no_longer(log: MemoryLog) -> None:
    """A signal at the start ends it."""
    send(log, OTHER)
    stopping = threading.Event()
    stopping.set()
    check_alone(log, TOPIC, "n1", stopping)
