"""JSON files that are no JSON lines: arrays over several lines, and objects printed over several lines.

A loop over the bytes puts each element on a line of its own, and the parser of JSON lines reads those, column by
column. The elements of one producer still share their shape, their indentation too. What is broken costs its own
element and not the rest of the file: no string continues on another line, and an object that begins a line inside of an
unclosed one is the next element.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Protocol

import numpy as np
import pyarrow as pa

from headrace.connectors.formats.interface import LINE_COLUMN, REJECTED_LINES, ParseResult
from headrace.connectors.formats.lines import Integers

ARRAY_LINE_BYTES_MAX = 1 << 20
"""An array on one line that is longer is split as well: otherwise it would be read element by element."""
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


class ByteSource(Protocol):
    """Bytes of a file from front to back."""

    @property
    def bytes_read(self) -> int:
        """Stored bytes read so far."""
        ...

    def read(self, size: int) -> bytes:
        """Up to `size` bytes; fewer only at the end."""
        ...


class PeekedSource:
    """A source whose first bytes have been looked at."""

    def __init__(self, source: ByteSource, first: bytes) -> None:
        self._source = source
        self._first = first

    @property
    def bytes_read(self) -> int:
        """See ByteSource."""
        return self._source.bytes_read

    def read(self, size: int) -> bytes:
        """See ByteSource."""
        if not self._first:
            return self._source.read(size)
        part, self._first = self._first[:size], self._first[size:]
        return part if len(part) == size else part + self._source.read(size - len(part))


class ElementSource:
    """The elements of a source as lines, and the lines of the file where they begin."""

    def __init__(self, source: ByteSource) -> None:
        from headrace.connectors.formats.json_document_kernel import fresh_state

        self._source = source
        self._state = fresh_state()
        self._held = bytearray()
        self._ended = False
        self._begins: list[Integers] = []
        self._dropped = 0

    @property
    def bytes_read(self) -> int:
        """See ByteSource."""
        return self._source.bytes_read

    def read(self, size: int) -> bytes:
        """See ByteSource."""
        while len(self._held) < size and not self._ended:
            self._split(self._source.read(size), size)
        part = bytes(self._held[:size])
        del self._held[:size]
        return part

    def file_lines(self, parsed: ParseResult, first: int) -> ParseResult:
        """A result whose lines are numbered as in the file; it begins with the element number `first`."""
        begins = np.concatenate(self._begins) if self._begins else np.empty(0, np.int64)
        tables = {name: _numbered(table, LINE_COLUMN, begins, self._dropped) for name, table in parsed.tables.items()}
        rejected = _numbered(parsed.rejected, "line", begins, self._dropped)
        # The next block begins behind this one: what was numbered is not needed again.
        kept = first + parsed.lines
        self._begins, self._dropped = [begins[kept - self._dropped :]], kept
        return replace(parsed, tables=tables, rejected=rejected)

    def unclosed(self) -> ParseResult | None:
        """The rejection of a file that ends inside of an array; None for one that does not."""
        from headrace.connectors.formats.json_document_kernel import SplitState

        if not self._state[SplitState.IN_ARRAY]:
            return None
        reason = "the file ends inside of an array: elements may be missing"
        return ParseResult({}, pa.table([[int(self._state[SplitState.LINE])], [reason]], schema=REJECTED_LINES), 0)

    def _split(self, data: bytes, size: int) -> None:
        from headrace.connectors.formats.json_document_kernel import SplitState, split_elements

        self._ended = len(data) < size
        out, lines = np.empty(2 * len(data) + 1, np.uint8), np.empty(2 * len(data) + 1, np.int64)
        written, ended = split_elements(np.frombuffer(data, np.uint8), self._state, out, lines)
        self._held += out[:written].tobytes()
        self._begins.append(lines[:ended].copy())
        if self._ended and self._state[SplitState.CONTENT]:
            self._begins.append(self._state[SplitState.FIRST_LINE : SplitState.FIRST_LINE + 1].copy())


def element_source(source: ByteSource) -> ByteSource:
    """The same bytes for JSON lines, else an ElementSource."""
    first = source.read(ARRAY_LINE_BYTES_MAX + len(_BYTE_ORDER_MARK) + 1)
    content = first.removeprefix(_BYTE_ORDER_MARK)
    if _is_document(content):
        return ElementSource(PeekedSource(source, content))
    return PeekedSource(source, first)


def _is_document(content: bytes) -> bool:
    """Whether a file that begins so is a document of several lines: its first line is the beginning of one."""
    line, newline, _ = content.lstrip(b" \t\r\n").partition(b"\n")
    if line[:1] not in (b"[", b"{"):
        return False
    if line[:1] == b"[" and len(line) > ARRAY_LINE_BYTES_MAX:
        return True
    # A line that is longer than what was looked at is one reading, or no JSON at all.
    if not newline and line[:1] == b"{":
        return False
    try:
        json.loads(line)
    except (ValueError, RecursionError):
        return True
    return False


def _numbered(table: pa.Table, name: str, begins: Integers, dropped: int) -> pa.Table:
    index = table.schema.get_field_index(name)
    if index < 0:
        return table
    numbers = np.asarray(table.column(index)) - dropped
    return table.set_column(index, name, pa.array(begins[numbers], pa.int64()))
