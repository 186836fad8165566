"""Receipts: one for each offset and value, found among others whole and at their own positions."""

from __future__ import annotations

from headrace.consumers.replication.hash_chain import record_digest
from headrace.schemas.receipts import RECEIPT_BYTES, end_of, receipt_of, value_digest


def test_a_receipt_is_that_of_an_offset_and_a_value() -> None:
    """Of the digest that a replica computes of the record anyhow; an unknown offset gives a receipt of its own."""
    assert value_digest(b"a") == record_digest(b"a")
    found = {receipt_of(offset, value_digest(value)) for offset in (-1_001, -1, 0, 1, 2**62) for value in (b"", b"a")}
    assert 10 == len(found)
    assert {RECEIPT_BYTES} == {len(receipt) for receipt in found}


def test_a_receipt_is_found_at_its_own_position_only() -> None:
    """Bytes of two neighbours that look like a receipt are none."""
    one, two, three = b"abcdefgh", b"ijklmnop", b"qrstuvwx"
    assert [8, 16, 24] == [end_of(each, one + two + three) for each in (one, two, three)]
    assert 0 == end_of(b"efghijkl", one + two + three)
    assert 0 == end_of(b"", one)
    assert 8 == end_of(b"aaaaaaaa", b"aaaaaaaab" + bytes(7))
    assert 8 == end_of(b"efghijkl", b"efghijkl" + one + two)
