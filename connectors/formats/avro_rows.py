"""Avro records of one schema as an Arrow table, decoded by a compiled loop; no Python code runs per record."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType, ModuleType

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.avro_schema import DECIMAL_DIGITS_MAX, Column, Op, Program
from headrace.connectors.formats.gathered_texts import gathered, gathered_dictionaries, gathered_dictionary
from headrace.connectors.formats.lines import WORD_BYTES, Bytes, Integers, Lengths, Words, words_of
from headrace.connectors.formats.paths import Path

CELLS_MAX = 1 << 22
"""Values that are decoded together: each takes 13 bytes until it is in a column."""
COLUMN_PADDING = 96
"""Columns of a power of two of rows lie on the same lines of a processor's cache: a record took a tenth longer."""
DECIMAL_BYTES_MAX = 16
DECIMAL_ROOM_MAX = 64
"""Bytes of a decimal that are looked at: a fixed may have more than its digits need."""

Faults = npt.NDArray[np.uint8]

REASONS: Mapping[int, str] = MappingProxyType(
    {
        1: "the message is cut: it ends inside of its record",
        2: "the message is longer than its record: it is of another schema",
        3: "the record has an integer that is too large for its type",
        4: "the record names a branch that its union does not have",
        5: "the record names a symbol that its enum does not have",
        6: "the record has a text of a negative length",
        7: "the record has an array with more items than it has bytes",
        8: "the record has a boolean that is neither 0 nor 1",
    }
)
"""The reason of each Fault of the decoder."""


@dataclass(frozen=True, slots=True)
class Payloads:
    """The bytes of messages: message i is `data[starts[i]:ends[i]]`. Behind `data` is a word of padding."""

    data: Bytes
    starts: Integers
    ends: Integers

    @classmethod
    def of(cls, values: pa.Array) -> Payloads:
        """The values of a binary array; null values are empty."""
        texts = values.cast(pa.large_binary())
        if texts.null_count:
            texts = pc.fill_null(texts, b"")
        if not len(texts):
            return cls(np.zeros(WORD_BYTES, np.uint8), np.empty(0, np.int64), np.empty(0, np.int64))
        _, offsets, joined = texts.buffers()
        bounds = np.frombuffer(offsets, np.int64)[texts.offset : texts.offset + len(texts) + 1] if offsets else None
        assert bounds is not None, "an array with values has offsets"
        first, last = int(bounds[0]), int(bounds[-1])
        padded = np.empty(last - first + WORD_BYTES, np.uint8)
        padded[last - first :] = 0
        if last > first:
            padded[: last - first] = np.frombuffer(joined, np.uint8)[first:last]
        bounds = bounds - first
        return cls(padded, bounds[:-1].copy(), bounds[1:].copy())

    def select(self, messages: Integers, skipped: int = 0) -> Payloads:
        """Some of the messages in their order, each once and without its first bytes."""
        # Numbers that ascend from 0 on, as many as there are, are all of them.
        if len(messages) == len(self):
            return Payloads(self.data, self.starts + skipped, self.ends)
        return Payloads(self.data, self.starts[messages] + skipped, self.ends[messages])

    def slice(self, first: int, last: int) -> Payloads:
        """The messages with first <= number < last."""
        return Payloads(self.data, self.starts[first:last], self.ends[first:last])

    def array(self, valid: npt.NDArray[np.bool_], skipped: int = 0) -> pa.Array:
        """The messages without their first bytes as a binary array, null where not `valid`."""
        starts, ends = np.where(valid, self.starts + skipped, 0), np.where(valid, self.ends, 0)
        return gathered(words_of(self.data), starts, ends, pa.binary(), valid)

    def __len__(self) -> int:
        return len(self.starts)


def decode_records(payloads: Payloads, program: Program, encoded: Collection[Path] = ()) -> tuple[pa.Table, Faults]:
    """(the columns of all messages, the fault of each message). Rows with a fault have undefined values.

    Texts with a path of `encoded` are dictionary<int32, string> of one chunk.
    """
    parts, faults = [], []
    names = [str(number) for number in range(len(program.columns))]
    for first, last in _slices(len(payloads), max(1, len(program.columns))):
        arrays, found = _decoded(payloads.slice(first, last), program, encoded)
        parts.append(pa.Table.from_arrays(arrays, names=names))
        faults.append(found)
    # Arrow copies a single chunk too.
    columns = parts[0] if len(parts) == 1 else pa.concat_tables(parts).unify_dictionaries().combine_chunks()
    return columns, np.concatenate(faults)


