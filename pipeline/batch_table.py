"""The slot table of each micro-batch: the same one for all its tasks, and for every attempt of it.

Replicas drop a message that repeats another one. So a micro-batch that is replayed after a crash must be divided into
the same messages, and a newer slot table would divide it otherwise. A local checkpoint therefore keeps the table of
the newest batch. Groups that have lost slots since hand their rows over; only where a group of that table has ended is
the batch routed by the newest table. Its rows are then written again, as they were.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path

from headrace.connectors.files import create_directories, write_atomically
from headrace.consumers.membership.slot_table import SlotTable
from headrace.pipeline.checkpoint import OWN_FOLDER, local_folder

TABLE_FILE = "slot_table.json"


class BatchTables:
    """The slot tables of one run's micro-batches, in their order."""

    def __init__(self, checkpoint: str) -> None:
        """A checkpoint that is not local keeps no table: its replays are routed by the newest one."""
        folder = local_folder(checkpoint)
        self._path: Path | None = folder / OWN_FOLDER / TABLE_FILE if folder is not None else None
        self._newest: tuple[int, SlotTable] | None = None
        if self._path is not None and self._path.exists():
            kept = json.loads(self._path.read_text())
            self._newest = int(kept["batch"]), SlotTable.from_bytes(base64.b64decode(kept["table"]))

    def of(self, batch: int, newest: SlotTable) -> SlotTable:
        """The table of a batch, durable before its first message; `newest` is that of the cluster."""
        if self._newest is not None and self._newest[0] == batch and not has_ended(self._newest[1], newest):
            return self._newest[1]
        self._newest = batch, newest
        if self._path is not None:
            create_directories(self._path.parent)
            content = {"batch": batch, "table": base64.b64encode(newest.to_bytes()).decode()}
            write_atomically(self._path, json.dumps(content) + "\n")
        return newest


def has_ended(table: SlotTable, newest: SlotTable) -> bool:
    """Whether a newer table lacks a group: its log takes no rows, or will soon take none."""
    present = set(zip(newest.nodes, newest.births, strict=True))
    return not present.issuperset(zip(table.nodes, table.births, strict=True))
