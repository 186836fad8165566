"""What templates and the kernel tell each other: how values end, what stands between them, and what was found."""

from __future__ import annotations

from enum import IntEnum
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from connectors.formats.lines import Integers, Words

Floats = npt.NDArray[np.float64]
States = npt.NDArray[np.uint8]


class Kind(IntEnum):
    """Where a value ends.

    A series at a space that no backslash hides, a text at the first byte of what follows it or with the line, a number where its grammar ends.
    """

    SERIES = 0
    TEXT = 1
    INTEGER = 2
    FLOAT = 3


class State(IntEnum):
    """What is known of a number: its value, only where its text stands, or that it is the word null."""

    COMPUTED = 0
    TEXTUAL = 1
    NULL = 2


class Glue(NamedTuple):
    """The bytes before each value and after the last one, in words of eight bytes.

    The glue before value c is words `bounds[c]` to `bounds[c + 1]`, each under its mask, of so many bytes.
    """

    words: Words
    masks: Words
    lengths: Integers
    bounds: Integers


class Ends(NamedTuple):
    """How each value ends: its kind, and for a text the byte at which it stops, behind so many double quotes.

    A newline stands for the end of the line; a text that stops there holds no separator.
    """

    kinds: Integers
    stops: Integers
    quotes: Integers


class Values(NamedTuple):
    """What was found, as arrays of (value, line).

    Where it starts and ends, of a number only where it stays text; of numbers also their state, and which one it is.
    """

    starts: Integers
    ends: Integers
    integers: Integers
    floats: Floats
    states: States
