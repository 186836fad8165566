"""The bounds of a scan as conditions in SQL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from headrace.consumers.query.views import literal, quoted
from headrace.schemas.tables import TIME_COLUMN


def bounds_sql(start_ns: int | None, end_ns: int | None, tags: Mapping[str, Sequence[str]]) -> list[str]:
    """Time in [start_ns, end_ns), and the values of tags, "" for an absent one."""
    conditions = [
        f"{quoted(TIME_COLUMN)} {sign} make_timestamp_ns({bound})"
        for sign, bound in ((">=", start_ns), ("<", end_ns))
        if bound is not None
    ]
    return conditions + [_among(tag, values) for tag, values in tags.items()]


def _among(tag: str, values: Sequence[str]) -> str:
    # Stores take an absent tag for an empty text; the view shows null.
    condition = f"{quoted(tag)} IN ({', '.join(map(literal, values))})" if values else "false"
    return f"({condition} OR {quoted(tag)} IS NULL)" if "" in values else condition
