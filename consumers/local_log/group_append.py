"""Appends the records of all callers in groups: one transaction and one sync for what waits.

One thread takes the waiting records in the order of the calls, at most `GROUP_BYTES_MAX` at once. Whoever appends waits
while `WAITING_BYTES_MAX` are waiting. A group that could not be written, because the disk is full, is tried again for
`DELIVERY_TIMEOUT_S`: it left nothing behind. A group whose sync failed is reported as unknown and never tried again.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from headrace.connectors.deadline import Deadline
from headrace.connectors.log.closing import CLOSED_BYTES, SIZE_SETTING
from headrace.connectors.log.kafka_settings import RECORD_BYTES_MAX
from headrace.connectors.log.port import (
    AppendFailed,
    AppendUnknown,
    LogUnavailable,
    OnDelivery,
    RecordTooLarge,
    TopicMissing,
)
from headrace.consumers.local_log.topic_records import check_headers
from headrace.consumers.local_log.topic_store import NewRecord, TopicStore
from headrace.consumers.wal import CheckpointFailed, DurabilityUnknown, LogFailed, UpdateFailed
from headrace.schemas.errors import HeadraceError

GROUP_BYTES_MAX = 16 << 20
GROUP_RECORDS_MAX = 10_000
WAITING_BYTES_MAX = 64 << 20
FULL_QUEUE_TIMEOUT_S = 300.0
DELIVERY_TIMEOUT_S = 300.0
"""As long as librdkafka tries to deliver a record."""
RETRY_PAUSE_S = 0.5
_log = structlog.get_logger(__name__)


class Outstanding:
    """The records of one appender that are not reported yet."""

    def __init__(self) -> None:
        self._count = 0
        self._changed = threading.Condition()

    def add(self) -> None:
        """One more."""
        with self._changed:
            self._count += 1

    def settle(self) -> None:
        """One was reported."""
        with self._changed:
            self._count -= 1
            self._changed.notify_all()

    def wait(self, timeout_s: float) -> int:
        """Wait until none is left; how many are."""
        with self._changed:
            self._changed.wait_for(lambda: not self._count, timeout_s)
            return self._count


@dataclass(slots=True)
class _Waiting:
    """A record with whom to tell of its fate."""

    record: NewRecord
    on_delivery: OnDelivery | None
    outstanding: Outstanding
    reported: bool = False

    def report(self, offset: int | None, error: HeadraceError | None) -> None:
        """Once for each record. An error of the callback is that of the caller, and ends nothing here."""
        self.reported = True
        try:
            if self.on_delivery is not None:
                self.on_delivery(offset, error)
        except Exception:
            _log.exception("a delivery report failed", topic=self.record.topic)
        finally:
            self.outstanding.settle()


class GroupAppend:
    """See the module. Thread-safe; `close` ends its thread."""

    def __init__(self, store: TopicStore) -> None:
        self._store = store
        self._changed = threading.Condition()
        self._waiting: deque[_Waiting] = deque()
        self._waiting_bytes = 0
        self._closed = False
        self.fault = ""
        """Why what waits cannot be written at this moment, empty while it can."""
        self._thread = threading.Thread(target=self._run, name="local-log-append", daemon=True)
        self._thread.start()

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the records that are not written yet."""
        return self._waiting_bytes

    def put(self, record: NewRecord, on_delivery: OnDelivery | None, outstanding: Outstanding) -> None:
        """Queue a record; waits while the queue is full. Raises LogUnavailable, RecordTooLarge."""
        if len(record.value) > RECORD_BYTES_MAX:
            raise _too_large(record, RECORD_BYTES_MAX)
        # Here and not where it is written: there it would fail with all records of its group.
        check_headers(record.topic, record.headers)
        with self._changed:
            # A report may append: the thread that empties the queue never waits for it.
            if threading.current_thread() is not self._thread:
                self._changed.wait_for(
                    lambda: self._closed or self._waiting_bytes < WAITING_BYTES_MAX, FULL_QUEUE_TIMEOUT_S
                )
                if self._waiting_bytes >= WAITING_BYTES_MAX:
                    raise LogUnavailable(
                        "the queue of the local log stayed full", action="check the node's disk", retriable=True
                    )
            if self._closed:
                raise LogUnavailable("the local log is closed", retriable=True)
            outstanding.add()
            self._waiting.append(_Waiting(record, on_delivery, outstanding))
            self._waiting_bytes += record.bytes_held
            self._changed.notify_all()

    def close(self, timeout_s: float) -> None:
        """Write what waits, for at most this long, and end; what is left is reported as not appended."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _run(self) -> None:
        while group := self._take():
            self._append(group)

    def _take(self) -> list[_Waiting]:
        """The next group, in the order of the calls; empty when the log is closed and nothing waits."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._waiting)
            group, size = list[_Waiting](), 0
            while self._waiting and size < GROUP_BYTES_MAX and len(group) < GROUP_RECORDS_MAX:
                group.append(self._waiting.popleft())
                size += group[-1].record.bytes_held
            return group

    def _append(self, group: list[_Waiting]) -> None:
        try:
            self._append_accepted(group)
        except Exception as error:
            # Whatever it is: callers wait for their reports, and nothing is appended without this thread.
            _log.exception("the local log failed")
            unreported = [each for each in group if not each.reported]
            _fail(unreported, AppendUnknown(f"the local log failed: {error}", action="look into the node's log"))
        finally:
            with self._changed:
                self._waiting_bytes -= sum(each.record.bytes_held for each in group)
                self._changed.notify_all()

    def _append_accepted(self, group: Sequence[_Waiting]) -> None:
        deadline = Deadline(DELIVERY_TIMEOUT_S)
        while True:
            accepted = [each for each in group if self._accepts(each)]
            if not accepted:
                return
            try:
                offsets = self._store.append([each.record for each in accepted])
            except (UpdateFailed, LogFailed, CheckpointFailed) as error:
                # Certainly not written, and readers have seen nothing of it.
                if not self._closed and not deadline.passed():
                    self._note(str(error))
                    time.sleep(RETRY_PAUSE_S)
                    group = accepted
                    continue
                _fail(accepted, AppendFailed(f"the local log cannot be written: {error}", action="check the disk"))
            except TopicMissing:
                # Deleted since it was looked up: its records are refused by name, the others are tried again.
                group = accepted
                continue
            except DurabilityUnknown as error:
                unknown = f"a record of the local log may be lost: {error}"
                _fail(accepted, AppendUnknown(unknown, action="read the log back before appending it again"))
            else:
                self._note("")
                for each, offset in zip(accepted, offsets, strict=True):
                    each.report(offset, None)
            return

    def _note(self, fault: str) -> None:
        """Keep why nothing can be written; the log has when that begins and ends, and not each try."""
        if fault and not self.fault:
            _log.warning("the local log cannot be written, and is tried again", error=fault)
        elif self.fault and not fault:
            _log.info("the local log is written again")
        self.fault = fault

    def _accepts(self, waiting: _Waiting) -> bool:
        """Whether a record fits its topic; one that does not is reported."""
        record = waiting.record
        try:
            settings = self._store.settings(record.topic)
        except TopicMissing as error:
            waiting.report(None, error)
            return False
        limit = settings.get(SIZE_SETTING, str(RECORD_BYTES_MAX))
        if limit == CLOSED_BYTES or len(record.value) > int(limit):
            waiting.report(None, _too_large(record, int(limit)))
            return False
        return True


def _fail(group: Sequence[_Waiting], error: HeadraceError) -> None:
    for each in group:
        each.report(None, error)


def _too_large(record: NewRecord, limit_bytes: int) -> RecordTooLarge:
    return RecordTooLarge(
        f"a record of {len(record.value)} bytes is above the {limit_bytes} that topic {record.topic} takes",
        action="send smaller batches",
    )
