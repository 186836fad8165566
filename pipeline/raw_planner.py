"""Plans the micro-batches of a raw topic, in the process that Spark keeps for it: where they begin and end.

The rules are those of Spark's Kafka source with `failOnDataLoss`: nothing is skipped in silence. In addition a topic
that was created again is recognised by its id, whatever its offsets are.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.kafka_partitions import NO_OFFSET, PartitionLog
from headrace.pipeline.failures import raw_data_lost
from headrace.pipeline.raw_offsets import (
    EARLIEST,
    LATEST,
    OffsetRange,
    Offsets,
    OffsetsInvalid,
    Start,
    first_start,
    next_offsets,
    offset_ranges,
)

IDLE_WAIT_S = 0.25
IDLE_POLL_S = 0.1
RETREAT_WAIT_S = 30.0


class RawPlanner:
    """Position and topic of one query. Used by one thread."""

    def __init__(
        self,
        topic: str,
        log: PartitionLog,
        start: Start,
        *,
        messages_max: int | None = None,
        until: Offsets | None = None,
        sleep: Callable[[float], None] = time.sleep,
        idle_wait_s: float = IDLE_WAIT_S,
        retreat_wait_s: float = RETREAT_WAIT_S,
    ) -> None:
        """`until`: offsets behind which nothing is planned."""
        self._topic = topic
        self._log = log
        self._start = start
        self._messages_max = messages_max
        self._until = until
        self._sleep = sleep
        self._idle_wait_s = idle_wait_s
        self._retreat_wait_s = retreat_wait_s
        self._retreat: Deadline | None = None
        self._topic_id = ""
        self._initial: dict[int, int] | None = None
        self._at_end: dict[int, int] = {}
        self._position: dict[int, int] | None = None

    def resume(self, position: Offsets) -> None:
        """Continue behind what a checkpoint has planned."""
        self._position = dict(position)

    def initial(self) -> dict[int, int]:
        """Where a query without a finished batch begins. Raises OffsetsInvalid and the errors of the log."""
        if self._initial is None:
            ends = self._ends()
            self._initial = self._first_offsets(ends)
            self._at_end = {partition: at for partition, at in self._initial.items() if at == ends[partition]}
        return self._initial

    def latest(self) -> dict[int, int]:
        """The end of the next batch, which is the position where nothing is new; waits a moment for something.

        Raises RawDataLost, OffsetsInvalid, TopicMissing, LogUnavailable.
        """
        # Without a position Spark has no checkpoint. Its first answer is recorded at once, also of an empty topic:
        # a start at "latest" must be the same one after a restart.
        waits = self._position is not None
        position = self._position if self._position is not None else self._checked_initial()
        deadline = Deadline(self._idle_wait_s)
        while True:
            self._position = next_offsets(position, self._allowed(self._checked_ends(position)), self._messages_max)
            if not waits and self._start.moves:
                # Where the first batch began is not recorded: what came since, it would lose if it failed.
                self._position |= self._at_end
            if self._position != position or not waits or deadline.passed() or self._is_at_end():
                return self._position
            # Spark asks again at once, or after its interval: an idle topic must not keep a processor busy.
            self._sleep(IDLE_POLL_S)

    def ranges(self, start: Offsets, end: Offsets) -> list[OffsetRange]:
        """The offset ranges of a batch, first or repeated. Raises RawDataLost when the topic lacks one of them."""
        if start == self._initial:
            start = first_start(start, end, moves=self._start.moves)
        planned = offset_ranges(self._topic, start, end)
        begins = self._log.begins(self._topic, [each.partition for each in planned])
        if any(begins[each.partition] > each.begin for each in planned):
            raise raw_data_lost(self._topic)
        return planned

    def close(self) -> None:
        """Release the log's client."""
        self._log.close()

    def _ends(self) -> Offsets:
        state = self._log.state(self._topic)
        if self._topic_id and state.topic_id != self._topic_id:
            raise raw_data_lost(self._topic)
        self._topic_id = state.topic_id
        return state.ends

    def _checked_ends(self, position: Offsets) -> dict[int, int]:
        """The ends, none before the position. Raises RawDataLost for a partition that is gone or went back for good."""
        ends = dict(self._ends())
        if not position.keys() <= ends.keys():
            raise raw_data_lost(self._topic)
        retreated = [partition for partition, offset in position.items() if ends[partition] < offset]
        if not retreated:
            self._retreat = None
        elif self._retreat is None:
            # A new leader may know for a moment less of what is committed than the one before it.
            self._retreat = Deadline(self._retreat_wait_s)
        elif self._retreat.passed():
            raise raw_data_lost(self._topic)
        return ends | {partition: position[partition] for partition in retreated}

    def _allowed(self, ends: dict[int, int]) -> dict[int, int]:
        if self._until is None:
            return ends
        return {
            partition: min(end, self._until[partition]) for partition, end in ends.items() if partition in self._until
        }

    def _is_at_end(self) -> bool:
        position = self._position or {}
        return self._until is not None and all(
            position.get(partition, 0) >= end for partition, end in self._until.items()
        )

    def _first_offsets(self, ends: Offsets) -> dict[int, int]:
        begins = self._log.begins(self._topic, list(ends))
        if self._start.timestamp_ms is not None:
            return self._offsets_at_time(self._start.timestamp_ms, ends)
        given = self._start.offsets
        if given is None:
            return dict(begins if self._start.rule == EARLIEST else ends)
        if not given.keys() <= ends.keys():
            raise self._other_partitions(given, ends)
        first = {
            partition: {EARLIEST: begins[partition], LATEST: ends[partition]}.get(offset, offset)
            for partition, offset in given.items()
        }
        for partition, offset in first.items():
            if not begins[partition] <= offset <= ends[partition]:
                raise OffsetsInvalid(
                    f"startingOffsets has {offset} for partition {partition} of topic {self._topic}, "
                    f"which holds {begins[partition]} to {ends[partition]}",
                    action="choose an offset that it holds",
                )
        return first

    def _checked_initial(self) -> dict[int, int]:
        """The beginning of a new query. Raises OffsetsInvalid where its options leave out a partition."""
        given, initial = self._start.offsets, self.initial()
        # Not as soon as it is asked for: of a query whose first batch is unfinished, a partition may be newer than that.
        if given is not None and given.keys() != (ends := self._ends()).keys():
            raise self._other_partitions(given, ends)
        return initial

    def _other_partitions(self, given: Offsets, ends: Offsets) -> OffsetsInvalid:
        return OffsetsInvalid(
            f"startingOffsets has partitions {_listed(given)}, and topic {self._topic} has {_listed(ends)}",
            action="name each partition once; -2 is its begin, -1 its end",
        )

    def _offsets_at_time(self, timestamp_ms: int, ends: Offsets) -> dict[int, int]:
        found = self._log.at_time(self._topic, list(ends), timestamp_ms)
        missing = [partition for partition, offset in found.items() if offset == NO_OFFSET]
        if missing and not self._start.or_latest:
            raise OffsetsInvalid(
                f"partition {missing[0]} of topic {self._topic} has no message at or after {timestamp_ms} ms",
                action="choose an earlier startingTimestamp, or set startingOffsetsByTimestampStrategy to latest",
            )
        return {**found, **{partition: ends[partition] for partition in missing}}


def _listed(offsets: Offsets) -> str:
    return ", ".join(map(str, sorted(offsets))) or "none"
