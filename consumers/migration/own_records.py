"""Reads single records of a group's own log again, by their offsets. Owned by one thread."""

from __future__ import annotations

from collections.abc import Sequence

from headrace.connectors.log.port import Log, LogTruncated, Reader, Record

READ_RECORDS_MAX = 256
"""Records that one poll takes."""
READ_POLLS_MAX = 8
"""Polls of one call: the thread that asks has other groups, too."""
READ_TIMEOUT_S = 0.05
"""How long one poll waits. A first answer of Kafka may take longer; the next call gets it."""
READ_ON_OFFSETS = 1_000
"""A wanted record at most so many offsets ahead is read up to. One farther away is sought."""


class OwnRecords:
    """A reader of one forward log, open from the first `read` to `close`."""

    def __init__(self, log: Log, topic: str) -> None:
        self._log = log
        self._topic = topic
        self._reader: Reader | None = None

    def read(self, offsets: Sequence[int], bytes_max: int) -> dict[int, Record]:
        """The records at the first of these offsets: as many as arrive now, and fit a number of bytes.

        The first one fits always. Raises LogTruncated for a record that is gone, and the errors of the log.
        """
        found: dict[int, Record] = {}
        wanted = set(offsets)
        for _ in range(READ_POLLS_MAX):
            missing = next((offset for offset in offsets if offset not in found), None)
            if missing is None or sum(len(each.value) for each in found.values()) >= bytes_max:
                break
            # Offsets have gaps, so a record is known by its own offset and never by counting.
            records = self._poll_from(missing)
            found.update((each.offset, each) for each in records if each.offset in wanted)
            if not records:
                break
        return _fitting(found, offsets, bytes_max)

    def _poll_from(self, offset: int) -> list[Record]:
        if self._reader is None:
            self._reader = self._log.reader({self._topic: offset})
        elif not self._reader.position(self._topic) <= offset < self._reader.position(self._topic) + READ_ON_OFFSETS:
            self._reader.seek(self._topic, offset)
        records = self._reader.poll(READ_RECORDS_MAX, READ_TIMEOUT_S)
        if self._reader.position(self._topic) > offset and offset not in {each.offset for each in records}:
            raise LogTruncated(f"record {offset} of topic {self._topic} is gone")
        return records

    def close(self) -> None:
        """Release the reader."""
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def _fitting(found: dict[int, Record], offsets: Sequence[int], bytes_max: int) -> dict[int, Record]:
    """The records without a missing one between them, up to a number of bytes."""
    kept: dict[int, Record] = {}
    size_bytes = 0
    for offset in dict.fromkeys(offsets):
        size_bytes += len(found[offset].value) if offset in found else 0
        if offset not in found or (kept and size_bytes > bytes_max):
            break
        kept[offset] = found[offset]
    return kept
