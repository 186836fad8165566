"""Offsets of a raw topic: their form in a checkpoint, and which ones a micro-batch reads. Pure.

The form is that of Spark's Kafka source, `{"topic": {"0": 17}}`, so each of the two continues the other's checkpoints.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from headrace.schemas.errors import HeadraceError

Offsets = Mapping[int, int]
"""The next offset to be read, by partition."""

LATEST = -1
EARLIEST = -2


@dataclass(frozen=True, slots=True)
class OffsetRange:
    """The messages of a topic partition with begin <= offset < end."""

    topic: str
    partition: int
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class Start:
    """Where a query without a checkpoint begins: `offsets` by partition, or one rule for all (EARLIEST, LATEST).

    With `timestamp_ms` it begins at the first message of that time or later. `or_latest`: a partition that has none
    begins at its end, otherwise that is an error.
    """

    rule: int = EARLIEST
    offsets: Offsets | None = None
    timestamp_ms: int | None = None
    or_latest: bool = False

    @property
    def moves(self) -> bool:
        """Whether another answer is right later: where the topic ends then."""
        return self.or_latest or LATEST in (self.rule, *(self.offsets or {}).values())


class OffsetsInvalid(HeadraceError):
    """Offsets that are not those of the source's topic: of another topic, or in another form."""


def document_of(topic: str, offsets: Offsets) -> dict[str, dict[str, int]]:
    """Offsets as they are in a checkpoint."""
    # Spark compares offsets as text: equal ones need one order.
    return {topic: {str(partition): offsets[partition] for partition in sorted(offsets)}}


def offsets_of(document: object, topic: str) -> dict[int, int]:
    """Offsets out of a checkpoint, or of an option. Raises OffsetsInvalid."""
    if not isinstance(document, dict) or set(document) != {topic}:
        found = ", ".join(map(str, document)) if isinstance(document, dict) else json.dumps(document)
        raise OffsetsInvalid(
            f"these are no offsets of topic {topic}: {found[:200]}", action="give every query a checkpoint of its own"
        )
    try:
        offsets = {int(partition): int(offset) for partition, offset in document[topic].items()}
    except (AttributeError, TypeError, ValueError) as error:
        raise OffsetsInvalid(
            f"offsets of topic {topic} are not numbers by partition: {json.dumps(document)[:200]}",
            action=f'the form is {{"{topic}": {{"0": 17}}}}',
        ) from error
    return offsets


def next_offsets(position: Offsets, ends: Offsets, messages_max: int | None) -> dict[int, int]:
    """The end of the batch that begins at `position`: up to `ends`, of `messages_max` messages or a few more.

    A partition gets its share by what it has left, as with Spark's `maxOffsetsPerTrigger`, and at least one
    message. One that is not in `position` begins at 0.
    """
    sizes = {partition: max(0, end - position.get(partition, 0)) for partition, end in ends.items()}
    total = sum(sizes.values())
    reached = dict(position)
    for partition, size in sizes.items():
        # Named from its first message on: other offsets are a batch to Spark, also one without a message.
        if not size:
            continue
        share = size if messages_max is None or total <= messages_max else max(1, size * messages_max // total)
        reached[partition] = position.get(partition, 0) + min(size, share)
    return reached


def first_start(start: Offsets, end: Offsets, *, moves: bool) -> dict[int, int]:
    """Where the first batch of a query begins, when Spark asks for it again: it was planned and never finished.

    A partition that the batch lacks was added later, and is read from its first message on by a later batch. A start
    that `moves` may have gone beyond the end of the batch, which had nothing of that partition.
    """
    known = {partition: offset for partition, offset in start.items() if partition in end}
    return {partition: min(offset, end[partition]) for partition, offset in known.items()} if moves else known


def offset_ranges(topic: str, start: Offsets, end: Offsets) -> list[OffsetRange]:
    """What a micro-batch reads, one range for each partition with messages.

    Raises OffsetsInvalid for a partition of `start` that `end` lacks, or that goes back.
    """
    lost = [partition for partition, offset in start.items() if end.get(partition, -1) < offset]
    if lost:
        raise OffsetsInvalid(
            f"partition {lost[0]} of topic {topic} would end before it begins", action="start with a new checkpoint"
        )
    begins = {partition: start.get(partition, 0) for partition in sorted(end)}
    return [OffsetRange(topic, number, begin, end[number]) for number, begin in begins.items() if begin < end[number]]
