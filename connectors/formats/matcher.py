"""Finding the shapes of the lines of an input, and taking them shape by shape."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, Protocol, TypeVar

import numpy as np

from connectors.formats.lines import Integers, Lines
from connectors.formats.templates import Matched, Template, match

TEMPLATES_MAX = 256
POOR_IN_A_ROW = 8
SCAN_AT_ONCE = 24
# A shape is kept for the next chunks only if it took more than one in so many of the lines it was tried on.
WORTH_SHARE = 1_024


class Shape(Protocol):
    """A template together with what its values mean."""

    @property
    def template(self) -> Template:
        """How the lines of this shape look."""


S = TypeVar("S", bound=Shape)


@dataclass(slots=True)
class Matcher(Generic[S]):
    """Takes the lines of an input by their shapes; what no shape fits comes back to be scanned.

    `shape_of` reads one line and answers its shape (None when it has none), `take` keeps the rows of a match and answers which lines it kept.
    Shapes are learnt from the first line that none of the known ones fits, up to `TEMPLATES_MAX` a chunk, as long as they take many lines.
    """

    lines: Lines
    shape_of: Callable[[int], S | None]
    take: Callable[[S, Matched], Integers]
    shapes: list[S] = field(default_factory=list)

    def leave(self, rows: Integers) -> Integers:
        """Take what fits of the lines `rows` (ascending); the rest comes back, ascending."""
        for shape in self.shapes:
            rows = self._without_taken(shape, rows)
        odd: list[int] = []
        learnt = poor = 0
        while len(rows) > SCAN_AT_ONCE and learnt < TEMPLATES_MAX and poor < POOR_IN_A_ROW:
            left = self._learn(rows, odd)
            # A shape costs as much as scanning a few lines: where shapes are rarer than that, looking for more of them does not pay.
            poor = poor + 1 if len(rows) - len(left) <= SCAN_AT_ONCE else 0
            learnt, rows = learnt + 1, left
        return np.concatenate((np.array(odd, np.int64), rows))

    def _learn(self, rows: Integers, odd: list[int]) -> Integers:
        """Take all lines like the first of `rows`; that one is odd when its own shape does not fit it."""
        sample = int(rows[0])
        shape = self.shape_of(sample)
        left = rows if shape is None else self._without_taken(shape, rows)
        if len(left) and left[0] == sample:
            odd.append(sample)
            left = left[1:]
        if shape is not None and len(self.shapes) < TEMPLATES_MAX and (len(rows) - len(left)) * WORTH_SHARE > len(rows):
            self.shapes.append(shape)
        return left

    def _without_taken(self, shape: S, rows: Integers) -> Integers:
        if not len(rows):
            return rows
        matched = match(self.lines, shape.template, rows)
        if not len(matched.rows):
            return rows
        taken = self.take(shape, matched)
        if len(taken) == len(rows):
            return rows[:0]
        return rows[~np.isin(rows, taken, assume_unique=True)]
