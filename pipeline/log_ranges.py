"""Which records of the forward logs each task of a stream source reads. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import pairwise

Range = tuple[int, int]
"""Records with begin <= offset < end."""


def task_ranges(ranges: Mapping[str, Range], tasks_min: int) -> Iterator[tuple[str, Range]]:
    """(log, range) of each task: one a log, or about `tasks_min` if that is more; empty ranges have none.

    Then a log gets tasks by its share of all records, as with `minPartitions` of Spark's Kafka source.
    """
    total = sum(max(0, end - begin) for begin, end in ranges.values())
    for log, (begin, end) in ranges.items():
        records = max(0, end - begin)
        tasks = max(1, min(records, round(records * tasks_min / total))) if records else 0
        edges = [begin + records * number // tasks for number in range(tasks + 1)] if tasks else []
        yield from ((log, piece) for piece in pairwise(edges))
