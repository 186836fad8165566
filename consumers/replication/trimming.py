"""The leader forgets the beginning of the log: below what every live member has in segments, and never within the window.

`keep_records` 0 keeps everything. The window counts offsets, gaps included, back from the newest record applied; members that were away for no
longer read on from the log, others recover from files.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from connectors.log.port import Log
from consumers.replication.group import Group
from consumers.replication.recovery import trim_before
from schemas.records import Status

_log = structlog.get_logger(__name__)


class Trimming:
    """Asked by the thread of the duties, while this node leads the group."""

    def __init__(self, log: Log, live: Callable[[str, Sequence[str]], list[Status]], keep_records: int) -> None:
        self._log = log
        self._live = live
        self._keep_records = keep_records
        self._trimmed: dict[str, int] = {}

    def __call__(self, topic: str, group: Group) -> None:
        """Trim what may go. Raises TopicMissing, LogUnavailable, AppendFailed."""
        if self._keep_records <= 0:
            return
        keep_from = group.applied.offset + 1 - self._keep_records
        live = self._live(group.name, group.members)
        before = trim_before(live, group.members, group.files.sealed_offset, keep_from)
        if before > self._trimmed.get(topic, 0):
            self._log.trim(topic, before)
            self._trimmed[topic] = before
            _log.info("log trimmed", group=group.name, before=before)
