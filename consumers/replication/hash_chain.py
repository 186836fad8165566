"""The chain: a rolling hash over all records of a log, equal on two replicas exactly when they have read the
same records.

It finds faults, not forgery: xxh3 is not cryptographic, and runs at 13 GB/s where MD5 runs at 0.8 GB/s.
"""

from __future__ import annotations

from collections.abc import Mapping

import xxhash

# Statuses show the chain at multiples of this, since members at different versions have no other version in
# common.
CHAIN_INTERVAL = 256


def record_digest(value: bytes) -> bytes:
    """xxh3-128 of one record's value."""
    return xxhash.xxh3_128_digest(value)


def content_digest(digests: Mapping[str, str]) -> bytes:
    """xxh3-128 over the names and content digests of a group's segments.

    Equal on two replicas that hold the same files.
    """
    return xxhash.xxh3_128_digest("\n".join(f"{name} {digest}" for name, digest in sorted(digests.items())).encode())


def next_chain(chain: bytes, digest: bytes) -> bytes:
    """The chain after one more record: xxh3-128 of the chain so far and the record's digest."""
    # Of the digest and not of the record: the digest is needed anyhow, to compare the newest record after a
    # restart.
    return xxhash.xxh3_128_digest(chain + digest)
