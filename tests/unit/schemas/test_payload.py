"""The door for rows: what is written can be read, and nothing else is decoded."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from headrace.schemas import payload
from headrace.schemas.arrow_stream import StreamInvalid, decoded_size
from headrace.schemas.payload import COMPRESSIONS, PayloadInvalid, PayloadTooLarge, check_size, decode_rows, encode_rows
from tests.poison import bomb, encoded, false_length, poison_payloads, row_batch, text_array

# What only the table of the rows can show.
OF_ITS_TABLE = {
    "series of another table",
    "series with an unknown tag",
    "series without a value",
    "series with a bad escape",
    "series with a tag twice",
    "empty series",
    "unknown field",
    "field of another type",
    "four rows",
}
POISONS = {name: data for name, data in poison_payloads().items() if name not in OF_ITS_TABLE}


@pytest.mark.parametrize("name", POISONS)
def test_rows_that_break_a_rule_are_not_decoded(name: str) -> None:
    """Text, offsets, indices and times are checked in full: any of them would fail in SQL, or end the process."""
    with pytest.raises(PayloadInvalid):
        decode_rows(POISONS[name])


@pytest.mark.parametrize(
    "batch",
    [
        row_batch(fields={"note": text_array([b"a", b"caf\xe9", b"c"])}),
        row_batch(text_array([b"pumps,pump=caf\xe9"])),
        row_batch(fields={"note": text_array([b"a", b"b", b"c"], [0, 1, 900_000_000, 3])}),
        row_batch(codes=(0, 5, 0)),
        row_batch(times=(1, 2**63 - 1, 2)),
    ],
)
def test_rows_that_would_not_be_decoded_are_not_encoded(batch: pa.RecordBatch) -> None:
    """The writer's door is the replica's: nothing is acknowledged that no replica keeps."""
    with pytest.raises(PayloadInvalid):
        encode_rows(batch)


@pytest.mark.parametrize("compression", COMPRESSIONS)
@pytest.mark.parametrize("rows", [0, 1, 1_000])
def test_the_size_in_memory_is_known_before_decoding(compression: str, rows: int) -> None:
    """It is the size of the buffers that Arrow allocates, to the byte."""
    numbers = np.arange(rows)
    texts = pa.array([f"note {number}" if number % 3 else None for number in range(rows)], pa.string())
    fields = {"flow": pa.array(numbers.astype(float)), "note": texts, "on": pa.array(numbers % 2 == 0)}
    batch = row_batch(["pumps,pump=a", "pumps,pump=b"], (numbers % 2).tolist(), numbers.tolist(), fields)
    data = encode_rows(batch, compression)
    decoded = decode_rows(data)
    assert decoded.equals(batch)
    assert decoded_size(data) == decoded.get_total_buffer_size()


def test_a_payload_that_is_large_in_memory_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit counts bytes in memory: 4 KB on the wire may be gigabytes there."""
    monkeypatch.setattr(payload, "DECODED_BYTES_MAX", 1 << 20)
    small, large = bomb((1 << 20) - 4_096), bomb(1 << 20)
    assert len(large) < 4_096
    assert decode_rows(small).num_rows == 1
    before = pa.default_memory_pool().bytes_allocated()
    with pytest.raises(PayloadTooLarge):
        decode_rows(large)
    assert pa.default_memory_pool().bytes_allocated() - before < 1 << 20


@pytest.mark.parametrize("claimed", [-2, -(2**63), 0, 1, 2**62, 2**63 - 1])
def test_a_false_length_is_an_error_and_no_allocation(claimed: int) -> None:
    """A buffer that declares another length than it has is refused, whatever it declares."""
    with pytest.raises(PayloadInvalid):
        decode_rows(false_length(bomb(100_000), claimed))


def test_the_sum_of_lengths_does_not_wrap_around() -> None:
    """Many huge declared lengths are too large together, and not a small or a negative number."""
    batch = row_batch(
        codes=[0] * 4_096, times=range(4_096), fields={f"f{n}": pa.array(np.zeros(4_096)) for n in range(4)}
    )
    data = encoded(batch, "zstd")
    while (changed := data.replace((32_768).to_bytes(8, "little"), (2**62).to_bytes(8, "little"))) != data:
        data = changed
    with pytest.raises(PayloadTooLarge):
        check_size(data)


def test_only_the_form_that_writers_use_is_read() -> None:
    """Metadata version 4 declares compression elsewhere, where the size would not be found."""
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V4)
    with pa.ipc.new_stream(sink, row_batch().schema, options=options) as writer:
        writer.write_batch(row_batch())
    with pytest.raises(StreamInvalid):
        decoded_size(sink.getvalue())


def test_mutated_streams_end_in_a_size_or_an_error() -> None:
    """No change of one byte makes the size differ from what the decoder takes, or ends in another error."""
    data, chance = encoded(row_batch(), "zstd"), np.random.default_rng(1)
    for _ in range(3_000):
        changed = bytearray(data)
        changed[chance.integers(len(changed))] = chance.integers(256)
        try:
            size_bytes, batch = decoded_size(bytes(changed)), decode_rows(bytes(changed))
        except (StreamInvalid, PayloadInvalid):
            continue
        assert batch.get_total_buffer_size() <= size_bytes
