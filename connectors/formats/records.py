"""Records that go on over several lines inside quotes.

A line that ends inside a quoted string is joined with the next ones only if the whole is a good record; otherwise it stays alone (and is refused),
so that one lost quote costs one line and not the rest of the file.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from connectors.formats.lines import BACKSLASH, QUOTE, Booleans, Lines, positions_of

OPEN_LINES_MAX = 256
OPEN_BYTES_MAX = 1 << 20

Reads = Callable[[bytes], bool | None]
"""Whether a text is a good record; None when it ends inside a quoted string."""


@dataclass(frozen=True, slots=True)
class Records:
    """`joined`: first to last line of the records that take several. `open_from`: the line whose string is still open at the end, or the count."""

    joined: dict[int, int]
    open_from: int


def records_of(lines: Lines, wanted: Booleans, reads: Reads, *, escapes: bool) -> Records:
    """Find the records of several lines. With `escapes` a backslash may hide a quote, so that counting them is not enough."""
    quotes = positions_of(lines.data, QUOTE)
    if not len(quotes):
        return Records({}, lines.count)
    per_line = np.bincount(np.searchsorted(lines.newlines, quotes), minlength=lines.count)
    suspicious = per_line % 2 == 1
    if escapes:
        escaped = np.searchsorted(lines.newlines, positions_of(lines.data, BACKSLASH))
        suspicious[escaped[per_line[escaped] > 0]] = True
    joined: dict[int, int] = {}
    done, open_from = -1, lines.count
    for first in np.flatnonzero(suspicious & wanted).tolist():
        if first <= done or reads(lines.text(first)) is not None:
            continue
        last, reaches_end = _closing_line(lines, first, per_line > 0, reads)
        if last is not None:
            joined[first] = done = last
        elif reaches_end:
            open_from = min(open_from, first)
    return Records(joined, open_from)


def _closing_line(lines: Lines, first: int, with_quote: Booleans, reads: Reads) -> tuple[int | None, bool]:
    """The line that closes the string `first` leaves open, and whether the end of the input came before that could be told."""
    for last in range(first + 1, min(first + OPEN_LINES_MAX, lines.count)):
        if not lines.same_message(first, last) or lines.ends[last] - lines.starts[first] > OPEN_BYTES_MAX:
            return None, False
        if with_quote[last]:
            outcome = reads(lines.text(first, last))
            if outcome is not None:
                return (last, False) if outcome else (None, False)
    return None, first + OPEN_LINES_MAX >= lines.count
