"""Durations as people write them: `60s`, `1h30m`, a number of seconds, or a timedelta."""

from __future__ import annotations

import re
from datetime import timedelta

from headrace.schemas.errors import HeadraceError

DURATION_S_MAX = 366 * 86_400
"""A duration is shorter than a year: a longer one is a mistake, such as milliseconds."""
_UNIT_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3_600, "d": 86_400}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhd])", re.ASCII)
_WHOLE = re.compile(rf"(?:{_PART.pattern})+", re.ASCII)
_NUMBER = re.compile(r"\d+(?:\.\d+)?", re.ASCII)


class DurationInvalid(HeadraceError):
    """A text or number that is no duration."""

    exit_code = 2


def duration_s(given: float | str | timedelta) -> float:
    """A duration in seconds. Raises DurationInvalid."""
    seconds = _seconds(given)
    if seconds is None or not 0 <= seconds <= DURATION_S_MAX:
        raise DurationInvalid(
            f"{given!r} is not a duration from 0 s to 366 d",
            action="for example 60s, 5m, 1h30m, or a number of seconds",
        )
    return seconds


def _seconds(given: object) -> float | None:
    if isinstance(given, timedelta):
        return given.total_seconds()
    if isinstance(given, int | float) and not isinstance(given, bool):
        # Compared first: JSON has integers that no float holds. NaN fails every comparison.
        return float(given) if 0 <= given <= DURATION_S_MAX else None
    if not isinstance(given, str):
        return None
    text = given.strip()
    if _NUMBER.fullmatch(text):
        return float(text)
    if not _WHOLE.fullmatch(text):
        return None
    return sum(float(count) * _UNIT_SECONDS[unit] for count, unit in _PART.findall(text))


def age_text(seconds: float) -> str:
    """An age for people, in one unit: `0.4 s`, `12 s`, `5 min`, `3.2 h`."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7_200 else f"{seconds / 3_600:.1f} h"
