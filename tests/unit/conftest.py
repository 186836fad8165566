"""What all unit tests need."""

from __future__ import annotations

import pytest
import structlog


@pytest.fixture(autouse=True)
def own_logging() -> None:
    """Default logging: earlier commands may have set a level, or a stream that is closed by now."""
    structlog.reset_defaults()
