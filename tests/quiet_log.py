"""A fixture for packages whose tests cause log lines on purpose."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """No log output while a test runs."""
    before = structlog.get_config()
    structlog.configure(processors=[_drop])
    yield
    structlog.configure(**before)


def _drop(_logger: object, _name: str, _event: object) -> str:
    raise structlog.DropEvent
