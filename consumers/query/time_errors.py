"""The error of a text that DuckDB cannot take for a time: it names the text or its parameter, and shows a time."""

from __future__ import annotations

import re

from headrace.consumers.query.parameters import READER
from headrace.consumers.query.query_errors import QueryInvalid

TEXT_LENGTH_MAX = 100
# DuckDB keeps times in nanoseconds as INT64, and names that type.
_BEFORE, _BEHIND = "Could not convert string '", "' to INT64"
_POINTED = re.compile(r"^(?P<line>LINE \d+: .*)\n(?P<space> *)\^+$", re.MULTILINE)
_WRITTEN = re.compile(rf"'|(?P<parameter>{READER}\('\w+'\))")
_BOUND = re.compile(r"^LINE 1: SET VARIABLE (?P<variable>\w+) = CAST", re.MULTILINE)


def time_invalid(text: str) -> QueryInvalid | None:
    """The error of a text that the SQL or a parameter gives where a time belongs; None for any other error of DuckDB.

    A parameter is named as its variable, see `BoundStatement.shown`.
    """
    # Searched for once each: DuckDB repeats what the SQL has, and that may be a megabyte of such texts.
    begin, end = text.find(_BEFORE) + len(_BEFORE), text.find(f"{_BEHIND}\n")
    if begin < len(_BEFORE) or end < begin:
        return None
    pointed, bound = _POINTED.search(text, end), _BOUND.search(text, end)
    if pointed is None:
        return None
    value, kinds = f"'{text[begin:end][:TEXT_LENGTH_MAX]}'", "is neither a time nor a whole number"
    if bound is not None:
        # A client that sends a time means one.
        message = f"{READER}('{bound['variable']}') is {value}, which is no time"
    # A value of a row has no place in the SQL: what is pointed at then is the conversion.
    elif (written := _WRITTEN.match(pointed["line"], len(pointed["space"]))) is None:
        return None
    elif written["parameter"]:
        message = f"{written['parameter']} is {value}, which {kinds}"
    else:
        message = f"{value} {kinds}"
    # Which of the two the place takes is nowhere in the text of DuckDB: both are INT64 there.
    number = "" if bound is not None else "; a whole number has digits alone"
    return QueryInvalid(message, action=f"a time is '2026-01-31 12:00:00' or '2026-01-31', in UTC{number}")
