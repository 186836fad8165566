"""What `headrace ingest run` shows while it runs: a status line on a terminal, else a line every 10 seconds.

With `--json` each line on stderr is one JSON object.
"""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from headrace.terminal.output import Output, counted, json_line, refused_lines
from headrace.terminal.sizes import short_number

if TYPE_CHECKING:
    from headrace.pipeline.dry_run import DryRun
    from headrace.pipeline.ingest_progress import Counts, IngestProgress
    from headrace.pipeline.job import IngestJob

RATE_WINDOW_S = 10.0
LINE_INTERVAL_S = 10.0
UNKNOWN = "unknown"


class JsonLines(Output):
    """The output of a command whose remarks are JSON too: programs read its progress line by line."""

    def note(self, message: str) -> None:
        """A remark as `{"note": …}`."""
        self.document({"note": message})

    def document(self, document: Mapping[str, Any]) -> None:
        """One JSON object on a line of stderr."""
        super().note(json_line(document, sys.stderr))


@contextmanager
def live_display(topic: str, output: Output) -> Iterator[Callable[[IngestProgress], None]]:
    """Yields the function that shows the newest progress on stderr."""
    as_json = output.document if isinstance(output, JsonLines) else None
    note = output.note
    refusals = Refusals(note, as_json)
    if as_json or not sys.stderr.isatty():
        lines = ProgressLines(topic, note, as_json)

        def log(progress: IngestProgress) -> None:
            refusals.show(progress.counts)
            lines.show(progress)

        yield log
        refusals.show_totals()
        return
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    rate = Rate()
    # Live moves what is printed meanwhile above its own line.
    with Live(Text(f"{topic}: starting"), console=Console(stderr=True), refresh_per_second=4) as live:

        def show(progress: IngestProgress) -> None:
            refusals.show(progress.counts)
            live.update(Text(f"{topic}: {describe(progress, *rate.after(progress))}"))

        yield show
    refusals.show_totals()


