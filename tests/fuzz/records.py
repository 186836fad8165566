"""Records of the topics beside the forward logs: golden ones with a few bytes changed, or with hostile values that
Avro carries unharmed.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from headrace.schemas.framing import HEADER_BYTES, codec
from tests.fuzz.mutation import WIDE_EDGES, mutated
from tests.golden_values import goldens

TEXTS = (
    "",
    "n1",
    "n2",
    "n4",
    "plant",
    "pumps",
    "..",
    "a/../b",
    "/",
    "\0",
    "\x1b[2J",
    "é",
    "x" * 2_000,
    "{}",
    "\n",
    "dlq.a",
)
BYTES = (b"", b"\0" * 16, b"\xff" * 16, b"\xff\xfe", bytes(8))
FLOATS = (float("nan"), float("inf"), -0.0)
SMALL = (1, 2, 3, 7)


class Records:
    """Values of some kinds of schema, most of them changed."""

    def __init__(self, *schemas: str, more: Sequence[tuple[str, bytes]] = ()) -> None:
        """`more`: (schema, value) of records beside the golden ones."""
        golden = [(each.schema, each.encode(each.value)) for each in goldens() if each.schema in schemas]
        self._values = [*golden, *more]

    def draw(self, chance: random.Random) -> bytes:
        """One value."""
        schema, value = chance.choice(self._values)
        kind = chance.random()
        if kind < 0.1:
            return value
        if kind < 0.5:
            return mutated(value, chance, chance.choice((0, HEADER_BYTES, HEADER_BYTES, HEADER_BYTES)))
        if kind < 0.52:
            return b""
        return hostile(schema, value, chance)


def hostile(schema: str, value: bytes, chance: random.Random) -> bytes:
    """The record with a few values changed; as it is where the schema has no room for them."""
    record = codec(schema).decode(value)
    for _ in range(chance.choice((1, 1, 2, 4))):
        record = _changed(record, chance)
    # A symbol that the schema does not have, bytes of another length, or a number beyond the type: no record.
    with suppress(Exception):
        return codec(schema).encode(record)
    return value


def _changed(value: Any, chance: random.Random) -> Any:
    """A value like this one: one leaf of a record or list is another one."""
    if isinstance(value, dict) and value:
        name = chance.choice(list(value))
        return {**value, name: _changed(value[name], chance)}
    if isinstance(value, tuple):
        return value[0], _changed(value[1], chance)
    if isinstance(value, list):
        kind = chance.random()
        if not value or kind < 0.2:
            return []
        at = chance.randrange(len(value))
        return value * 2 if kind < 0.4 else [*value[:at], _changed(value[at], chance), *value[at + 1 :]]
    return _leaf(value, chance)


def _leaf(value: Any, chance: random.Random) -> Any:
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return chance.choice((*WIDE_EDGES, *SMALL, value + 1, value - 1, -value))
    if isinstance(value, float):
        return chance.choice(FLOATS)
    if isinstance(value, str):
        return chance.choice((*TEXTS, value * 2))
    if isinstance(value, bytes):
        return mutated(value, chance) if chance.random() < 0.7 else chance.choice(BYTES)
    return chance.choice((None, *WIDE_EDGES, *TEXTS))
