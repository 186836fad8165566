"""What a node may hold in memory: each part under its named limit, at every record."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from headrace.consumers.node.settings import StoreSection
from headrace.consumers.replication.failure_detector import RECEIPTS_KEPT
from headrace.consumers.replication.group_state import PRODUCERS_MAX
from headrace.consumers.replication.log_consumer import RECEIPTS_MAX
from headrace.schemas.receipts import RECEIPT_BYTES
from tests.sim.stubs import TOPIC

if TYPE_CHECKING:
    from tests.sim.node import ClusterNode

RECORD_BYTES_MAX = 2_000
"""No record of the simulation is larger."""


class MemoryLimits:
    """The limits of one schedule."""

    def __init__(self, settings: StoreSection) -> None:
        self._settings = settings

    def exceeded(self, node: ClusterNode) -> str:
        """Which limit a node exceeds, empty when none."""
        group, state, settings = node.group, node.group.replica.state, self._settings
        store: Any = group.store
        poll_bytes = settings.poll_records * RECORD_BYTES_MAX
        sealing = state.seal_rows
        held = {
            "unsealed rows": (state.unsealed_rows, sealing - 1),
            "rows of the memtable": (store.size().rows, sealing - 1),
            "store jobs": (store.pending_jobs(), settings.job_backlog + 1),
            # What one poll brings is taken whole; the topic is paused before the next one.
            "bytes that wait": (group.queue_bytes, settings.apply_queue_bytes + poll_bytes),
            "chains": (len(group.history()) if group.version % 50 == 0 else 0, settings.chain_history),
            "producers": (len(state.producers), 3 * PRODUCERS_MAX),
            "receipts shown": (len(node.log_consumer.receipts(TOPIC)), RECEIPTS_MAX * RECEIPT_BYTES),
            "receipts of members": (
                max(map(len, node.heartbeat.detector._receipts.values()), default=0),
                2 * RECEIPTS_KEPT * RECEIPT_BYTES,
            ),
        }
        return ", ".join(f"{count} {name}, limit {most}" for name, (count, most) in held.items() if count > most)
