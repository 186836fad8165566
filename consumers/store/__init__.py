"""The store of one data group at one node: memtable, segments, index, scans, deletes, compaction."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.consumers.store.compaction import Compaction, plan_compaction
    from headrace.consumers.store.jobs import CompactJob, DropJob, SealJob
    from headrace.consumers.store.memtable import MemtableSize
    from headrace.consumers.store.scan import TableScan
    from headrace.consumers.store.segment import SegmentEntry
    from headrace.consumers.store.segment_reader import digest_of_file
    from headrace.consumers.store.settings import StoreSettings
    from headrace.consumers.store.store import Store, encoding_threads
    from headrace.consumers.store.store_errors import (
        JobOutOfOrder,
        JobSuperseded,
        RowsInvalid,
        SegmentUnread,
        StoreDamaged,
        StoreError,
        StoreFormatUnknown,
        StoreFull,
        StoreLocked,
        StoreUnwritable,
        TableUnknown,
    )
    from headrace.consumers.store.store_job import StoreJob
    from headrace.consumers.store.tombstones import Tombstone

_HOMES = {
    "CompactJob": "headrace.consumers.store.jobs",
    "Compaction": "headrace.consumers.store.compaction",
    "DropJob": "headrace.consumers.store.jobs",
    "JobOutOfOrder": "headrace.consumers.store.store_errors",
    "JobSuperseded": "headrace.consumers.store.store_errors",
    "MemtableSize": "headrace.consumers.store.memtable",
    "RowsInvalid": "headrace.consumers.store.store_errors",
    "TableScan": "headrace.consumers.store.scan",
    "SealJob": "headrace.consumers.store.jobs",
    "SegmentEntry": "headrace.consumers.store.segment",
    "SegmentUnread": "headrace.consumers.store.store_errors",
    "Store": "headrace.consumers.store.store",
    "StoreDamaged": "headrace.consumers.store.store_errors",
    "StoreError": "headrace.consumers.store.store_errors",
    "StoreFormatUnknown": "headrace.consumers.store.store_errors",
    "StoreFull": "headrace.consumers.store.store_errors",
    "StoreLocked": "headrace.consumers.store.store_errors",
    "StoreJob": "headrace.consumers.store.store_job",
    "StoreSettings": "headrace.consumers.store.settings",
    "StoreUnwritable": "headrace.consumers.store.store_errors",
    "TableUnknown": "headrace.consumers.store.store_errors",
    "Tombstone": "headrace.consumers.store.tombstones",
    "digest_of_file": "headrace.consumers.store.segment_reader",
    "encoding_threads": "headrace.consumers.store.store",
    "plan_compaction": "headrace.consumers.store.compaction",
}

__all__ = [
    "CompactJob",
    "Compaction",
    "DropJob",
    "JobOutOfOrder",
    "JobSuperseded",
    "MemtableSize",
    "RowsInvalid",
    "SealJob",
    "SegmentEntry",
    "SegmentUnread",
    "Store",
    "StoreDamaged",
    "StoreError",
    "StoreFormatUnknown",
    "StoreFull",
    "StoreJob",
    "StoreLocked",
    "StoreSettings",
    "StoreUnwritable",
    "TableScan",
    "TableUnknown",
    "Tombstone",
    "digest_of_file",
    "encoding_threads",
    "plan_compaction",
]


# PEP 562: `store.settings` is loaded by every command for its settings, and must not load pyarrow and RocksDB
# with it.
def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(home), name)
