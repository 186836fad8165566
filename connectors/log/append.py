"""Append one record and wait for it: for control records, of which there are few."""

from __future__ import annotations

import threading

from headrace.connectors.log.port import Appender, AppendUnknown, Log
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import BASE_FORMAT, format_headers

APPEND_TIMEOUT_S = 30.0


def append_one(
    log: Log,
    topic: str,
    value: bytes,
    *,
    key: bytes | None = None,
    timeout_s: float = APPEND_TIMEOUT_S,
    needed_format: int = BASE_FORMAT,
    repeats: bool = True,
) -> int:
    """Append a record and return its offset; `needed_format` is the oldest format of reader that understands it.

    `repeats`: it may be in the log twice, see `Log.appender`, also behind records of others.

    Raises AppendUnknown when no delivery report comes in time, or the error of the report.
    """
    outcome: list[int | HeadraceError] = []
    # An appender of its own: a shared one would deliver this record only after everything queued before it.
    appender = log.appender(repeats=repeats)
    try:
        appender.append(
            topic,
            value,
            key=key,
            headers=format_headers(needed_format),
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


def append_with(
    appender: Appender, topic: str, value: bytes, *, key: bytes, timeout_s: float = APPEND_TIMEOUT_S
) -> int:
    """Append a record by an appender that others share, and return its offset. Any thread may call it.

    Raises AppendUnknown when no delivery report comes in time, or the error of the report.
    """
    delivered, outcome = threading.Event(), list[int | HeadraceError]()

    def report(offset: int | None, error: HeadraceError | None) -> None:
        outcome.append(error or offset or 0)
        delivered.set()

    appender.append(topic, value, key=key, headers=format_headers(), on_delivery=report)
    if not delivered.wait(timeout_s):
        raise AppendUnknown(
            f"a record to {topic} was not confirmed in {timeout_s:g} s",
            action="check the broker and look before trying again",
        )
    if isinstance(outcome[0], HeadraceError):
        raise outcome[0]
    return outcome[0]
