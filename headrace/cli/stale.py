"""What `headrace query` shows of an answer that is not current: up to which moment it contains everything."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import chain
from typing import Annotated

import typer

from headrace.schemas.durations import age_text, duration_s
from headrace.terminal.output import Output, one_line

StaleOption = Annotated[
    str | None,
    typer.Option(
        "--stale",
        metavar="D",
        help="Take an answer up to this old (60s, 5m) from a node that cannot serve, as without Kafka.",
    ),
]


class StaleAnswer:
    """How old an answer may be, and how old it is. Raises DurationInvalid."""

    def __init__(self, given: str | None) -> None:
        # An empty text is refused as well: a script with an unset variable asked for something.
        self.within_s = None if given is None else duration_s(given)
        self.as_of: datetime | None = None

    def note(self, as_of: datetime) -> None:
        """The answer contains everything up to a moment."""
        self.as_of = as_of

    def show(self, output: Output) -> None:
        """One line on stderr for an answer that is not current; none where the document has the moment."""
        if self.as_of is None or (output.json_output and self.within_s is not None):
            return
        if output.json_output:
            output.note(json.dumps({"as_of": _iso(self.as_of)}))
            return
        age_s = max(0.0, (datetime.now(UTC) - self.as_of).total_seconds())
        output.note(f"not current: the answer has everything up to {_iso(self.as_of)}, {age_text(age_s)} ago")

    def document(self, rows: Iterator[bytes]) -> Iterator[bytes]:
        """JSON rows as one object with `as_of`, null for a current answer, where an older one was allowed."""
        # By what was asked and not by what came: a script must find the same shape in every answer.
        if self.within_s is None:
            yield from rows
            return
        as_of = None if self.as_of is None else _iso(self.as_of)
        yield f'{{"as_of":{json.dumps(as_of)},"rows":'.encode()
        yield from one_line(chain(rows, (b"}",)))


def _iso(moment: datetime) -> str:
    return f"{moment:%Y-%m-%dT%H:%M:%S}.{moment.microsecond // 1_000:03d}Z"
