"""Chunks of files: joined to their record and read from it without copies of their bytes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import xxhash
from hypothesis import given
from hypothesis import strategies as st

from headrace.schemas.framing import FrameInvalid, codec
from headrace.schemas.sync_records import ChunkDamaged, SyncChunk, decode_chunk, encode_chunk

CHUNK = SyncChunk("00000000-0000-0000-0000-000000000001", 3, 7, 2, b"the bytes")


def plain(chunk: SyncChunk) -> bytes:
    """The record as Avro has it."""
    names = ("sender", "session", "number", "chunk")
    digest = xxhash.xxh3_64_digest(chunk.data)
    values = {name: getattr(chunk, name) for name in names}
    return codec("sync_chunk").encode({**values, "digest": digest, "bytes": bytes(chunk.data)})


@given(st.integers(0, 70_000), st.integers(-(2**40), 2**60), st.text(max_size=600))
def test_a_chunk_is_the_avro_record_that_it_was(size: int, number: int, sender: str) -> None:
    """Byte for byte, for each size and sender; what is read has the same content, and is a view where it may be."""
    chunk = replace(CHUNK, sender=sender, number=number, data=bytes(size))
    value = encode_chunk(chunk)
    assert plain(chunk) == value == encode_chunk(replace(chunk, data=memoryview(chunk.data)))
    found = decode_chunk(value)
    assert chunk == replace(found, data=bytes(found.data))
    assert isinstance(found.data, memoryview) or len(sender.encode()) > 400


@pytest.mark.parametrize(
    "spoil",
    [lambda value: value[:-1], lambda value: value + b"x", lambda value: value[:20], lambda value: b"xx" + value[2:]],
    ids=["short", "long", "head alone", "another kind"],
)
def test_a_damaged_record_is_refused(spoil) -> None:  # type: ignore[no-untyped-def]
    """Bytes too few, too many, or of another kind are no chunk."""
    with pytest.raises(FrameInvalid):
        decode_chunk(spoil(encode_chunk(CHUNK)))


def test_bytes_of_another_digest_are_refused() -> None:
    """A changed byte of the file is found."""
    value = encode_chunk(CHUNK)
    with pytest.raises(ChunkDamaged):
        decode_chunk(value[:-1] + b"x")
