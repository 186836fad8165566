"""The write-ahead log: a prefix of the transactions, always, with every synced one in it."""

from consumers.wal.commit import WalMetrics
from consumers.wal.errors import (
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
from consumers.wal.log import WriteAheadLog
from consumers.wal.recovery import RecoveryReport
from consumers.wal.serde import BytesSerde, Delete, Put, Serde
from consumers.wal.values import RecoveredState, ValueReference

__all__ = [
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
