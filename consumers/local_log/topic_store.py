"""The topics of a local log and their records, in one write-ahead log. One lock orders every change.

A record is readable once it is written, and synced unless its topic is compacted: `end` moves only then. Offsets have
no gaps. Each method that changes something is one transaction, or several of which each leaves a state that `recover`
completes:

1. Removal of records from the beginning: `begin` moves in the transaction that removes them, a part at a time. Crash:
   the rest is still there, and can be removed again.
2. Deletion of a topic: it is marked first, then loses its records, then its description. Crash: a marked topic, whose
   deletion `recover` completes.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from headrace.connectors.files import FileLayer
from headrace.connectors.log.port import Headers, Record, RecordUndeliverable, TopicMissing, TopicState
from headrace.consumers.local_log.topic_records import (
    TopicDescription,
    append_time_ms,
    check_settings,
    decode_record,
    decode_topic,
    encode_record,
    record_position,
)
from headrace.consumers.wal import BytesSerde, Delete, LogDamaged, LogFailed, Put, WriteAheadLog

REMOVED_RECORDS_MAX = 10_000
"""Records that one transaction removes: a longer one would hold up appends."""
TURN_S = 0.001
"""The pause behind each, in which appends that wait get their turn."""
CHECKPOINT_BYTES = 64 << 20
CLEANUP_SETTING, COMPACTED = "cleanup.policy", "compact"
READ_BYTES_MAX = 32 << 20
"""Bytes of values that one call reads, at least one record."""
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class StoredTopic:
    """A topic with the end of what is readable."""

    description: TopicDescription
    end: int


@dataclass(frozen=True, slots=True)
class NewRecord:
    """A record that is to be appended to a topic."""

    topic: str
    value: bytes
    key: bytes | None
    headers: Headers

    @property
    def bytes_held(self) -> int:
        """Bytes in memory, its own objects not counted."""
        return len(self.value) + len(self.key or b"")


class TopicStore:
    """See the module. Thread-safe."""

    def __init__(self, directory: Path, clock_ms: Callable[[], int], files: FileLayer | None = None) -> None:
        """Open or create the directory. Raises `DirectoryHeld`, `LogDamaged`, `ForeignLog`."""
        self.directory = directory
        self._clock_ms = clock_ms
        # A sync is part of every change, so none is left for the interval.
        self._wal = WriteAheadLog(
            directory,
            BytesSerde(),
            1,
            sync_interval_ms=None,
            checkpoint_bytes=CHECKPOINT_BYTES,
            files=files,
        )
        self._topics: dict[str, StoredTopic] = {}
        self._next_number = 0
        self._writing = threading.Lock()
        self._changed = threading.Condition()
        self._recover()

    def _recover(self) -> None:
        state = self._wal.recover()
        ends: dict[int, int] = {}
        descriptions: list[TopicDescription] = []
        for key in state:
            position = record_position(key)
            if position is None:
                descriptions.append(decode_topic(state[key][1]))
            else:
                number, offset = position
                ends[number] = max(offset + 1, ends.get(number, 0))
        for description in descriptions:
            self._next_number = max(self._next_number, description.number + 1)
            # A topic that lost all its records keeps its end: `begin` was moved to it.
            stored = StoredTopic(description, max(description.begin, ends.get(description.number, 0)))
            if description.deleted:
                self._remove_deleted(stored)
            else:
                self._topics[description.name] = stored

    # Reading.

    def topic(self, name: str) -> StoredTopic:
        """A topic. Raises TopicMissing."""
        found = self._topics.get(name)
        if found is None:
            raise TopicMissing(f"topic {name} does not exist")
        return found

    def names(self) -> Sequence[str]:
        """The names of all topics."""
        return tuple(self._topics)

    def state(self, name: str) -> TopicState:
        """Identity and readable offsets of a topic. Raises TopicMissing."""
        with self._changed:
            found = self.topic(name)
            return TopicState(found.description.topic_id, found.description.begin, found.end)

    def settings(self, name: str) -> Mapping[str, str]:
        """The settings of a topic. Raises TopicMissing."""
        return dict(self.topic(name).description.settings)

    def read(self, name: str, start: int, records_max: int) -> list[Record]:
        """Records of a topic from an offset that it holds, as many as are readable, in order.

        Raises RecordUndeliverable for a first record whose bytes changed on disk. A record that is removed meanwhile
        ends the answer.
        """
        end, found, bytes_read = self.topic(name).end, list[Record](), 0
        description = self.topic(name).description
        for offset in range(start, end):
            if len(found) >= records_max:
                break
            try:
                stored = self._wal.get(description.record_key(offset))
                if stored is None:
                    # A status that was not synced when a sync failed: the log has dropped it. Newer ones come behind it.
                    if _is_compacted(description):
                        continue
                    break
                found.append(decode_record(name, offset, stored[1]))
            except LogDamaged as error:
                # The records before it are returned first; the next call meets it again.
                if found:
                    break
                raise RecordUndeliverable(
                    f"record {offset} of topic {name} cannot be read: {error}", topic=name, offset=offset
                ) from error
            bytes_read += len(stored[1])
            if bytes_read >= READ_BYTES_MAX:
                break
        return found

    def may_have_holes(self, name: str) -> bool:
        """Whether a failed sync may take records out of a topic, whose readers miss nothing by that."""
        return _is_compacted(self.topic(name).description)

    def wait(self, is_over: Callable[[], bool], timeout_s: float) -> None:
        """Return when a condition holds that a change may bring, or after `timeout_s`."""
        with self._changed:
            self._changed.wait_for(is_over, timeout_s)

    # Changing.

    def create(self, name: str, settings: Mapping[str, str]) -> None:
        """Create a topic; one that exists is left as it is. Raises TopicSettingsRefused."""
        check_settings(name, settings)
        with self._writing:
            if name in self._topics:
                return
            description = TopicDescription(self._next_number, name, uuid.uuid4().hex, settings=dict(settings))
            self._write((Put(description.encoded()),))
            self._next_number += 1
            with self._changed:
                self._topics[name] = StoredTopic(description, 0)
                self._changed.notify_all()

    def configure(self, name: str, settings: Mapping[str, str]) -> None:
        """Change settings of a topic: every record behind this call meets them.

        Raises TopicMissing, TopicSettingsRefused.
        """
        check_settings(name, settings)
        with self._writing:
            stored = self.topic(name)
            self._describe(stored, replace(stored.description, settings={**stored.description.settings, **settings}))

    def append(self, records: Sequence[NewRecord]) -> list[int]:
        """Append records as one transaction, and make them readable; their offsets.

        Synced, unless each of them is of a topic in which only the newest record of a key counts. Raises TopicMissing,
        `UpdateFailed` (nothing is written), `DurabilityUnknown`, `LogFailed`.
        """
        with self._writing:
            now_ms, ends, puts, offsets = self._clock_ms(), dict[str, int](), list[Put[object]](), list[int]()
            # Statuses: nobody reads those of before a crash, whose node sends its own again. Their syncs were all that
            # an idle node did. The next synced transaction makes them durable as well.
            sync = False
            for record in records:
                stored = self.topic(record.topic)
                sync = sync or not _is_compacted(stored.description)
                offset = ends.get(record.topic, stored.end)
                pair = encode_record(stored.description, offset, now_ms, record.key, record.value, record.headers)
                puts.append(Put(pair))
                offsets.append(offset)
                ends[record.topic] = offset + 1
            self._write(puts, sync=sync)
            with self._changed:
                for name, end in ends.items():
                    self._topics[name].end = end
                self._changed.notify_all()
            return offsets

    def trim(self, name: str, before: int) -> None:
        """Remove the records below an offset. Raises TopicMissing."""
        stored = self.topic(name)
        self._remove(stored, min(before, stored.end))

    def expire(self, name: str, before_ms: int) -> None:
        """Remove the records from the beginning that were appended before an instant. Raises TopicMissing.

        One that cannot be read has no time: it is removed with the next one behind it that is old enough.
        """
        stored = self.topic(name)
        description, first_kept = stored.description, stored.description.begin
        unread = removed_unread = 0
        for offset in range(first_kept, stored.end):
            try:
                record = self._wal.get(description.record_key(offset))
            except (LogDamaged, OSError):
                # It was appended no later than what is behind it. It stays while nothing behind it is old: a reader of
                # a record that is not old gets an error with its offset.
                unread += 1
                continue
            if record is not None and append_time_ms(record[1]) >= before_ms:
                break
            first_kept, removed_unread = offset + 1, unread
        if removed_unread:
            _log.warning("records that cannot be read have expired", topic=name, records=removed_unread)
        if first_kept > description.begin:
            self.trim(name, first_kept)

    def delete(self, name: str) -> None:
        """Delete a topic with its records; one that is missing is left so."""
        with self._writing:
            stored = self._topics.get(name)
            if stored is None:
                return
            self._describe(stored, replace(stored.description, deleted=True))
            with self._changed:
                del self._topics[name]
                self._changed.notify_all()
        self._remove_deleted(stored)

    def close(self) -> None:
        """Release the directory."""
        with self._writing:
            self._wal.close()

    def _describe(self, stored: StoredTopic, description: TopicDescription) -> None:
        self._write((Put(description.encoded()),))
        with self._changed:
            stored.description = description
            self._changed.notify_all()

    def _remove(self, stored: StoredTopic, before: int) -> None:
        while stored.description.begin < before:
            with self._writing:
                # Another call may have removed them meanwhile, and the topic with them.
                if stored.description.begin < before:
                    self._remove_part(stored, before)
            # A lock is not fair: without a pause this thread has it again before an append that waits.
            time.sleep(TURN_S)

    def _remove_part(self, stored: StoredTopic, before: int) -> None:
        description = stored.description
        begin = min(before, description.begin + REMOVED_RECORDS_MAX)
        after = replace(description, begin=begin)
        removed = (Delete(description.record_key(offset)) for offset in range(description.begin, begin))
        self._write((Put(after.encoded()), *removed))
        with self._changed:
            stored.description = after

    def _remove_deleted(self, stored: StoredTopic) -> None:
        self._remove(stored, stored.end)
        with self._writing:
            self._write((Delete(stored.description.key),))

    def _write(self, changes: Iterable[Put[object] | Delete[bytes]], *, sync: bool = True) -> None:
        """One transaction. A log that failed earlier is first brought back to what is durable."""
        try:
            self._wal.update(changes, sync=sync)
        except LogFailed:
            # Nothing of it was written. What the failed sync was about was reported as unknown and never readable,
            # and the checkpoint removes it.
            self._wal.checkpoint()
            self._wal.update(changes, sync=sync)


def _is_compacted(description: TopicDescription) -> bool:
    return COMPACTED in description.settings.get(CLEANUP_SETTING, "")
