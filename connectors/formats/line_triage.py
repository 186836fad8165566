r"""Which lines are certainly no line protocol, by one regular expression over all of them.

The scanner reads a line in some microseconds, and a client may send millions that are nothing. The expression accepts
every line that the scanner accepts, and most of what it rejects does not match. RE2 takes time that is linear in the
bytes.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from headrace.connectors.formats.interface import ScansRefused
from headrace.connectors.formats.lines import Booleans, Integers, Lines
from headrace.connectors.formats.row_rules import UTF_8

_NUMBER = r"[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[iu]?"
_WORD = r"[tTfF]|true|True|TRUE|false|False|FALSE|[+-]?(?i:nan|inf|infinity)"
_STRING = r'"(?:[^"\\]|\\.)*"'
_FIELD = rf"(?:[^ ,=\\]|\\.)+=(?:{_NUMBER}|{_WORD}|{_STRING})"
_SERIES = r"(?:[^ ,\\]|\\.)(?:[^ \\]|\\.)*"
_READING = rf"{_SERIES} +{_FIELD}(?:,{_FIELD})*(?: +[+-]?[0-9]+)?"
LINE = rf"(?s)^[ \t]*(?:{_READING}|#.*)?[ \t]*\r?\n\z"
"""Of bytes, read in Latin-1, with the newline; blank lines and comments as well."""
ODD_FACTOR = 20
"""Lines without a common shape are matched together, which takes a twentieth of what scanning each takes."""
UNEXPLAINED = "the line is not line protocol"


class Triage:
    """Decides for one input which of its odd lines the scanner reads. Not thread-safe."""

    def __init__(self, lines: Lines, explained_max: int | None, scanned_max: int | None) -> None:
        self._lines = lines
        self._explained_max = explained_max
        self._scanned_max = scanned_max
        messages = 1 if lines.messages is None or not lines.count else int(lines.messages[-1]) + 1
        self._explained = np.zeros(messages, np.int64)
        self._scanned, self._odd = np.zeros(messages, np.int64), np.zeros(messages, np.int64)

    def split(self, rows: Integers) -> tuple[Integers, Integers]:
        """(lines for the scanner, ascending; lines that are rejected without a reason of their own).

        Raises ScansRefused.
        """
        limit = self._explained_max
        self._odd += self._counts(rows)
        self._refuse_above(self._odd, ODD_FACTOR)
        if limit is None or len(rows) <= limit:
            self._count_scans(rows)
            return rows, rows[:0]
        rows = np.sort(rows)
        plausible = self._plausible(rows)
        hopeless = rows[~plausible]
        owners = self._messages_of(hopeless)
        rank = np.arange(len(hopeless)) - np.searchsorted(owners, owners) + self._explained[owners]
        self._explained += self._counts(hopeless)
        self._count_scans(rows[plausible])
        explained = rank < limit
        return np.sort(np.concatenate((rows[plausible], hopeless[explained]))), hopeless[~explained]

    def _count_scans(self, rows: Integers) -> None:
        self._scanned += self._counts(rows)
        self._refuse_above(self._scanned, 1)

    def _refuse_above(self, counts: Integers, factor: int) -> None:
        if self._scanned_max is not None and (many := counts > factor * self._scanned_max).any():
            raise ScansRefused(np.flatnonzero(many).tolist())

    def _counts(self, rows: Integers) -> Integers:
        """How many of these lines each message has."""
        return np.bincount(self._messages_of(rows), minlength=len(self._scanned))

    def _messages_of(self, rows: Integers) -> Integers:
        return np.zeros(len(rows), np.int64) if self._lines.messages is None else self._lines.messages[rows]

    def _plausible(self, rows: Integers) -> Booleans:
        """Which lines the scanner may accept."""
        texts = _physical_lines(self._lines).take(pa.array(rows))
        found: Booleans = np.array(pc.match_substring_regex(texts, LINE), np.bool_)
        if found.any():
            found[found] = np.asarray(pc.match_substring_regex(texts.filter(pa.array(found)), UTF_8))
        return found


def no_readings(lines: Lines, rows: Integers) -> Booleans:
    """Which of these lines are certainly no reading of their own."""
    texts = _physical_lines(lines).take(pa.array(rows))
    return ~np.array(pc.match_substring_regex(texts, LINE), np.bool_)


def _physical_lines(lines: Lines) -> pa.Array:
    """Every line with its newline, over the bytes of the input."""
    offsets = np.concatenate((np.zeros(1, np.int64), lines.newlines + 1))
    return pa.Array.from_buffers(
        pa.large_binary(), lines.count, [None, pa.py_buffer(offsets), pa.py_buffer(np.ascontiguousarray(lines.data))]
    )
