"""The progress bar of commands that run in a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, ProgressColumn, SpinnerColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from headrace.terminal.sizes import short_bytes, short_number

BYTES = "B"
WIDE = 60
"""A narrower terminal gets the numbers alone: beside a bar they would take several lines."""


class Advance(Protocol):
    """Adds `count` to a progress display; `total` replaces the expected end when it becomes known."""

    def __call__(self, count: int, total: int | None = None) -> None: ...


class RateColumn(ProgressColumn):
    """How much is done of how much, and how fast."""

    def __init__(self, unit: str) -> None:
        super().__init__()
        # A size has its unit itself.
        self._short: Callable[[float], str] = short_bytes if unit == BYTES else short_number
        self._unit = "" if unit == BYTES else f" {unit}"

    def render(self, task: Task) -> Text:
        """`1.2 M of 7.2 M rows, 310.0 k/s`, or `1.2 MB of 7.2 MB, 310.0 KB/s`; without the rate until it is known."""
        done = self._short(task.completed)
        reach = f"{done} of {self._short(task.total)}" if task.total else done
        # rich forgets `speed` when a task ends and keeps `finished_speed` instead.
        speed = task.finished_speed or task.speed
        return Text(f"{reach}{self._unit}" + (f", {self._short(speed)}/s" if speed else ""), no_wrap=True)


@contextmanager
def progress_bar(description: str, total: int | None, unit: str) -> Iterator[Advance]:
    """Show a bar on stderr while the body runs; it stays there when done."""
    console = Console(stderr=True)
    columns: list[ProgressColumn] = [SpinnerColumn(), TextColumn("{task.description}"), RateColumn(unit)]
    if console.width >= WIDE:
        columns[2:] = [BarColumn(), RateColumn(unit), TimeRemainingColumn()]
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(description, total=total)

        def advance(count: int, total: int | None = None) -> None:
            progress.update(task, advance=count, total=total)

        yield advance
