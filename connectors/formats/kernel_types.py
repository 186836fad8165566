"""The types that templates and the kernel exchange: the grammar of a line in, its values out.

They import no Numba, so that a process without raw lines never loads it. Numba compiles their layout into the
kernel: whoever edits this module updates `STAMP` there (tests/unit/formats/test_kernel.py prints the new
one).
"""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from headrace.connectors.formats.lines import Integers, Words

Floats = npt.NDArray[np.float64]
NumberStates = npt.NDArray[np.uint8]


class ValueKind(IntEnum):
    """Where a value ends.

    A series ends at an unescaped space, a text at its delimiter or with the line, a number where its grammar
    ends.
    """

    SERIES = 0
    TEXT = 1
    INTEGER = 2
    FLOAT = 3


class NumberState(IntEnum):
    """The state of a number: computed, deferred (only its text is known), or the word null."""

    COMPUTED = 0
    DEFERRED = 1
    NULL = 2


class Literals(NamedTuple):
    """The constant bytes before each value and after the last one, in words of eight bytes.

    The literal before value c is words `bounds[c]` to `bounds[c + 1]`, each under its mask and `lengths`
    bytes long.
    """

    words: Words
    masks: Words
    lengths: Integers
    bounds: Integers


class ValueGrammar(NamedTuple):
    """How each value ends: its kind, and for a text the delimiter byte and how many double quotes precede it.

    A newline as delimiter means the end of the line; such a text contains no separator.
    """

    kinds: Integers
    delimiters: Integers
    quotes: Integers


class Values(NamedTuple):
    """The values of the matched lines, as arrays of (value, line).

    Texts and deferred numbers have start and end; every number has a state, and its value if it was computed.
    """

    starts: Integers
    ends: Integers
    integers: Integers
    floats: Floats
    states: NumberStates
