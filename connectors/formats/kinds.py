"""The kinds of values in a line, by where they end, and what is known of a number."""

from __future__ import annotations

from enum import IntEnum


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
