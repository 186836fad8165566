"""Append one record and wait for it: for control records, of which there are few."""

from __future__ import annotations

from connectors.log.port import AppendUnknown, Log
from schemas.errors import HeadraceError
from schemas.framing import format_headers

APPEND_TIMEOUT_S = 30.0


def append_one(
    log: Log, topic: str, value: bytes, *, key: bytes | None = None, timeout_s: float = APPEND_TIMEOUT_S
) -> int:
    """The offset of the record. Raises AppendUnknown when its fate is not known in time, or what the log refused it with."""
    outcome: list[int | HeadraceError] = []
    appender = log.appender()
    try:
        appender.append(
            topic,
            value,
            key=key,
            headers=format_headers(),
            on_delivery=lambda offset, error: outcome.append(error or offset or 0),
        )
        appender.flush(timeout_s)
    finally:
        appender.close()
    if not outcome:
        raise AppendUnknown(
            f"a record to {topic} was not confirmed in {timeout_s:g} s",
            action="check the broker and look before trying again",
        )
    if isinstance(outcome[0], HeadraceError):
        raise outcome[0]
    return outcome[0]
