"""The chain: a rolling hash over all records of a log, equal on two replicas exactly when they have seen the same records."""

from __future__ import annotations

import xxhash

CHAIN_INTERVAL = 256


def record_digest(value: bytes) -> bytes:
    """xxh3-128 of one record's value."""
    return xxhash.xxh3_128_digest(value)


def next_chain(chain: bytes, digest: bytes) -> bytes:
    """The chain after one more record: xxh3-128 of the chain so far and the record's digest."""
    return xxhash.xxh3_128_digest(chain + digest)
