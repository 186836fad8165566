"""The status line of `headrace ingest run` on a terminal."""

from __future__ import annotations

import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from headrace.terminal.progress_bar import short_number

if TYPE_CHECKING:
    from headrace.pipeline.ingest_progress import IngestProgress

RATE_WINDOW_S = 10.0


@contextmanager
def live_display(topic: str) -> Iterator[Callable[[IngestProgress], None]]:
    """Yields the function that shows the newest progress; without a terminal it shows nothing."""
    if not sys.stderr.isatty():
        yield lambda _progress: None
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    samples: deque[tuple[float, int, int]] = deque()
    with Live(Text(f"{topic}: starting"), console=Console(stderr=True), refresh_per_second=4) as live:

        def show(progress: IngestProgress) -> None:
            samples.append((time.monotonic(), progress.counts.rows, progress.counts.bytes))
            while len(samples) > 2 and samples[-1][0] - samples[0][0] > RATE_WINDOW_S:
                samples.popleft()
            live.update(Text(f"{topic}: {describe(progress, *rates(samples))}"))

        yield show


def rates(samples: deque[tuple[float, int, int]]) -> tuple[float, float]:
    """(rows a second, MB a second) over samples of (second, rows, bytes)."""
    seconds = samples[-1][0] - samples[0][0]
    if seconds <= 0:
        return 0.0, 0.0
    return (samples[-1][1] - samples[0][1]) / seconds, (samples[-1][2] - samples[0][2]) / seconds / 1e6


def describe(progress: IngestProgress, rows_per_second: float, megabytes_per_second: float) -> str:
    """The line: what was written, how fast, how far behind, and how much was bad."""
    counts = progress.counts
    return ", ".join(
        (
            f"{short_number(counts.rows)} rows",
            f"{short_number(counts.points)} points",
            f"{short_number(rows_per_second)} rows/s",
            f"{megabytes_per_second:.1f} MB/s",
            f"lag {progress.lag_records} records, {progress.lag_seconds:.0f} s",
            f"{counts.rejected} bad lines",
        )
    )
