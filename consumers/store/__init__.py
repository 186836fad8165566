"""The store of one data group at one node: memtable, segments, index, scans, deletes, compaction."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.consumers.store.compact_job import CompactJob, DropJob
    from headrace.consumers.store.compaction import Compaction, plan_compaction
    from headrace.consumers.store.cut import Cut, CutFile, HoldJob, ReleaseJob
    from headrace.consumers.store.encoders import encoding_threads
    from headrace.consumers.store.former_rows import FormerRows, RankedRows
    from headrace.consumers.store.load_job import LoadJob, awaited_entry
    from headrace.consumers.store.memtable import MemtableSize, TableMetadata
    from headrace.consumers.store.pruning import ScanRequest
    from headrace.consumers.store.scan import TableScan
    from headrace.consumers.store.seal_job import SealJob
    from headrace.consumers.store.segment import SegmentEntry
    from headrace.consumers.store.segment_reader import digest_of_file
    from headrace.consumers.store.settings import StoreSettings
    from headrace.consumers.store.slot_moves import HandedRank, handed_tombstone
    from headrace.consumers.store.slots import Slots
    from headrace.consumers.store.staged_file import SeriesFile, staged_names
    from headrace.consumers.store.store import Store
    from headrace.consumers.store.store_directory import StoreSnapshot
    from headrace.consumers.store.store_errors import (
        BatchInvalid,
        CutTooLarge,
        CutUnready,
        JobOutOfOrder,
        JobSuperseded,
        JobUnwanted,
        SegmentAwaited,
        SegmentUnread,
        StagedFileInvalid,
        StoreDamaged,
        StoreError,
        StoreFormatUnknown,
        StoreFull,
        StoreLocked,
        StoreRetired,
        StoreUnwritable,
        TableUnknown,
    )
    from headrace.consumers.store.store_job import StoreJob
    from headrace.consumers.store.tombstones import Tombstone

_HOMES = {
    "CompactJob": "headrace.consumers.store.compact_job",
    "Compaction": "headrace.consumers.store.compaction",
    "Cut": "headrace.consumers.store.cut",
    "CutFile": "headrace.consumers.store.cut",
    "CutTooLarge": "headrace.consumers.store.store_errors",
    "CutUnready": "headrace.consumers.store.store_errors",
    "FormerRows": "headrace.consumers.store.former_rows",
    "RankedRows": "headrace.consumers.store.former_rows",
    "ScanRequest": "headrace.consumers.store.pruning",
    "TableMetadata": "headrace.consumers.store.memtable",
    "DropJob": "headrace.consumers.store.compact_job",
    "HandedRank": "headrace.consumers.store.slot_moves",
    "HoldJob": "headrace.consumers.store.cut",
    "JobOutOfOrder": "headrace.consumers.store.store_errors",
    "JobSuperseded": "headrace.consumers.store.store_errors",
    "JobUnwanted": "headrace.consumers.store.store_errors",
    "LoadJob": "headrace.consumers.store.load_job",
    "MemtableSize": "headrace.consumers.store.memtable",
    "ReleaseJob": "headrace.consumers.store.cut",
    "BatchInvalid": "headrace.consumers.store.store_errors",
    "SealJob": "headrace.consumers.store.seal_job",
    "SegmentAwaited": "headrace.consumers.store.store_errors",
    "SegmentEntry": "headrace.consumers.store.segment",
    "SegmentGone": "headrace.consumers.store.store_errors",
    "SegmentUnread": "headrace.consumers.store.store_errors",
    "SeriesFile": "headrace.consumers.store.staged_file",
    "Slots": "headrace.consumers.store.slots",
    "StagedFileInvalid": "headrace.consumers.store.store_errors",
    "Store": "headrace.consumers.store.store",
    "StoreDamaged": "headrace.consumers.store.store_errors",
    "StoreError": "headrace.consumers.store.store_errors",
    "StoreFormatUnknown": "headrace.consumers.store.store_errors",
    "StoreFull": "headrace.consumers.store.store_errors",
    "StoreJob": "headrace.consumers.store.store_job",
    "StoreLocked": "headrace.consumers.store.store_errors",
    "StoreRetired": "headrace.consumers.store.store_errors",
    "StoreSnapshot": "headrace.consumers.store.store_directory",
    "StoreSettings": "headrace.consumers.store.settings",
    "StoreUnwritable": "headrace.consumers.store.store_errors",
    "TableScan": "headrace.consumers.store.scan",
    "TableUnknown": "headrace.consumers.store.store_errors",
    "Tombstone": "headrace.consumers.store.tombstones",
    "digest_of_file": "headrace.consumers.store.segment_reader",
    "encoding_threads": "headrace.consumers.store.encoders",
    "handed_tombstone": "headrace.consumers.store.slot_moves",
    "plan_compaction": "headrace.consumers.store.compaction",
    "awaited_entry": "headrace.consumers.store.load_job",
    "staged_names": "headrace.consumers.store.staged_file",
}

__all__ = [
    "BatchInvalid",
    "CompactJob",
    "Compaction",
    "Cut",
    "CutFile",
    "CutTooLarge",
    "CutUnready",
    "DropJob",
    "FormerRows",
    "HandedRank",
    "HoldJob",
    "JobOutOfOrder",
    "JobSuperseded",
    "JobUnwanted",
    "LoadJob",
    "MemtableSize",
    "RankedRows",
    "ReleaseJob",
    "ScanRequest",
    "SealJob",
    "SegmentAwaited",
    "SegmentEntry",
    "SegmentGone",
    "SegmentUnread",
    "SeriesFile",
    "Slots",
    "StagedFileInvalid",
    "Store",
    "StoreDamaged",
    "StoreError",
    "StoreFormatUnknown",
    "StoreFull",
    "StoreJob",
    "StoreLocked",
    "StoreRetired",
    "StoreSettings",
    "StoreSnapshot",
    "StoreUnwritable",
    "TableMetadata",
    "TableScan",
    "TableUnknown",
    "Tombstone",
    "awaited_entry",
    "digest_of_file",
    "encoding_threads",
    "handed_tombstone",
    "plan_compaction",
    "staged_names",
]


# PEP 562: `store.settings` is loaded by every command for its settings, and must not load pyarrow and RocksDB
# with it.
def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
