"""The compiled loop that takes values out of nested JSON and writes flat objects (see `json_paths`)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from numba import types

from headrace.connectors.formats.kernel_compiler import entry_point, inlined
from headrace.connectors.formats.lines import BACKSLASH, NEWLINE, QUOTE, RETURN, Bytes, Integers

SPACE, TAB, COMMA, COLON = 32, 9, 44, 58
OPEN_ARRAY, CLOSE_ARRAY, OPEN_OBJECT, CLOSE_OBJECT = 91, 93, 123, 125
NULL = 110
"""The first letter of null, with which no other value of JSON begins."""
DEPTH_MAX = 64
"""Deeper messages are read one by one."""
_FIRST, _MEMBER, _NEXT = 0, 1, 2
_BAD = -1


class Tree(NamedTuple):
    """The paths as a tree: the edges of node n are `firsts[n]` to `firsts[n + 1]`.

    Edge e has the key `keys[bounds[e]:bounds[e + 1]]` and leads to node `targets[e]`. Of a node that is a value,
    `names[name_bounds[n]:name_bounds[n + 1]]` is its name in the output, as JSON with its colon.
    """

    firsts: Integers
    targets: Integers
    keys: Bytes
    bounds: Integers
    names: Bytes
    name_bounds: Integers


Flags = npt.NDArray[np.uint8]

_BYTES = types.Array(types.uint8, 1, "C", readonly=True)
_TREE = types.NamedTuple((types.int64[::1], types.int64[::1], _BYTES, types.int64[::1], _BYTES, types.int64[::1]), Tree)
_FLATTENED = (
    _BYTES,
    types.int64[::1],
    types.int64[::1],
    _TREE,
    types.uint8[::1],
    types.int64[::1],
    types.uint8[::1],
    types.int64[:, ::1],
)


@inlined
def _after_spaces(data: Bytes, position: int, end: int) -> int:
    while position < end and data[position] in (SPACE, NEWLINE, RETURN, TAB):
        position += 1
    return position


@inlined
def _after_string(data: Bytes, position: int, end: int) -> tuple[int, bool]:
    """(position behind the string that begins here, _BAD for none; whether it has escapes)"""
    escaped = False
    position += 1
    while position < end:
        byte = data[position]
        if byte == QUOTE:
            return position + 1, escaped
        if byte < SPACE:
            return _BAD, escaped
        if byte == BACKSLASH:
            escaped = True
            position += 1
        position += 1
    return _BAD, escaped


@inlined
def _after_word(data: Bytes, position: int, end: int) -> int:
    """The position behind a number or a word; _BAD where none begins."""
    begin = position
    while position < end:
        byte = data[position]
        # More than JSON allows: the parser of JSON lines checks what is copied, and what is skipped is nobody's
        # value.
        letter = 65 <= byte <= 90 or 97 <= byte <= 122
        if not (letter or 48 <= byte <= 57 or byte in (43, 45, 46)):
            break
        position += 1
    return position if position > begin else _BAD


@inlined
def _child(data: Bytes, begin: int, end: int, tree: Tree, node: int) -> int:
    """The node behind the key in `data`; -1 for none."""
    # One edge after the other: a mapping names a few members of an object, and lengths rule out most keys at once.
    for edge in range(tree.firsts[node], tree.firsts[node + 1]):
        first, length = tree.bounds[edge], tree.bounds[edge + 1] - tree.bounds[edge]
        if length != end - begin:
            continue
        index = 0
        while index < length and tree.keys[first + index] == data[begin + index]:
            index += 1
        if index == length:
            return int(tree.targets[edge])
    return -1


@inlined
def _copied(source: Bytes, begin: int, end: int, out: Bytes, written: int) -> int:
    for index in range(begin, end):
        out[written] = source[index]
        written += 1
    return written


@inlined
def _key(data: Bytes, position: int, end: int, tree: Tree, node: int) -> tuple[int, int]:
    """(position of the value behind a key, _BAD for none; the node of the key, -1 for none)"""
    if data[position] != QUOTE:
        return _BAD, -1
    after, escaped = _after_string(data, position, end)
    # A key with escapes may be one of ours: such a message is read one by one.
    if after == _BAD or (escaped and node >= 0):
        return _BAD, -1
    child = _child(data, position + 1, after - 1, tree, node) if node >= 0 else -1
    position = _after_spaces(data, after, end)
    if position >= end or data[position] != COLON:
        return _BAD, -1
    position = _after_spaces(data, position + 1, end)
    return (position, child) if position < end else (_BAD, -1)


@inlined
def _after_scalar(data: Bytes, position: int, end: int) -> int:
    """The position behind a text, a number or a word; _BAD where none begins."""
    if data[position] == QUOTE:
        return _after_string(data, position, end)[0]
    return _after_word(data, position, end)


@inlined
def _member(data: Bytes, begin: int, end: int, tree: Tree, node: int, out: Bytes, written: int, some: bool) -> int:
    """Write the value of a path, behind a comma if there are others; returns the bytes written."""
    if some:
        out[written] = COMMA
        written += 1
    written = _copied(tree.names, tree.name_bounds[node], tree.name_bounds[node + 1], out, written)
    return _copied(data, begin, end, out, written)


@inlined
def _object(
    data: Bytes, position: int, end: int, tree: Tree, nodes: Integers, arrays: Integers, out: Bytes, written: int
) -> tuple[int, int]:
    """(position behind the object that begins here, _BAD for none; bytes written)"""
    out[written] = OPEN_OBJECT
    written += 1
    some = False
    depth, expected, position = 0, _FIRST, position + 1
    nodes[0], arrays[0] = 0, 0
    while depth >= 0:
        position = _after_spaces(data, position, end)
        if position >= end:
            return _BAD, written
        byte = data[position]
        closing = CLOSE_ARRAY if arrays[depth] else CLOSE_OBJECT
        if byte == closing and expected != _MEMBER:
            depth, expected, position = depth - 1, _NEXT, position + 1
            continue
        if expected == _NEXT:
            if byte != COMMA:
                return _BAD, written
            expected, position = _MEMBER, position + 1
            continue
        child = -1
        if not arrays[depth]:
            position, child = _key(data, position, end, tree, nodes[depth])
            if position == _BAD:
                return _BAD, written
            byte = data[position]
        leaf = child >= 0 and tree.name_bounds[child] < tree.name_bounds[child + 1]
        # A value in the place of an object, or an object in that of a value: the reader of single messages explains.
        if child >= 0 and not leaf and byte not in (OPEN_OBJECT, NULL):
            return _BAD, written
        if byte in (OPEN_OBJECT, OPEN_ARRAY):
            depth += 1
            if leaf or depth >= DEPTH_MAX:
                return _BAD, written
            nodes[depth] = child if byte == OPEN_OBJECT else -1
            arrays[depth] = byte == OPEN_ARRAY
            expected, position = _FIRST, position + 1
            continue
        begin, position = position, _after_scalar(data, position, end)
        if position == _BAD:
            return _BAD, written
        if leaf:
            written = _member(data, begin, position, tree, child, out, written, some)
            some = True
        expected = _NEXT
    out[written], out[written + 1] = CLOSE_OBJECT, NEWLINE
    return position, written + 2


@entry_point(types.void, *_FLATTENED)
def flatten(
    data: Bytes,
    starts: Integers,
    ends: Integers,
    tree: Tree,
    out: Bytes,
    bounds: Integers,
    bad: Flags,
    nesting: Integers,
) -> None:
    """Write each object of message i as a flat one on a line to `out[bounds[i]:bounds[i + 1]]`; nothing where `bad`.

    A message is objects, one behind the other, or an array of objects. `nesting` is that of `room_of_nesting`.
    """
    written = 0
    for message in range(len(starts)):
        bounds[message] = written
        end = ends[message]
        position = _after_spaces(data, starts[message], end)
        in_array = position < end and data[position] == OPEN_ARRAY
        if in_array:
            position = _after_spaces(data, position + 1, end)
            if position < end and data[position] == CLOSE_ARRAY:
                bad[message] = 1
                continue
        done = position >= end and not in_array
        while not done:
            if position >= end or data[position] != OPEN_OBJECT:
                bad[message] = 1
                break
            position, written = _object(data, position, end, tree, nesting[0], nesting[1], out, written)
            if position == _BAD:
                bad[message] = 1
                break
            position = _after_spaces(data, position, end)
            if not in_array:
                done = position >= end
                continue
            if position < end and data[position] == COMMA:
                position = _after_spaces(data, position + 1, end)
                continue
            if position < end and data[position] == CLOSE_ARRAY:
                done = _after_spaces(data, position + 1, end) >= end
            if not done:
                bad[message] = 1
                break
        if bad[message]:
            # The next message overwrites what the bad one has written.
            written = bounds[message]
    bounds[len(starts)] = written


def room_of_nesting() -> Integers:
    """Room for the nodes and the kinds (1 for an array) of what the loop is in."""
    return np.zeros((2, DEPTH_MAX), np.int64)
