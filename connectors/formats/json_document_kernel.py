"""The compiled loop that puts each element of a JSON document on a line of its own (see `json_documents`)."""

from __future__ import annotations

from enum import IntEnum

import numpy as np
from numba import types

from headrace.connectors.formats.kernel_compiler import entry_point, inlined
from headrace.connectors.formats.lines import BACKSLASH, NEWLINE, QUOTE, RETURN, Bytes, Integers

SPACE, TAB, COMMA, COLON = 32, 9, 44, 58
OPEN_ARRAY, CLOSE_ARRAY, OPEN_OBJECT, CLOSE_OBJECT = 91, 93, 123, 125
# One bit each in an int64, whose sign is left out.
DEPTH_KNOWN_MAX = 60
"""Brackets below this depth are counted and not distinguished: no reading is nested."""


class SplitState(IntEnum):
    """What the loop keeps from one call to the next, as indexes of an array of int64."""

    DEPTH = 0
    """Open brackets of the current element, 0 between elements."""
    KINDS = 1
    """A bit for each of them, the innermost lowest: 1 for an array."""
    IN_STRING = 2
    ESCAPED = 3
    IN_ARRAY = 4
    """Whether the elements are those of an array."""
    PREVIOUS = 5
    """The last byte that is neither a space nor inside of a string."""
    LINE = 6
    """Number of the line of the file."""
    LINE_BEGINS = 7
    """Whether nothing but spaces came since the last newline."""
    CONTENT = 8
    """Whether the output line has any."""
    FIRST_LINE = 9
    """The line of the file where the output line began."""


# Numba takes members of an enum for objects: as plain numbers they are constants.
_DEPTH, _KINDS, _IN_STRING, _ESCAPED, _IN_ARRAY, _PREVIOUS, _LINE, _LINE_BEGINS, _CONTENT, _FIRST_LINE = map(
    int, SplitState
)

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)


@inlined
def _end_line(state: Integers, out: Bytes, lines: Integers, written: int, ended: int) -> tuple[int, int]:
    """End the output line, if it has content."""
    if not state[_CONTENT]:
        return written, ended
    out[written] = NEWLINE
    lines[ended] = state[_FIRST_LINE]
    state[_CONTENT] = 0
    return written + 1, ended + 1


@inlined
def _begin_line(state: Integers) -> None:
    state[_CONTENT] = 1
    state[_FIRST_LINE] = state[_LINE]


@inlined
def _open(state: Integers, byte: int) -> None:
    state[_DEPTH] += 1
    if state[_DEPTH] <= DEPTH_KNOWN_MAX:
        state[_KINDS] = (state[_KINDS] << 1) | (1 if byte == OPEN_ARRAY else 0)


@inlined
def _close(state: Integers, byte: int) -> None:
    """Close the innermost bracket of the kind, and those inside of it that were never closed."""
    wanted = 1 if byte == CLOSE_ARRAY else 0
    while state[_DEPTH] > 0:
        known = state[_DEPTH] <= DEPTH_KNOWN_MAX
        matches = not known or (state[_KINDS] & 1) == wanted
        state[_DEPTH] -= 1
        if known:
            state[_KINDS] >>= 1
        if matches:
            return
    # An array that ends before its last element does.
    if byte == CLOSE_ARRAY:
        state[_IN_ARRAY] = 0


@inlined
def _string_byte(state: Integers, byte: int) -> int:
    """The byte to write for one inside of a string."""
    if byte == NEWLINE:
        # No string holds a newline: a missing quote costs this element and not the rest of the file. The
        # return is a control character, so the element is refused.
        state[_IN_STRING], state[_ESCAPED], state[_PREVIOUS] = 0, 0, QUOTE
        state[_LINE] += 1
        state[_LINE_BEGINS] = 1
        return RETURN
    if state[_ESCAPED]:
        state[_ESCAPED] = 0
    elif byte == BACKSLASH:
        state[_ESCAPED] = 1
    elif byte == QUOTE:
        state[_IN_STRING], state[_PREVIOUS] = 0, QUOTE
    return byte


@inlined
def _between(state: Integers, byte: int) -> bool:
    """Whether a byte between two elements is only a mark of the outer array."""
    if state[_IN_ARRAY]:
        if byte == CLOSE_ARRAY:
            state[_IN_ARRAY] = 0
        return byte in (COMMA, CLOSE_ARRAY)
    if byte == OPEN_ARRAY:
        state[_IN_ARRAY] = 1
        return True
    return False


@inlined
def _is_lost(state: Integers, byte: int) -> bool:
    """Whether an element begins inside of an object that was never closed."""
    # An object that begins a line, inside of an object, and not as the value of a member, is not JSON.
    inside_object = state[_DEPTH] > 0 and state[_DEPTH] <= DEPTH_KNOWN_MAX and not state[_KINDS] & 1
    return bool(byte == OPEN_OBJECT and inside_object and state[_LINE_BEGINS] and state[_PREVIOUS] != COLON)


@entry_point(types.UniTuple(types.int64, 2), _BYTES, types.int64[::1], types.uint8[::1], types.int64[::1])
def split_elements(source: Bytes, state: Integers, out: Bytes, lines: Integers) -> tuple[int, int]:
    """Write the elements of `source` to `out`, one a line; the bytes written, and the lines ended.

    `lines` gets the line of the file where each of them begins. `out` and `lines` hold twice the bytes of
    `source`.
    """
    # Each byte writes itself and one newline at most, so twice the bytes suffice, and no bounds are checked.
    written, ended = 0, 0
    for byte in source:
        if state[_IN_STRING]:
            out[written] = _string_byte(state, byte)
            written += 1
            if byte == NEWLINE and not state[_DEPTH]:
                written, ended = _end_line(state, out, lines, written, ended)
            continue
        if byte == NEWLINE:
            state[_LINE] += 1
            state[_LINE_BEGINS] = 1
            if not state[_DEPTH] and not state[_IN_ARRAY]:
                written, ended = _end_line(state, out, lines, written, ended)
        if byte in (SPACE, TAB, RETURN, NEWLINE):
            # Written always and counted within an element only: indented files are mostly spaces, and a sum costs no
            # branch.
            out[written] = SPACE
            written += state[_CONTENT]
            continue
        lost = _is_lost(state, byte)
        if lost or (not state[_DEPTH] and byte in (OPEN_OBJECT, OPEN_ARRAY, COMMA, CLOSE_ARRAY)):
            written, ended = _end_line(state, out, lines, written, ended)
            state[_DEPTH], state[_KINDS] = 0, 0
        state[_LINE_BEGINS] = 0
        state[_PREVIOUS] = byte
        if not state[_DEPTH] and not lost and _between(state, byte):
            continue
        if not state[_CONTENT]:
            _begin_line(state)
        out[written] = byte
        written += 1
        if byte == QUOTE:
            state[_IN_STRING] = 1
        elif byte in (OPEN_OBJECT, OPEN_ARRAY):
            _open(state, byte)
        elif byte in (CLOSE_OBJECT, CLOSE_ARRAY) and state[_DEPTH]:
            _close(state, byte)
            if not state[_DEPTH]:
                written, ended = _end_line(state, out, lines, written, ended)
    return written, ended


def fresh_state() -> Integers:
    """The state at the beginning of a file."""
    state = np.zeros(len(SplitState), np.int64)
    state[SplitState.LINE_BEGINS] = 1
    return state
