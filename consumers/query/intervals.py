"""Intervals in the planner's tree, so that they mean there what they mean to DuckDB. Pure.

The planner's parser takes one number and one unit out of a text, and drops the rest: `1 day 12:00:00` is a day to it.
Units that only texts may have, such as `5 min`, it writes where DuckDB takes them for a name.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest

from sqlglot import exp
from sqlglot.tokenizer_core import Token, TokenType

_UNITS = frozenset(
    {
        *("MICROSECOND", "MILLISECOND", "SECOND", "MINUTE", "HOUR", "DAY", "WEEK", "MONTH", "QUARTER", "YEAR"),
        *("DECADE", "CENTURY", "MILLENNIUM", "CENTURIES", "MILLENNIA"),
    }
)
"""Units that SQL may have behind an interval; each may end in an S."""
_UNITS_OF_TEXTS = {
    **dict.fromkeys(("USEC", "USECS"), "MICROSECOND"),
    **dict.fromkeys(("MSEC", "MSECS"), "MILLISECOND"),
    **dict.fromkeys(("SEC", "SECS"), "SECOND"),
    **dict.fromkeys(("MIN", "MINS"), "MINUTE"),
    **dict.fromkeys(("HR", "HRS"), "HOUR"),
    **dict.fromkeys(("MON", "MONS"), "MONTH"),
    **dict.fromkeys(("YR", "YRS"), "YEAR"),
}
"""What texts may have instead, in full."""
_UNITS_OF_PARSER = frozenset({"Q"})
"""What texts may have to the parser alone, which writes it in full: DuckDB refuses it."""


def are_understood(tokens: Sequence[Token]) -> bool:
    """Whether the parser takes the whole of each interval, and no unit that SQL does not have."""
    for token, text, unit in zip_longest(tokens, tokens[1:], tokens[2:]):
        if token.token_type is not TokenType.INTERVAL or text is None:
            continue
        if text.token_type is TokenType.STRING and (parts := exp.INTERVAL_STRING_RE.findall(text.text)):
            # More than one part stays one text.
            if len(parts) == 1 and not _is_whole(text.text, parts[0][1]):
                return False
        elif unit is not None and unit.token_type is TokenType.VAR and not _is_unit(unit.text):
            # To DuckDB it is the name of an item: `SELECT INTERVAL 5 min`.
            return False
    return True


def write_in_full(tree: exp.Expression) -> bool:
    """Give each interval a unit that SQL has; False where one has none that is known."""
    for interval in tree.find_all(exp.Interval):
        unit = interval.args.get("unit")
        if isinstance(unit, exp.Var):
            name = unit.name.upper()
            # Behind brackets it is the name of an item too: `SELECT INTERVAL ('5') min`.
            is_of_text = isinstance(interval.this, exp.Literal) and name in _UNITS_OF_TEXTS
            if not _is_unit(name) and not is_of_text:
                return False
            unit.set("this", _UNITS_OF_TEXTS.get(name, name))
    return True


def _is_whole(text: str, unit: str) -> bool:
    """Whether a text is one number and one unit, which DuckDB has too."""
    return exp.INTERVAL_STRING_RE.fullmatch(text) is not None and unit.upper() not in _UNITS_OF_PARSER


def _is_unit(text: str) -> bool:
    return text.upper() in _UNITS or text.upper().removesuffix("S") in _UNITS