class ProgressLines:
    """A line for logs every LINE_INTERVAL_S, also while nothing arrives: silence would look like a hang."""

    def __init__(
        self,
        topic: str,
        note: Callable[[str], None],
        as_json: Callable[[Mapping[str, Any]], None] | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._topic = topic
        self._note = note
        self._as_json = as_json
        self._clock_s = clock_s
        self._rate = Rate(clock_s)
        self._due_s = clock_s() + LINE_INTERVAL_S

    def show(self, progress: IngestProgress) -> None:
        """Print a line when it is time for one."""
        rates = self._rate.after(progress)
        if self._clock_s() < self._due_s:
            return
        self._due_s = self._clock_s() + LINE_INTERVAL_S
        if self._as_json is not None:
            self._as_json({"progress": document(self._topic, progress, *rates)})
        else:
            self._note(f"{self._topic}: {describe(progress, *rates)}")


class Refusals:
    """Prints each reason for which lines are refused when it occurs first."""

    def __init__(self, note: Callable[[str], None], as_json: Callable[[Mapping[str, Any]], None] | None = None) -> None:
        self._note = note
        self._as_json = as_json
        self._shown: dict[str, int] = {}
        self._totals: Mapping[str, int] = {}

    def show(self, counts: Counts) -> None:
        """Print the reasons that are new."""
        self._totals = counts.reasons
        for reason, count in counts.reasons.items():
            if reason not in self._shown:
                self._shown[reason] = count
                self._report(count, reason)

    def show_totals(self) -> None:
        """Print the reasons that more lines had than were printed."""
        for reason, count in self._totals.items():
            if count > self._shown[reason]:
                self._report(count, reason, " in all")

    def _report(self, count: int, reason: str, in_all: str = "") -> None:
        if self._as_json is not None:
            self._as_json({"refused": {"lines": count, "reason": reason}})
        else:
            self._note(f"{refused_lines(count)}{in_all}: {reason}")


class Rate:
    """Speed over the last RATE_WINDOW_S."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        self._clock_s = clock_s
        self._samples: deque[tuple[float, int, int]] = deque()

    def after(self, progress: IngestProgress) -> tuple[float, float]:
        """(rows a second, MB a second) up to this progress."""
        samples = self._samples
        samples.append((self._clock_s(), progress.counts.rows, progress.counts.bytes))
        while len(samples) > 2 and samples[-1][0] - samples[0][0] > RATE_WINDOW_S:
            samples.popleft()
        seconds = samples[-1][0] - samples[0][0]
        if seconds <= 0:
            return 0.0, 0.0
        return (samples[-1][1] - samples[0][1]) / seconds, (samples[-1][2] - samples[0][2]) / seconds / 1e6


def describe(progress: IngestProgress, rows_per_second: float, megabytes_per_second: float) -> str:
    """The line: what was written, how fast, how far behind, and how much was bad."""
    counts = progress.counts
    return ", ".join(
        (
            _short(counts.rows, "row"),
            _short(counts.points, "point"),
            f"{short_number(rows_per_second)} rows/s",
            f"{megabytes_per_second:.1f} MB/s",
            f"lag {_lag(progress)}",
            refused_lines(counts.rejected),
            *([] if progress.state == "running" else [str(progress.state)]),
        )
    )


def document(
    topic: str, progress: IngestProgress, rows_per_second: float, megabytes_per_second: float
) -> dict[str, Any]:
    """The same as JSON; an unknown lag is -1, as in the metrics."""
    counts = progress.counts
    return {
        "topic": topic,
        "state": str(progress.state),
        "rows": counts.rows,
        "points": counts.points,
        "rejected": counts.rejected,
        "batches": progress.batches,
        "rows_per_second": round(rows_per_second, 1),
        "mb_per_second": round(megabytes_per_second, 3),
        "lag_records": progress.lag_records,
        "lag_seconds": progress.lag_seconds,
    }


def _short(count: int, noun: str) -> str:
    return f"{short_number(count)} {noun}{'' if count == 1 else 's'}"


def _lag(progress: IngestProgress) -> str:
    if progress.lag_records < 0:
        return UNKNOWN
    seconds = UNKNOWN if progress.lag_seconds < 0 else f"{progress.lag_seconds:.0f}"
    return f"{progress.lag_records} {'record' if progress.lag_records == 1 else 'records'}, {seconds} s"


def show_dry_run(job: IngestJob, found: DryRun, output: Output) -> None:
    """Show the schemas and rows of a dry run; for people times as such, which shows whether their unit is right."""
    # It imports Arrow, which a command that only fails must not wait for.
    from headrace.connectors.formats.time_rules import instant

    document = {
        "topic": job.topic,
        "messages": found.messages,
        "tables": [
            {
                "table": each.name,
                "known": each.known,
                "tags": list(each.tags),
                "fields": [{"name": name, "type": kind} for name, kind in each.fields],
                "rows": each.rows,
                "first": [{name: _json_value(value) for name, value in row.items()} for row in each.first],
            }
            for each in found.tables
        ],
        "rejected": found.rejected,
        "reasons": dict(found.reasons),
        "absent": list(found.absent),
        "untimed": found.untimed,
    }

    def text() -> None:
        output.line(f"the first {counted(found.messages, 'message')} of {job.topic}; nothing is written")
        for each in found.tables:
            columns = [(name, "tag") for name in each.tags] + [("time", "time"), *each.fields]
            new = "" if each.known else ", new"
            output.table(
                ("column", "type"), columns, f"\n{job.database}.{each.name} ({counted(each.rows, 'row')}{new})"
            )
            names = [name for name, _ in columns]
            output.line("")
            rows = [{**row, "time": instant(row["time"])} for row in each.first]
            output.table(names, [[row.get(name) for name in names] for row in rows])
        for reason, lines in found.reasons.items():
            output.line(f"{refused_lines(lines)}: {reason}")
        if found.absent:
            output.line(absent_names(found.absent))
        if found.untimed:
            output.line(f"{counted(found.untimed, 'row')} without a time take that of the message in Kafka")

    output.result(document, text)


def absent_names(names: Sequence[str]) -> str:
    """That no row has what is named."""
    return f"no row has {', '.join(map(repr, names))}: look for a misspelt name"


def _json_value(value: object) -> object:
    """As answers of queries have it: JSON has neither NaN nor infinities."""
    return None if isinstance(value, float) and not math.isfinite(value) else value
