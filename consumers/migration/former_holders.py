"""Rows of slots that move, read from the groups that had them, for scans that would wait for their files.

A former holder has every row up to its cut from the moment on at which it has applied it. The next holder has what
came later. So a scan of both has all of them, and its ranks decide as they do where the files are attached.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from functools import partial

import structlog

from headrace.connectors.deadline import Deadline
from headrace.consumers.migration.cut_scan import CutAnswer, CutScan
from headrace.consumers.migration.cut_source import CutRefused
from headrace.consumers.migration.pull import Pull
from headrace.consumers.migration.pull_environment import PullEnvironment
from headrace.consumers.store import CutUnready, FormerRows, RankedRows, ScanRequest, TableMetadata
from headrace.schemas.errors import HeadraceError

ANSWER_TIMEOUT_S = 5.0
"""How long former holders have for their answers; then a scan waits for the files."""
UNREADY_RETRY_S = 0.02
"""A former holder reads its log up to the cut."""
VALUES_MAX = 4_000_000
"""Values of all answers together: each scan has its own in memory. More of them wait for the files."""
ASKED_AT_ONCE = 4
"""Former holders that all scans of a node ask at the same time."""
_log = structlog.get_logger(__name__)


class FormerHolders:
    """Reads rows of cuts from the members of former holders. Safe to share between threads."""

    def __init__(self, environment: PullEnvironment) -> None:
        """The threads start when they are needed."""
        self._environment = environment
        self._threads = ThreadPoolExecutor(ASKED_AT_ONCE, "former-holders")

    def close(self) -> None:
        """Ask nobody any more."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def read(
        self,
        pulls: Sequence[Pull],
        table_version: int,
        metadata: TableMetadata,
        request: ScanRequest,
        timeout_s: float,
    ) -> FormerRows | None:
        """Rows of one table in all slots of some pairs; None where they must be waited for."""
        scan = CutScan(
            metadata.schema.database,
            metadata.schema.table,
            None if request.columns is None else tuple(request.columns),
            *request.bounds,
            request.tags,
        )
        deadline = Deadline(min(timeout_s, ANSWER_TIMEOUT_S))
        batches = list[RankedRows]()
        ask = partial(self._ask, table_version=table_version, scan=scan, deadline=deadline)
        try:
            answers = list(self._threads.map(ask, pulls)) if len(pulls) > 1 else [ask(pull) for pull in pulls]
        except (RuntimeError, CancelledError):
            # The node stops.
            return None
        for pull, answer in zip(pulls, answers, strict=True):
            # A schema that is not known here yet may have columns that rows of this answer would lack.
            if answer is None or answer.slots != pull.pair.slots or answer.schema_version > metadata.schema.version:
                return None
            batches += answer.batches
        if sum(len(each.rows) * each.rows.num_columns for each in batches) > VALUES_MAX:
            return None
        return FormerRows(metadata, table_version, tuple(batches))

    def _ask(self, pull: Pull, table_version: int, scan: CutScan, deadline: Deadline) -> CutAnswer | None:
        """The answer of the first donor that gives one. Those that read their log up to the cut are asked again."""
        while not deadline.passed():
            unready = False
            for node in pull.donors:
                source = self._environment.source(node, pull.pair.donor)
                if source is None:
                    continue
                try:
                    return source.rows(pull.pair, table_version, scan, max(deadline.left_s(), UNREADY_RETRY_S))
                except HeadraceError as error:
                    unready = unready or (isinstance(error, CutRefused) and error.kind == CutUnready.__name__)
                    _log.debug("rows of a cut not read", node=node, donor=pull.pair.donor.group, error=error.message)
            if not unready:
                return None
            time.sleep(UNREADY_RETRY_S)
        return None
