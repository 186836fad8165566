"""The chain: a rolling hash over all records of a log, equal on two replicas exactly when they have seen the same records."""

from __future__ import annotations

from collections.abc import Mapping

import xxhash

CHAIN_INTERVAL = 256


def record_digest(value: bytes) -> bytes:
    """xxh3-128 of one record's value."""
    return xxhash.xxh3_128_digest(value)


def content_digest(digests: Mapping[str, str]) -> bytes:
    """xxh3-128 over the names and content digests of a group's segments: equal on two replicas that hold the same files."""
    return xxhash.xxh3_128_digest("\n".join(f"{name} {digest}" for name, digest in sorted(digests.items())).encode())


def next_chain(chain: bytes, digest: bytes) -> bytes:
    """The chain after one more record: xxh3-128 of the chain so far and the record's digest."""
    return xxhash.xxh3_128_digest(chain + digest)
