"""What all unit tests need."""

from __future__ import annotations

import signal
from collections.abc import Iterator, MutableMapping
from typing import Any

import pytest
import structlog


@pytest.fixture(autouse=True)
def own_logging() -> None:
    """Logging of this test: earlier commands may have set a level, or a stream that is closed by now.

    `capture_logs` has lines of every level. Of the others only warnings are shown: some tests cause thousands of lines.
    """
    structlog.reset_defaults()
    structlog.configure(processors=[_warnings_alone, structlog.processors.KeyValueRenderer()])


@pytest.fixture(autouse=True)
def own_signals() -> Iterator[None]:
    """The handlers of this test: commands and jobs that run within it set some, for the rest of their process."""
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def _warnings_alone(_logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if method in ("debug", "info"):
        raise structlog.DropEvent
    return event
