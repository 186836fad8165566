"""The slot table of each micro-batch: the same one for all its tasks, and for every attempt of it.

Replicas drop a message that repeats another one. So a micro-batch that is replayed after a crash must be divided into
the same messages, and a newer slot table would divide it otherwise. A local checkpoint therefore keeps the table of
the newest batch. Groups that have lost slots since hand their rows over; only where a group of that table has ended is
the batch routed by the newest table. Its rows are then written again, as they were.
"""

from __future__ import annotations

import base64
from collections.abc import Mapping
from typing import Any

from headrace.consumers.membership.slot_table import SlotTable
from headrace.pipeline.checkpoint_file import CheckpointFile

TABLE_FILE = "slot_table.json"


class BatchTables:
    """The slot tables of one run's micro-batches, in their order."""

    def __init__(self, checkpoint: str) -> None:
        """A checkpoint that is not local keeps no table: its replays are routed by the newest one.

        Raises CheckpointDamaged.
        """
        self._file = CheckpointFile.of(checkpoint, TABLE_FILE)
        self._newest = self._file.read(_kept)

    def of(self, batch: int, newest: SlotTable) -> SlotTable:
        """The table of a batch, durable before its first message; `newest` is that of the cluster."""
        if self._newest is not None and self._newest[0] == batch and not has_ended(self._newest[1], newest):
            return self._newest[1]
        self._newest = batch, newest
        self._file.write({"batch": batch, "table": base64.b64encode(newest.to_bytes()).decode()})
        return newest


def _kept(found: Mapping[str, Any]) -> tuple[int, SlotTable]:
    return int(found["batch"]), SlotTable.from_bytes(base64.b64decode(found["table"]))


def has_ended(table: SlotTable, newest: SlotTable) -> bool:
    """Whether a newer table lacks a group: its log takes no rows, or will soon take none."""
    present = set(zip(newest.nodes, newest.births, strict=True))
    return not present.issuperset(zip(table.nodes, table.births, strict=True))
