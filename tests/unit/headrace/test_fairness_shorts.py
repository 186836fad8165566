"""The short queries of `headrace bench fairness`: what counts as a time."""

from __future__ import annotations

import threading
from http import HTTPStatus
from typing import Any

import pytest

from headrace.bench import fairness


def test_a_refusal_is_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes at once, and lowered the percentiles of those that were answered."""
    stopping = threading.Event()

    class Refusing:
        """A node that is full."""

        def __init__(self, url: str) -> None:
            self.url = url

        def ask(self, _document: Any, _timeout_s: float) -> tuple[int, Any]:
            """Refused, and the last question."""
            stopping.set()
            return HTTPStatus.SERVICE_UNAVAILABLE, {}

    monkeypatch.setattr(fairness, "LeanClient", Refusing)
    monkeypatch.setattr(fairness, "_stopping", stopping)
    shorts = fairness._ask_shorts("http://n1", 10, 50.0)
    assert [] == shorts.taken_ms
    assert shorts.refused >= 1
