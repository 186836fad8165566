"""The chain of hashes over the records of a log."""

from __future__ import annotations

from headrace.consumers.replication.hash_chain import next_chain, record_digest


def test_the_chain_depends_on_order_and_content() -> None:
    """Equal records in equal order give equal chains, anything else does not."""
    one, two = record_digest(b"one"), record_digest(b"two")
    start = bytes(16)
    assert next_chain(next_chain(start, one), two) != next_chain(next_chain(start, two), one)
    assert next_chain(start, one) == next_chain(start, record_digest(b"one"))
