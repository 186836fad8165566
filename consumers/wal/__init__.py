"""The write-ahead log: recovery returns a prefix of the transactions that contains every synced one."""

from headrace.consumers.wal.commit import WalMetrics
from headrace.consumers.wal.log import PARTITIONS_MAX, WriteAheadLog
from headrace.consumers.wal.serde import BytesSerde, Delete, Put, Serde
from headrace.consumers.wal.value_references import RecoveredState, ValueReference
from headrace.consumers.wal.wal_errors import (
    CheckpointFailed,
    DurabilityUnknown,
    FileMissing,
    ForeignLog,
    ForeignSerde,
    LogDamaged,
    LogFailed,
    LogMisused,
    UnsupportedKey,
    UpdateFailed,
    WriteAheadLogError,
)
from headrace.consumers.wal.wal_recovery import RecoveryReport

__all__ = [
    "PARTITIONS_MAX",
    "BytesSerde",
    "CheckpointFailed",
    "Delete",
    "DurabilityUnknown",
    "FileMissing",
    "ForeignLog",
    "ForeignSerde",
    "LogDamaged",
    "LogFailed",
    "LogMisused",
    "Put",
    "RecoveredState",
    "RecoveryReport",
    "Serde",
    "UnsupportedKey",
    "UpdateFailed",
    "ValueReference",
    "WalMetrics",
    "WriteAheadLog",
    "WriteAheadLogError",
]
