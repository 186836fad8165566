"""Durable file operations: atomic replacement, synced directories, one opener per directory."""

from headrace.connectors.files.durable import (
    PARTIAL_SUFFIX,
    create_directories,
    fsync_directory,
    fsync_file,
    rename_durably,
    sync_together,
    unlink_durably,
    write_atomically,
)
from headrace.connectors.files.expiring import ExpiringDirectories
from headrace.connectors.files.layer import Buffer, FileLayer
from headrace.connectors.files.lock import LOCK_NAME, DirectoryHeld, DirectoryLock, read_holder
from headrace.connectors.files.space import has_no_space

__all__ = [
    "LOCK_NAME",
    "PARTIAL_SUFFIX",
    "Buffer",
    "DirectoryHeld",
    "DirectoryLock",
    "ExpiringDirectories",
    "FileLayer",
    "create_directories",
    "fsync_directory",
    "fsync_file",
    "has_no_space",
    "read_holder",
    "rename_durably",
    "sync_together",
    "unlink_durably",
    "write_atomically",
]
