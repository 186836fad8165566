"""The store of one data group at one node: memtable, seal, Parquet segments, RocksDB index, reading, deletes, merging."""

from consumers.store.compaction import Compaction, plan_compaction
from consumers.store.errors import (
    JobOutOfTurn,
    JobSuperseded,
    RowsInvalid,
    StoreDamaged,
    StoreError,
    StoreFormatUnknown,
    StoreFull,
    StoreHeld,
    StoreUnwritable,
    TableUnknown,
)
from consumers.store.jobs import CompactJob, DropJob, SealJob, StoreJob
from consumers.store.memtable import MemtableSize
from consumers.store.scan import Scan
from consumers.store.segment import SegmentEntry, digest_of_file
from consumers.store.settings import StoreSettings
from consumers.store.store import Store, encoding_threads
from consumers.store.tombstones import Tombstone

__all__ = [
    "CompactJob",
    "Compaction",
    "DropJob",
    "JobOutOfTurn",
    "JobSuperseded",
    "MemtableSize",
    "RowsInvalid",
    "Scan",
    "SealJob",
    "SegmentEntry",
    "Store",
    "StoreDamaged",
    "StoreError",
    "StoreFormatUnknown",
    "StoreFull",
    "StoreHeld",
    "StoreJob",
    "StoreSettings",
    "StoreUnwritable",
    "TableUnknown",
    "Tombstone",
    "digest_of_file",
    "encoding_threads",
    "plan_compaction",
]
