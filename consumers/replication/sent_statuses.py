"""What a node has sent of itself last, so that it repeats only what is due."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from headrace.consumers.replication.failure_detector import HEARTBEAT_INTERVAL_MS
from headrace.consumers.replication.group_registry import forget_gone
from headrace.schemas.receipts import RECEIPT_BYTES, end_of
from headrace.schemas.records import Status

# Receipts that a status repeats from the status before it, which may have been lost.
RECEIPTS_REPEATED = 32
# Half the interval: a group that changes right after a send must not push the others beyond the interval.
REPEAT_S = HEARTBEAT_INTERVAL_MS / 1_000 / 2


class SentStatuses:
    """The newest status sent of each group: one that is still true is repeated only after some time."""

    def __init__(self) -> None:
        self._sent: dict[str, tuple[Status, float]] = {}

    def due(self, statuses: Sequence[Status], now_s: float) -> list[Status]:
        """The statuses to send now: those that changed, and those whose newest sending is old enough."""
        due = []
        forget_gone(self._sent, [status.group for status in statuses])
        for status in statuses:
            # The time of sending differs each time. A node with many groups would send all of them at each
            # change of one.
            content = replace(status, sent_boot_ns=0)
            before, sent_s = self._sent.get(status.group, (None, 0.0))
            if content != before or now_s - sent_s >= REPEAT_S:
                self._sent[status.group] = content, now_s
                receipts = _unsent(status.receipts, before.receipts if before else b"")
                due.append(status if receipts == status.receipts else replace(status, receipts=receipts))
        return due

    def newest(self, group: str) -> Status | None:
        """The newest status sent of a group that is here."""
        return self._sent[group][0] if group in self._sent else None

    def forget(self, group: str) -> None:
        """A status was not sent after all."""
        self._sent.pop(group, None)


def _unsent(receipts: bytes, sent: bytes) -> bytes:
    """The receipts behind those of the status before, and the newest of these."""
    first = end_of(sent[-RECEIPT_BYTES:], receipts) - RECEIPTS_REPEATED * RECEIPT_BYTES
    return receipts[max(0, first) :]
