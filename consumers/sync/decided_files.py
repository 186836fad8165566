"""What has a verdict already, as a RocksDB in a receiver's data directory: a view of the verdict topic.

A partition that comes to another receiver is read again from its oldest open file. Those between that have their verdict
must not be asked for again: sender 0x00 file → the number of the newest manifest that was decided for good.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.port import Log, LogUnavailable, Reader, Record
from headrace.connectors.log.topics import Topics
from headrace.consumers.sync.view_database import ViewDatabase
from headrace.schemas.framing import FrameInvalid
from headrace.schemas.messages import MANIFEST_NUMBER_MAX
from headrace.schemas.sync_records import SyncVerdict, Verdict, decode_verdict

READ_TIMEOUT_S = 120.0
RECORDS_AT_ONCE = 1_000


class DecidedFiles:
    """Owned by one thread."""

    def __init__(self, log: Log, topics: Topics, directory: Path) -> None:
        """Raises ViewUnwritable, TopicMissing, LogUnavailable."""
        self._log = log
        self._topic = topics.sync_verdict
        self._view = ViewDatabase(directory, log.describe(self._topic).topic_id)
        self._reader: Reader | None = None
        self._unkept: dict[bytes, int] = {}

    def number(self, sender: str, file: str) -> int:
        """The newest manifest of a file that has a verdict, 0 for none."""
        key = _key(sender, file)
        return max(int(self._view.get([key])[0] or 0), self._unkept.get(key, 0))

    def note(self, verdicts: Sequence[SyncVerdict]) -> None:
        """Keep verdicts that were appended, before they are read. Raises ViewUnwritable: the next call keeps them as well."""
        for verdict in verdicts:
            key = _key(verdict.sender, verdict.file)
            self._unkept[key] = max(verdict.number, self._unkept.get(key, 0))
        try:
            if verdicts:
                kept = zip(self._unkept.items(), self._view.get(list(self._unkept)), strict=True)
                found = {key: str(max(number, int(known or 0))).encode() for (key, number), known in kept}
                self._view.put(found, self._view.next)
                self._unkept = {}
        except BaseException:
            # The view may have lost its newest verdicts, so they are read again.
            self._close_reader()
            raise

    def refresh(self) -> None:
        """Read the topic to its end. Raises LogUnavailable, TopicMissing, ViewUnwritable."""
        end, deadline = self._log.describe(self._topic).end, Deadline(READ_TIMEOUT_S)
        if self._reader is None:
            self._reader = self._log.reader({self._topic: self._view.next}, follow=True)
        try:
            while self._reader.position(self._topic) < end:
                self._take(self._reader.poll(RECORDS_AT_ONCE, min(0.2, deadline.left_s())))
                if deadline.passed():
                    raise LogUnavailable(f"topic {self._topic} was not read to its end", retriable=True)
        except BaseException:
            self._close_reader()
            raise

    def close(self) -> None:
        """Close view and reader."""
        self._close_reader()
        self._view.close()

    def _take(self, records: list[Record]) -> None:
        found: dict[bytes, bytes] = {}
        for record in records:
            try:
                verdict = decode_verdict(record.value)
            except FrameInvalid:
                continue
            # No manifest has a higher number: a foreign one would decide every later manifest of its file.
            if verdict.state is not Verdict.RESEND and verdict.number <= MANIFEST_NUMBER_MAX:
                found[_key(verdict.sender, verdict.file)] = str(self._newest(verdict, found)).encode()
        if records:
            self._view.put(found, records[-1].offset + 1)

    def _newest(self, verdict: SyncVerdict, found: dict[bytes, bytes]) -> int:
        known = found.get(_key(verdict.sender, verdict.file))
        return max(verdict.number, self.number(verdict.sender, verdict.file) if known is None else int(known))

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            reader.close()


def _key(sender: str, file: str) -> bytes:
    return f"v/{sender}\0{file}".encode()
