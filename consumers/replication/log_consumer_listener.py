"""What the log consumer reports, see `log_consumer`."""

from __future__ import annotations

from typing import Protocol


class LogConsumerListener(Protocol):
    """Reacts to the consuming thread, on that thread: each method must be quick."""

    def on_durable(self) -> None:
        """Records of some groups became durable."""
        ...
