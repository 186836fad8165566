"""Arrow streams that differ in their values alone, read together.

A program that sends the same columns again and again begins each stream with the same bytes: the schema, the
dictionaries, and where each column lies. Arrow reads the first of them. The columns of the others are cut out of their
bytes, which takes a fraction of the time where a message has some hundred rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from headrace.connectors.formats.chunks import concat_arrays
from headrace.connectors.formats.interface import TAG_TYPE
from headrace.connectors.formats.lines import Bytes, Integers
from headrace.connectors.formats.stream_reader import ends_whole

END_BYTES = 8
"""Those of the mark of the end."""
PADDING_BYTES_MAX = 64
"""Arrow fills what precedes a column, or follows the last one, up to a multiple of this at most."""
_NO_TEXTS = pa.array([], pa.string())


@dataclass(frozen=True, slots=True)
class StreamLayout:
    """Where a stream of one batch has its columns: each begins at a byte of `begins`. `head` is all before the first."""

    size: int
    rows: int
    head: pa.Buffer
    begins: tuple[int, ...]
    dictionaries: tuple[pa.Array, ...]
    """Of each column; one of numbers has an empty one."""

    def fits(self, value: pa.Buffer) -> bool:
        """Whether a message is a stream of this layout. The codes of its tags may be out of range."""
        size = self.head.size
        return value.size == self.size and value.slice(0, size).equals(self.head) and ends_whole(value)


def layout_of(value: pa.Buffer, batches: Sequence[pa.RecordBatch]) -> StreamLayout | None:
    """The layout of a stream that Arrow has read from `value`.

    None where it has not exactly one batch, or a column is anything but numbers, or tags that are encoded: with nulls,
    of bits, of texts, or compressed.
    """
    if len(batches) != 1 or not batches[0].num_rows or not batches[0].num_columns:
        return None
    begins, end = [], 0
    for column in batches[0].columns:
        is_tag = column.type == TAG_TYPE
        numbers = column.indices if is_tag else column
        if not _is_plain(numbers) or (is_tag and column.dictionary.null_count):
            return None
        begin = numbers.buffers()[1].address - value.address
        begins.append(begin)
        end = max(end, begin + len(numbers) * numbers.type.byte_width)
    # Compressed values are elsewhere. Nothing but padding is between the last of them and the mark of the end.
    if min(begins) < 0 or not END_BYTES <= value.size - end < END_BYTES + PADDING_BYTES_MAX:
        return None
    dictionaries = tuple(column.dictionary if column.type == TAG_TYPE else _NO_TEXTS for column in batches[0].columns)
    return StreamLayout(value.size, batches[0].num_rows, value.slice(0, min(begins)), tuple(begins), dictionaries)


def _is_plain(values: pa.Array) -> bool:
    kind = values.type
    is_number = pa.types.is_integer(kind) or pa.types.is_float32(kind) or pa.types.is_float64(kind)
    return (is_number or pa.types.is_timestamp(kind)) and values.buffers()[0] is None and not values.offset


class AlikeStreams:
    """Messages of one schema whose layouts are known."""

    def __init__(self, schema: pa.Schema) -> None:
        self.messages: list[int] = []
        self._schema = schema
        self._layouts: list[StreamLayout] = []
        self._chosen: list[int] = []
        self._starts: list[int] = []

    def add_layout(self, layout: StreamLayout) -> int:
        """The number of one more layout."""
        self._layouts.append(layout)
        return len(self._layouts) - 1

    def add(self, message: int, start: int, layout: int) -> int:
        """One more message, whose bytes begin at `start`; its rows."""
        self.messages.append(message)
        self._starts.append(start)
        self._chosen.append(layout)
        return self._layouts[layout].rows

    def take_unfit(self, data: Bytes) -> list[int]:
        """Leave out messages with a code of a tag that is not in its dictionary; these. `data` has the bytes of all."""
        unfit, rows = np.zeros(len(self.messages), np.bool_), self._of_each([each.rows for each in self._layouts])
        for index in self._tags():
            known = self._of_each([len(each.dictionaries[index]) for each in self._layouts])
            # Without its sign a negative code is above all others.
            is_unfit = self._numbers(data, index, np.uint32) >= np.repeat(known, rows)
            if is_unfit.any():
                unfit |= np.logical_or.reduceat(is_unfit, np.cumsum(rows) - rows)
        taken = list(compress(self.messages, unfit))
        if taken:
            fit = (~unfit).tolist()
            self.messages, self._starts, self._chosen = (
                list(compress(each, fit)) for each in (self.messages, self._starts, self._chosen)
            )
        return taken

    def table(self, data: Bytes) -> pa.Table:
        """Their rows in order, each column in one chunk."""
        columns = []
        for index, field in enumerate(self._schema):
            if field.type == TAG_TYPE:
                columns.append(self._tag(data, index))
            else:
                values = self._numbers(data, index, np.uint8)
                count = len(values) // field.type.byte_width
                columns.append(pa.Array.from_buffers(field.type, count, [None, pa.py_buffer(values)]))
        return pa.table(columns, schema=self._schema)

    def _tags(self) -> list[int]:
        return [index for index, kind in enumerate(self._schema.types) if kind == TAG_TYPE]

    def _of_each(self, values: Sequence[int]) -> Integers:
        """For each message what its layout has."""
        return np.array(values, np.int64)[self._chosen] if values else np.empty(0, np.int64)

    def _numbers(self, data: Bytes, index: int, kind: npt.DTypeLike) -> npt.NDArray[Any]:
        """The bytes of one column, as numbers."""
        width = _width(self._schema.field(index).type)
        begins = np.array(self._starts, np.int64) + self._of_each([each.begins[index] for each in self._layouts])
        ends = begins + width * self._of_each([each.rows for each in self._layouts])
        parts = [data[begin:end] for begin, end in zip(begins.tolist(), ends.tolist(), strict=True)]
        return np.concatenate(parts).view(kind) if parts else np.empty(0, kind)

    def _tag(self, data: Bytes, index: int) -> pa.DictionaryArray:
        codes = self._numbers(data, index, np.int32)
        dictionaries = [each.dictionaries[index] for each in self._layouts]
        if all(each.equals(dictionaries[0]) for each in dictionaries[1:]):
            return pa.DictionaryArray.from_arrays(pa.array(codes), dictionaries[0])
        joined = concat_arrays(dictionaries).dictionary_encode()
        lengths = np.array([len(each) for each in dictionaries], np.int64)
        rows = self._of_each([each.rows for each in self._layouts])
        shifts = np.repeat(self._of_each((np.cumsum(lengths) - lengths).tolist()), rows)
        return pa.DictionaryArray.from_arrays(joined.indices.to_numpy()[codes + shifts], joined.dictionary)


def _width(kind: pa.DataType) -> int:
    """The bytes of a value, or of the code of a tag."""
    return int((kind.index_type if kind == TAG_TYPE else kind).byte_width)
