"""The writer inside a node, while Kafka does not answer."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from headrace.connectors.log.memory import MemoryLog
from headrace.connectors.log.port import LogUnavailable
from headrace.connectors.log.topics import Topics
from headrace.consumers.node import node_writer
from headrace.consumers.node.node_writer import NodeWriter
from headrace.producers.line_requests import LineRequest
from headrace.producers.settings import WriteSettings
from headrace.producers.writer import WriterClosed
from tests.waiting import eventually

CALLERS = 5


@pytest.fixture
def writer() -> NodeWriter:
    """A writer that has no connection yet."""
    return NodeWriter(MemoryLog(), Topics("c"), WriteSettings())


def test_requests_that_wait_for_kafka_wait_for_the_same_attempt(
    writer: NodeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each made its own, one behind another: the last of many requests had its error after minutes."""
    attempts, called, go = list[object](), list[object](), threading.Event()

    def refuse(*_: object, **__: object) -> None:
        attempts.append(None)
        go.wait(30)
        raise LogUnavailable("Kafka does not answer", retriable=True)

    def write() -> None:
        called.append(None)
        with pytest.raises(LogUnavailable):
            writer.schemas()

    monkeypatch.setattr(node_writer, "open_routing", refuse)
    with ThreadPoolExecutor(CALLERS) as pool:
        written = [pool.submit(write) for _ in range(CALLERS)]
        eventually(lambda: CALLERS == len(called), "all have called")
        time.sleep(0.2)
        go.set()
        for each in written:
            each.result()
    assert len(attempts) < CALLERS
    # A request that comes later looks again.
    before = len(attempts)
    write()
    assert before + 1 == len(attempts)


def test_a_node_that_stops_waits_for_no_attempt_to_connect(writer: NodeWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waited for the whole attempt, ten seconds, and for one more of each request that was waiting."""
    begun = threading.Event()

    def refuse(*_: object, **__: object) -> Any:
        begun.set()
        raise LogUnavailable("Kafka does not answer", retriable=True)

    monkeypatch.setattr(writer._log, "describe", refuse)
    with ThreadPoolExecutor(CALLERS) as pool:
        written = [pool.submit(writer.schemas) for _ in range(CALLERS)]
        assert begun.wait(30)
        began_s = time.monotonic()
        writer.close()
        assert time.monotonic() - began_s < node_writer.OPEN_TIMEOUT_S / 2
        for each in written:
            with pytest.raises(WriterClosed):
                each.result()


def test_lines_that_come_while_a_node_stops_start_no_threads(
    writer: NodeWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody would end them."""
    opened: Callable[[], Any] = writer.close
    monkeypatch.setattr(writer, "_open", opened)
    with pytest.raises(WriterClosed):
        writer.submit(LineRequest("plant", "ns", b"pumps flow=1", 0))
    assert "group-writer" not in [each.name for each in threading.enumerate()]
