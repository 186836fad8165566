"""Stops an ingest before a wrong option fills the queue of dead letters.

A task holds its dead letters back until it has seen all of its lines, and fails where too many of them are refused. The
driver then lets the tasks count the whole micro-batch: the query ends, or the batch is written without a limit.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping

import pyarrow as pa

from headrace.connectors.log.topics import DLQ_PREFIX
from headrace.pipeline.failures import TooManyRejected, too_many_action
from headrace.pipeline.ingest_progress import Counts
from headrace.pipeline.sink_records import RECORD_SCHEMA, counts_of, with_counts

LINES_MIN = 1_000
"""Fewer lines say nothing about the options: most of them may come from one device with a wrong clock."""
HELD_BYTES_MAX = 32 * 1024 * 1024
SHARE_MAX = 0.5
NO_LIMIT = 1.0
COUNT = "count"
"""In place of a share: the task gives one row without a topic, whose value has its counts."""


def exceeds(rows: int, rejected: int, share_max: float, tasks: int = 1) -> bool:
    """Whether too many lines are refused: of a micro-batch, or of one of its `tasks`."""
    lines = rows + rejected
    # Of a batch with as many tasks each may have few lines, and all of them wrong.
    return lines * tasks >= LINES_MIN and rejected > share_max * lines


def too_many_rejected(rows: int, rejected: int, reasons: Mapping[str, int], queue: str) -> TooManyRejected:
    """The error, in one line: it passes through the text of Spark's exception."""
    most = max(reasons, key=lambda reason: reasons[reason], default="")
    named = f"; most often: {' '.join(most.split())}" if most else ""
    lines = f"{rejected:,} of {rows + rejected:,} lines of a batch are refused"
    return TooManyRejected(
        f"{lines}, and it was not committed, though good rows may be there{named}", action=too_many_action(queue)
    )


def is_dead_letters(records: pa.RecordBatch) -> bool:
    """Whether these are messages that were refused; others are forward messages, or counts alone."""
    topic = records["topic"][0].as_py()
    return topic is not None and topic.startswith(DLQ_PREFIX)


def limited(records: Iterable[pa.RecordBatch], limit: str, queue: str, tasks: int = 1) -> Iterator[pa.RecordBatch]:
    """The records of one of `tasks`, in `COUNTED_SCHEMA`, as a driver wants them: `limit` is a share of lines, or COUNT.

    Raises TooManyRejected.
    """
    return _counted(records) if limit == COUNT else _held_back(records, float(limit), queue, tasks)


def _held_back(records: Iterable[pa.RecordBatch], share_max: float, queue: str, tasks: int) -> Iterator[pa.RecordBatch]:
    counts, held, held_bytes = Counts(), list[pa.RecordBatch](), 0
    for batch in records:
        counts += counts_of(batch)
        if not is_dead_letters(batch):
            yield batch
            continue
        held.append(batch)
        held_bytes += batch.nbytes
        # The counts come with the last record. Until then nobody knows the share, and the driver has to count.
        if held_bytes > HELD_BYTES_MAX:
            raise TooManyRejected(f"a task has more than {HELD_BYTES_MAX:,} bytes of dead letters")
    if exceeds(counts.rows, counts.rejected, share_max, tasks):
        raise too_many_rejected(counts.rows, counts.rejected, counts.reasons, queue)
    yield from held


def _counted(records: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    total = sum(map(counts_of, records), Counts())
    document = {"rows": total.rows, "rejected": total.rejected, "reasons": dict(total.reasons)}
    columns = [pa.nulls(1, kind) for kind in RECORD_SCHEMA.types]
    columns[RECORD_SCHEMA.get_field_index("value")] = pa.array([json.dumps(document).encode()], pa.binary())
    # Not in the columns of counts: the reports of the query would have the batch twice.
    yield with_counts(pa.RecordBatch.from_arrays(columns, schema=RECORD_SCHEMA), Counts())


def counted_of(values: Iterable[bytes]) -> Counts:
    """What the tasks of a micro-batch have counted."""
    return sum((Counts(**json.loads(value)) for value in values), Counts())
