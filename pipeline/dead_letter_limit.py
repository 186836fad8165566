"""Stops an ingest before a wrong option fills the queue of dead letters.

A task holds its dead letters back until it has seen all of its lines. Where too many of them are refused, it keeps the
letters from the sink. The driver then decides by the counts of the whole micro-batch: the query ends, or the tasks run
once more for the letters alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from headrace.connectors.log.topics import DLQ_PREFIX
from headrace.pipeline.failures import TooManyRejected, too_many_action
from headrace.pipeline.ingest_progress import Counts
from headrace.pipeline.sink_records import COUNTED_SCHEMA, counts_of, with_counts

LINES_MIN = 1_000
"""Fewer lines say nothing about the options: most of them may come from one device with a wrong clock."""
HELD_BYTES_MAX = 32 * 1024 * 1024
SHARE_MAX = 0.5
NO_LIMIT = 1.0
WITHHELD = -1
"""The partition of a row without a topic that is there instead of withheld letters."""
RELEASE = "release"
"""In place of a share: the task gives its letters alone."""


def exceeds(rows: int, rejected: int, share_max: float) -> bool:
    """Whether too many lines are refused."""
    lines = rows + rejected
    return lines >= LINES_MIN and rejected > share_max * lines


def too_many_rejected(rows: int, rejected: int, reasons: Mapping[str, int], queue: str) -> TooManyRejected:
    """The error, in one line: it passes through the text of Spark's exception."""
    most = max(reasons, key=lambda reason: reasons[reason], default="")
    named = f"; most often: {' '.join(most.split())}" if most else ""
    lines = f"{rejected:,} of {rows + rejected:,} lines of a batch are refused"
    return TooManyRejected(f"{lines}, and it was not committed{named}", action=too_many_action(queue))


def is_dead_letters(records: pa.RecordBatch) -> bool:
    """Whether these are messages that were refused; others are forward messages, or counts alone."""
    topic = records["topic"][0].as_py()
    return topic is not None and topic.startswith(DLQ_PREFIX)


def limited(records: Iterable[pa.RecordBatch], limit: str) -> Iterator[pa.RecordBatch]:
    """The records of a task, in `COUNTED_SCHEMA`, as a driver wants them: `limit` is a share of lines, or RELEASE."""
    if limit == RELEASE:
        return (with_counts(each, Counts()) for each in map(_plain, records) if is_dead_letters(each))
    return _held_back(records, float(limit))


def _held_back(records: Iterable[pa.RecordBatch], share_max: float) -> Iterator[pa.RecordBatch]:
    counts, held, held_bytes, withheld = Counts(), list[pa.RecordBatch](), 0, False
    for batch in records:
        counts += counts_of(batch)
        if not is_dead_letters(batch):
            yield batch
            continue
        held.append(batch if not withheld else _mark(counts_of(batch)))
        held_bytes += batch.nbytes
        # More than that is not held: whatever the rest of the task is like, the driver will ask for them.
        if held_bytes > HELD_BYTES_MAX and not withheld:
            withheld = True
            held = [_mark(counts_of(each)) for each in held]
    if not withheld and exceeds(counts.rows, counts.rejected, share_max):
        held = [_mark(counts_of(each)) for each in held]
    yield from held


def _plain(records: pa.RecordBatch) -> pa.RecordBatch:
    """The records without their counts."""
    return records.select(COUNTED_SCHEMA.names[:5])


def _mark(counts: Counts) -> pa.RecordBatch:
    """A row in place of letters, which Spark's sink does not get."""
    columns = [pa.nulls(1, kind) for kind in COUNTED_SCHEMA.types[:5]]
    columns[1] = pa.array([WITHHELD], pa.int32())
    return with_counts(pa.RecordBatch.from_arrays(columns, names=COUNTED_SCHEMA.names[:5]), counts)
