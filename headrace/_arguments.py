"""Arguments of a client's methods, checked where they come in: the error names the argument.

Without this a wrong type is an error of some library, or of a node, far from the call.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import Any

from headrace.producers.acks import check_quorum
from headrace.producers.settings import WriteSettings
from headrace.producers.writer import WriterInvalid, WriterSettings
from headrace.schemas.errors import HeadraceError
from headrace.schemas.tables import TimeResolution

SHOWN_CHARACTERS_MAX = 60


class ArgumentInvalid(HeadraceError):
    """An argument of another type, or outside of what it may be."""

    exit_code = 2


def given_text(name: str, given: object) -> str:
    """A text. Raises ArgumentInvalid."""
    if not isinstance(given, str):
        raise _invalid(name, given, "give a text")
    return given


def given_sql(given: object) -> str:
    """A statement. Raises ArgumentInvalid."""
    if not given_text("sql", given).strip():
        raise ArgumentInvalid("sql is empty", action="give a statement, such as SELECT 1")
    return str(given)


def given_texts(name: str, given: object) -> tuple[str, ...]:
    """One text or several. Raises ArgumentInvalid."""
    if isinstance(given, str):
        return (given,)
    items = tuple(given) if isinstance(given, Iterable) and not isinstance(given, bytes | Mapping) else (None,)
    if not all(isinstance(item, str) for item in items):
        raise _invalid(name, given, "give a text, or a list of texts")
    return items


def given_number(name: str, given: object, least: int) -> int:
    """A whole number of at least `least`. Raises ArgumentInvalid."""
    number = _whole(given)
    if number is None or number < least:
        raise _invalid(name, given, f"give a whole number of at least {least}")
    return number


def given_tags(given: object) -> dict[str, tuple[str, ...]]:
    """The values of tags by name; of one tag a text or several. Raises ArgumentInvalid."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise _invalid("tags", given, 'give a dict such as {"pump": ["p1", "p2"]}')
    return {given_text("a name in tags", tag): given_texts(f"tags[{tag!r}]", values) for tag, values in given.items()}


def given_offsets(given: object) -> dict[str, int]:
    """Offsets by topic. Raises ArgumentInvalid."""
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise _invalid("after", given, "give what flush returns")
    return {
        given_text("a topic in after", topic): given_number(f"after[{topic!r}]", offset, 0)
        for topic, offset in given.items()
    }


def given_parameters(given: object) -> Mapping[str, Any]:
    """Values of `$name` by name. Raises ArgumentInvalid."""
    if given is not None and not isinstance(given, Mapping):
        raise _invalid("parameters", given, 'give a dict such as {"since": 5}')
    return {given_text("a name in parameters", name): value for name, value in (given or {}).items()}


def given_nanoseconds(name: str, given: object) -> int | None:
    """A timedelta in nanoseconds, None as it is. Raises ArgumentInvalid."""
    if given is not None and not isinstance(given, timedelta):
        raise _invalid(name, given, "give a timedelta, or None")
    return None if given is None else given // timedelta(microseconds=1) * 1_000


def writer_settings(
    defaults: WriteSettings, quorum: object = None, timeout_ms: object = None, resolution: str | None = None
) -> WriterSettings:
    """Settings of a writer; None is what the settings of the client have.

    Raises ArgumentInvalid, QuorumInvalid, and WriterInvalid for an unknown resolution.
    """
    if resolution is not None and resolution not in tuple(TimeResolution):
        raise WriterInvalid(f"resolution {resolution!r} is unknown", action=f"use one of {', '.join(TimeResolution)}")
    copies = defaults.quorum
    if quorum is not None:
        number = _whole(quorum)
        if number is None:
            raise _invalid("quorum", quorum, "give a whole number")
        # How many members there are is known to the writer over Kafka, or to the node.
        check_quorum(number, number)
        copies = number
    return WriterSettings(
        copies,
        defaults.quorum_timeout_ms if timeout_ms is None else given_number("quorum_timeout_ms", timeout_ms, 1),
        defaults.compression,
        resolution=TimeResolution(resolution or defaults.time_resolution),
        resolution_required=resolution is not None,
    )


def _whole(given: object) -> int | None:
    """A whole number, also one of numpy; None for everything else."""
    try:
        return None if isinstance(given, bool) else operator.index(given)  # type: ignore[arg-type]
    except TypeError:
        return None


def _invalid(name: str, given: object, action: str) -> ArgumentInvalid:
    shown = repr(given)
    if len(shown) > SHOWN_CHARACTERS_MAX:
        shown = f"{shown[:SHOWN_CHARACTERS_MAX]}…"
    what = "None" if given is None else f"{shown}, which is of type {type(given).__name__}"
    return ArgumentInvalid(f"{name} is {what}", action=action)
