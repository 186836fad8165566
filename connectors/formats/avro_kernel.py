"""The compiled loop that decodes Avro records of one schema into columns (see `avro_rows`).

A schema is a flat program (`avro_schema`): one operation a value, jumps for unions and blocks. So there is one loop for
all schemas, which is compiled once and cached beside the source.
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from headrace.connectors.formats.avro_schema import DEPTH_MAX, Op
from headrace.connectors.formats.kernel_compiler import entry_point, inlined
from headrace.connectors.formats.lines import Bytes, Integers, Lengths, Words

Columns = npt.NDArray[np.int64]
Flags = npt.NDArray[np.uint8]


class Cells(NamedTuple):
    """Values by column and message: a number, the bits of a float, or where a text of so many bytes begins.

    It counts where `valid`, which is 0 before.
    """

    values: Columns
    lengths: Lengths
    valid: Flags


class Fault(IntEnum):
    """Why a message is no record of its schema."""

    NONE = 0
    CUT = 1
    LONGER = 2
    NUMBER = 3
    BRANCH = 4
    SYMBOL = 5
    LENGTH = 6
    ITEMS = 7
    BOOLEAN = 8


LAYOUT = (
    "0-13 NULL BOOL INT LONG FLOAT DOUBLE TEXT FIXED ENUM UNION JUMP BLOCKS NEXT END; depth 32; doubles have a count"
)
"""What is compiled in from `avro_schema`: Numba checks only this file for changes, so it has to change with that."""

# Numba takes members of an enum for objects: as plain numbers they are constants.
(_NONE, _CUT, _LONGER, _NUMBER, _BRANCH, _SYMBOL, _LENGTH, _ITEMS, _BOOLEAN) = map(int, Fault)
(_NULL, _BOOL, _INT, _LONG, _FLOAT, _DOUBLE, _TEXT, _FIXED, _ENUM, _UNION, _JUMP, _BLOCKS, _NEXT, _END) = map(int, Op)
_VARINT_BITS_MAX = 63
_INT32_MIN, _INT32_MAX = -(2**31), 2**31 - 1
_LOW_HALF = np.uint64(0xFFFFFFFF)
_FLOAT_BYTES, _DOUBLE_BYTES = 4, 8
# The loop does not compare its depth with this: `avro_schema` refuses what is deeper.
STACK = DEPTH_MAX + 1

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_WORDS = types.Array(types.uint64, 1, "A", readonly=True, aligned=False)


@inlined
def _varint(data: Bytes, position: int, end: int) -> tuple[int, int, int]:
    """(position behind a variable-length integer, its value, its fault)"""
    value, shift = np.uint64(0), 0
    while True:
        if position >= end:
            return position, 0, _CUT
        byte = data[position]
        position += 1
        # The tenth byte has one bit left.
        if shift == _VARINT_BITS_MAX and byte > 1:
            return position, 0, _NUMBER
        value |= np.uint64(byte & 0x7F) << np.uint64(shift)
        if byte < 0x80:
            whole: int = np.int64(value >> np.uint64(1)) ^ -np.int64(value & np.uint64(1))  # type: ignore[assignment]
            return position, whole, _NONE
        shift += 7


@inlined
def _scalar(data: Bytes, words: Words, position: int, end: int, kind: int, size: int) -> tuple[int, np.int64, int, int]:
    """(position behind a value, the value or where its bytes begin, their number, its fault)"""
    if kind == _FLOAT:
        if end - position < _FLOAT_BYTES:
            return position, np.int64(0), 0, _CUT
        # The word has four bytes of what follows, or of the padding.
        return position + _FLOAT_BYTES, np.int64(words[position] & _LOW_HALF), 0, _NONE
    if kind == _BOOL:
        if position >= end:
            return position, np.int64(0), 0, _CUT
        return position + 1, np.int64(data[position]), 0, _NONE if data[position] <= 1 else _BOOLEAN
    length, fault = size, _NONE
    if kind != _FIXED:
        position, length, fault = _varint(data, position, end)
        if fault != _NONE:
            return position, np.int64(0), 0, fault
    if kind in (_TEXT, _FIXED):
        if length < 0:
            return position, np.int64(0), 0, _LENGTH
        if length > end - position:
            return position, np.int64(0), 0, _CUT
        return position + length, np.int64(position), length, _NONE
    if kind == _INT and (length < _INT32_MIN or length > _INT32_MAX):
        fault = _NUMBER
    elif kind == _ENUM and (length < 0 or length >= size):
        fault = _SYMBOL
    return position, np.int64(length), 0, fault


@inlined
def _items(data: Bytes, position: int, end: int) -> tuple[int, int, int]:
    """(position behind the head of a block, its number of items, its fault)"""
    position, count, fault = _varint(data, position, end)
    if fault == _NONE and count < 0:
        # A negative number of items is followed by the bytes that they take.
        count = -count
        position, _, fault = _varint(data, position, end)
        if fault == _NONE and count < 0:
            fault = _ITEMS
    return position, count, fault


@inlined
def _doubles(words: Words, position: int, end: int, first: int, count: int, cells: Cells, row: int) -> int:
    """Put so many doubles into columns from `first` on, from -1 on nowhere; the position behind them.

    Behind `end` is none of them read.
    """
    behind = position + count * _DOUBLE_BYTES
    for number in range(count if first >= 0 and behind <= end else 0):
        cells.values[first + number, row] = np.int64(words[position + number * _DOUBLE_BYTES])
        cells.valid[first + number, row] = 1
    return behind


@inlined
def _record(
    data: Bytes,
    words: Words,
    position: int,
    end: int,
    program: Columns,
    branches: Integers,
    items: Integers,
    cells: Cells,
    row: int,
) -> int:
    """Decode one record into the cells of its row; returns its fault."""
    # Items of no bytes are bounded too: few bytes could name billions of them.
    pc, depth, budget = 0, 0, end - position + 64
    while program[pc, 0] != _END:
        kind, column, first = program[pc, 0], program[pc, 1], program[pc, 2]
        if kind in (_JUMP, _NULL):
            pc = first if kind == _JUMP else pc + 1
        elif kind == _DOUBLE:
            position, pc = _doubles(words, position, end, column, first, cells, row), pc + 1
            if position > end:
                return _CUT
        elif kind == _UNION:
            position, branch, fault = _varint(data, position, end)
            if fault != _NONE or branch < 0 or branch >= first:
                return fault if fault != _NONE else _BRANCH
            pc = branches[program[pc, 3] + branch]
        elif kind == _BLOCKS:
            depth, pc = depth + 1, pc + 1
            items[depth] = 0
        elif kind == _NEXT:
            if items[depth] == 0:
                position, items[depth], fault = _items(data, position, end)
                if fault != _NONE:
                    return fault
            if items[depth] == 0:
                depth, pc = depth - 1, first
                continue
            items[depth], budget, pc = items[depth] - 1, budget - 1, pc + 1
            if budget < 0:
                return _ITEMS
        else:
            position, value, length, fault = _scalar(data, words, position, end, kind, first)
            if fault != _NONE:
                return fault
            # Also what no column takes: nothing else shows where the next value begins.
            if column >= 0:
                cells.values[column, row], cells.lengths[column, row], cells.valid[column, row] = value, length, 1
            pc += 1
    return _NONE if position == end else _LONGER


@entry_point(
    types.void,
    _BYTES,
    _WORDS,
    types.int64[::1],
    types.int64[::1],
    types.int64[:, ::1],
    types.int64[::1],
    types.NamedTuple((types.int64[:, ::1], types.int32[:, ::1], types.uint8[:, ::1]), Cells),
    types.uint8[::1],
    types.int64[::1],
)
def decode(
    data: Bytes,
    words: Words,
    starts: Integers,
    ends: Integers,
    program: Columns,
    branches: Integers,
    cells: Cells,
    faults: Flags,
    items: Integers,
) -> None:
    """Decode the record of each message, which is `data[starts[i]:ends[i]]`. `words` are those of `data`.

    Operation p is `program[p]`: its kind, its column (-1: skipped), and up to two operands. `faults[i]` is a Fault.
    `items` has room for STACK numbers: how many items are left of the blocks that the loop is in.
    """
    for row in range(len(starts)):
        faults[row] = _record(data, words, starts[row], ends[row], program, branches, items, cells, row)
