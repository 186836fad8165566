"""Waits for a Kafka that does not answer while a node starts."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.port import CHECK_CONNECTION, LogUnavailable

RETRY_S = 1.0
Result = TypeVar("Result")


class KafkaWait:
    """Repeats the steps of one start: nodes and brokers are often started together, and a broker needs seconds."""

    def __init__(
        self, bootstrap: str, timeout_s: float, stopping: threading.Event, on_progress: Callable[[str], None]
    ) -> None:
        self._bootstrap = bootstrap
        self._timeout_s = timeout_s
        self._stopping = stopping
        self._on_progress = on_progress
        self.was_away = False
        """Whether Kafka has not answered at first: it came up, or back, during this start."""

    def await_answer(self, step: Callable[[], Result]) -> Result:
        """The result of a step, repeated while Kafka does not answer. Raises LogUnavailable."""
        # Each step has the whole time: the broker may go away, and come back, in the middle of a start.
        deadline = Deadline(self._timeout_s)
        while True:
            try:
                return step()
            except LogUnavailable as error:
                self.was_away = True
                self._on_progress(f"waiting for Kafka at {self._bootstrap}: {error.message}")
                if deadline.passed() or self._stopping.is_set():
                    raise self._failure(error) from error
            self._stopping.wait(RETRY_S)

    def _failure(self, error: LogUnavailable) -> LogUnavailable:
        if not error.retriable:
            # Kafka did answer, and refuses this account: its address is right.
            return LogUnavailable(error.message, action=f"{error.action}; then start the node again")
        return LogUnavailable(
            f"Kafka at {self._bootstrap} did not answer within {self._timeout_s:g} s: {error}",
            action=f"{CHECK_CONNECTION}; then start the node again",
            retriable=True,
        )