def _slices(count: int, columns: int) -> Iterator[tuple[int, int]]:
    step = max(1, CELLS_MAX // columns - COLUMN_PADDING)
    for first in range(0, max(count, 1), step):
        yield first, min(first + step, count)


def _decoded(payloads: Payloads, program: Program, encoded: Collection[Path]) -> tuple[list[pa.Array], Faults]:
    count, width = len(payloads), max(1, len(program.columns))
    room = count + COLUMN_PADDING
    values, lengths = np.zeros((width, room), np.int64), np.zeros((width, room), np.int32)
    valid, faults = np.zeros((width, room), np.uint8), np.zeros(count, np.uint8)
    kernel, words = _kernel(), words_of(payloads.data)
    kernel.decode(
        payloads.data,
        words,
        payloads.starts,
        payloads.ends,
        program.operations,
        program.branches,
        kernel.Cells(values, lengths, valid),
        faults,
        np.zeros(kernel.STACK, np.int64),
    )
    values, lengths, valid = values[:, :count], lengths[:, :count], valid[:, :count]
    # What a record had before its fault may be anything: no column is made of it.
    valid[:, faults != 0] = 0
    together = _texts_together(words, values, lengths, valid, _neighbours(program, encoded))
    columns = []
    for number, column in enumerate(program.columns):
        if number in together:
            columns.append(together[number])
            continue
        cells = _Cells(words, values[number], lengths[number], valid[number].astype(np.bool_))
        array, bad = cells.array(column, encoded=column.path in encoded)
        if bad is not None:
            faults[bad & (faults == 0)] = 3
        columns.append(array)
    return columns, faults


def _neighbours(program: Program, encoded: Collection[Path]) -> Iterator[slice]:
    """The numbers of columns of encoded texts that follow each other, two at least."""
    first = 0
    for number, column in enumerate((*program.columns, None)):
        # Decimals are decoded as texts, too.
        if column is None or column.op is not Op.TEXT or column.kind != pa.string() or column.path not in encoded:
            if number - first > 1:
                yield slice(first, number)
            first = number + 1


def _texts_together(
    words: Words, values: Integers, lengths: Lengths, valid: Faults, runs: Iterator[slice]
) -> dict[int, pa.DictionaryArray]:
    """The columns, by number, of those runs whose texts are all there, and are mostly alike from row to row.

    Such are the tags of readings: a batch has few series.
    """
    columns: dict[int, pa.DictionaryArray] = {}
    for run in runs:
        if valid[run].all():
            found = gathered_dictionaries(words, values[run], lengths[run], pa.string())
            columns.update(zip(range(run.start, run.stop), found or (), strict=False))
    return columns


@dataclass(frozen=True, slots=True)
class _Cells:
    """The decoded values of one column."""

    words: npt.NDArray[np.uint64]
    values: Integers
    lengths: npt.NDArray[np.int32]
    valid: npt.NDArray[np.bool_]

    def array(self, column: Column, *, encoded: bool) -> tuple[pa.Array, npt.NDArray[np.bool_] | None]:
        """(the values, which of them their type does not hold; None for none)."""
        if pa.types.is_decimal(column.kind):
            return self._decimals(column.kind)
        if column.op is Op.TEXT:
            return self._texts(gathered_dictionary if encoded else gathered), None
        if column.op is Op.ENUM:
            codes = pa.array(self.values.astype(np.int32), mask=~self.valid)
            return pa.DictionaryArray.from_arrays(codes, pa.array(column.symbols, pa.string())), None
        if column.op is Op.FLOAT:
            return self._numbers(self.values.astype(np.uint64).astype(np.uint32).view(np.float32)), None
        if column.op is Op.DOUBLE:
            return self._numbers(self.values.view(np.float64)), None
        if column.op is Op.BOOL:
            return self._numbers(self.values.astype(np.bool_)), None
        whole = self._numbers(self.values.astype(np.int32) if column.op is Op.INT else self.values)
        return whole.cast(column.kind), None

    def _numbers(self, values: npt.NDArray[np.generic]) -> pa.Array:
        return pa.array(values, mask=None if self.valid.all() else ~self.valid)

    def _texts(self, gather: Callable[..., pa.Array]) -> pa.Array:
        """The texts, not checked for UTF-8."""
        if self.valid.all():
            return gather(self.words, self.values, self.values + self.lengths, pa.string())
        starts = np.where(self.valid, self.values, 0)
        return gather(self.words, starts, starts + np.where(self.valid, self.lengths, 0), pa.string(), self.valid)

    def _bytes_at(self, places: Integers) -> npt.NDArray[np.uint8]:
        return (self.words[places] & np.uint64(0xFF)).astype(np.uint8)

    def _decimals(self, kind: pa.DataType) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
        """Integers, the highest byte first; those above the ones that Arrow has repeat the sign."""
        bad = self.valid & ((self.lengths > DECIMAL_ROOM_MAX) | (self.lengths == 0))
        valid = self.valid & ~bad
        # Byte by byte of all values: the last one is the lowest byte of Arrow's, and the sign fills the rest.
        sign = np.where(valid & (self._bytes_at(np.where(valid, self.values, 0)) >= 128), 0xFF, 0).astype(np.uint8)
        whole = np.repeat(sign[:, None], DECIMAL_BYTES_MAX, axis=1)
        for index in range(int(self.lengths[valid].max(initial=0))):
            has = valid & (self.lengths > index)
            found = self._bytes_at((self.values + self.lengths - 1 - index)[has])
            if index < DECIMAL_BYTES_MAX:
                whole[has, index] = found
            else:
                bad[has] |= found != sign[has]
        bad |= valid & ((whole[:, -1] ^ sign) >= 128)
        valid &= ~bad
        validity = pa.array(valid).buffers()[1]
        array = pa.Array.from_buffers(kind, len(valid), [validity, pa.py_buffer(whole)])
        too_large = _beyond(array, kind)
        return (array if not too_large.any() else pc.if_else(pa.array(too_large), pa.scalar(None, kind), array)), (
            bad | too_large
        )


def _beyond(values: pa.Array, kind: pa.DataType) -> npt.NDArray[np.bool_]:
    """Which decimals have more digits than their type. Sixteen bytes hold more than any type has."""
    whole_kind = pa.decimal128(DECIMAL_DIGITS_MAX, 0)
    low, high = (pa.scalar(Decimal(sign * (10**kind.precision - 1)), whole_kind) for sign in (-1, 1))
    whole = pa.Array.from_buffers(whole_kind, len(values), values.buffers())
    over = pc.or_(pc.less(whole, low), pc.greater(whole, high))
    return np.asarray(pc.fill_null(over, fill_value=False))


def _kernel() -> ModuleType:
    # Numba takes a third of a second to import; a process that decodes no Avro must not wait for it.
    from headrace.connectors.formats import avro_kernel

    return avro_kernel
