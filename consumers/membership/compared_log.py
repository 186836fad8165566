"""A log that is always read from its first record, and compared with what was read from it before.

A topic that was deleted, truncated or created again is another log under the name. It counts as the same one only if
it begins with the same records. Who follows it decides what its records mean.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import structlog

from headrace.connectors.deadline import GracePeriod
from headrace.connectors.log.port import Log, LogUnavailable, Reader, Record, TopicMissing, read_to_end
from headrace.consumers.membership.schema_history import SchemaHistory
from headrace.schemas.errors import HeadraceError

READ_TIMEOUT_S = 30.0
_log = structlog.get_logger(__name__)
LostError = Callable[[str, str], HeadraceError]
"""Makes the error for a topic, and why it is lost."""


class ComparedLog:
    """One topic, as far as it was read. Not thread-safe.

    `history` is what was read, `next` the offset behind it. `known` is what was read before, also by earlier runs.
    `lost` is why the topic is not that log any more, empty while it is.
    """

    def __init__(
        self,
        log: Log,
        topic: str,
        lost_error: LostError,
        history_file: Path | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`history_file` keeps over restarts what was read, so that another log under the name is detected."""
        self._log = log
        self._lost_error = lost_error
        self._history_file = history_file
        self._absence = GracePeriod(clock_s)
        self._topic_id = ""
        self._reader: Reader | None = None
        self.topic = topic
        self.history = SchemaHistory()
        self.known = SchemaHistory.load(history_file) if history_file is not None else SchemaHistory()
        self.next = 0
        self.lost = ""

    def verify(self) -> int:
        """The end of the log, which is that which was read, or begins with the same records.

        Raises what `lost_error` makes, TopicMissing, LogUnavailable.
        """
        try:
            state = self._log.describe(self.topic)
        except TopicMissing as error:
            if self.history.records and self._absence.missing(self.topic):
                raise self.lose("does not exist any more") from error
            raise
        except LogUnavailable:
            self._absence.unknown(self.topic)
            raise
        self._absence.present(self.topic)
        if state.topic_id != (self._topic_id or state.topic_id) or state.end < self.next:
            self._compare()
        self._topic_id = state.topic_id
        return state.end

    def poll(self, max_records: int, timeout_s: float) -> Sequence[Record]:
        """The next records, which are those of this log; none also when they must be read again. Raises as `verify`."""
        reader = self.reader()
        records = reader.poll(max_records, timeout_s)
        if not records:
            # Offsets without a record, such as those of transaction markers.
            self.next = max(self.next, reader.position(self.topic))
            return []
        # After they were read and before they count: they may be those of a topic that was created again. Then they
        # are read again, from the place where this log continues.
        if self.verify() <= records[-1].offset or self._reader is None:
            self.close()
            return []
        return records

    def reader(self) -> Reader:
        """The reader, opened behind what was taken."""
        if self._reader is None:
            self._reader = self._log.reader({self.topic: self.next}, follow=True)
        return self._reader

    def take(self, record: Record) -> None:
        """A record counts."""
        self.history, self.next = self.history.after([record]), record.offset + 1

    def note_foreign(self, record: Record, error: HeadraceError) -> None:
        """A record that was taken does not decode, and changes nothing."""
        # Once, where it is remembered what was read: commands, and each start, read the log from its first record.
        if self._history_file is not None and self.history.records > self.known.records:
            _log.warning("a record cannot be read", topic=self.topic, offset=record.offset, error=error.message)

    def save(self) -> None:
        """Remember what was read over restarts."""
        if self._history_file is not None and self.history.records > self.known.records:
            self.known = self.history
            self.history.save(self._history_file)

    def beginning(self, count: int) -> list[Record]:
        """The first `count` records of the topic, as it is now. Raises TopicMissing, LogUnavailable."""
        return read_to_end(self._log, self.topic, timeout_s=READ_TIMEOUT_S)[:count]

    def lose(self, why: str) -> HeadraceError:
        """The error for a topic that is not this log any more; `lost` has it as well."""
        error = self._lost_error(self.topic, why)
        self.lost = str(error)
        return error

    def close(self) -> None:
        """Close the reader; the next one begins behind what was taken."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()

    def _compare(self) -> None:
        """Continue in another topic of the same name if it begins with the records that were read."""
        count = self.history.records
        read = self.beginning(count)
        if SchemaHistory().after(read) != self.history:
            raise self.lose(f"was created again or truncated: it does not have the {count} records read before")
        self.next = read[-1].offset + 1 if read else 0
        self.close()
