"""Errors of a disk without space, whoever raises them."""

from __future__ import annotations

NO_SPACE = ("No space left", "Disk quota")
"""What errors of the file system and of RocksDB have in common, also as texts."""


def has_no_space(cause: str) -> bool:
    """Whether a cause is a full disk."""
    return any(text in cause for text in NO_SPACE)
