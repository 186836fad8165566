"""Errors of queries as Arrow Flight carries them: a status that any client knows, and the error as JSON beside it."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.flight as flight
import structlog

from headrace.consumers.query.query_errors import QueryTimeout
from headrace.schemas.errors import HeadraceError

TRACE_FRAMES = 3
_log = structlog.get_logger(__name__)


class NotOffered(pa.ArrowNotImplementedError):  # type: ignore[misc]
    """What Flight could do, but a node does not. Its status is UNIMPLEMENTED, after which drivers do without.

    No class of Flight has this status, so there is no JSON beside it.
    """

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is not offered over Flight; a ticket is SQL; see SHOW TABLES")

    @property
    def __notes__(self) -> list[str]:
        # Arrow appends the traceback to the message, unless it cannot format the error.
        raise RuntimeError("the inside of a node goes to no client")


def flight_error(error: HeadraceError) -> flight.FlightError:
    """The Flight error of a typed one; `extra_info` has `{"type", "message", "action", "retriable"}` as JSON."""
    document = {
        "type": type(error).__name__,
        "message": error.message,
        "action": error.action,
        "retriable": error.retriable,
    }
    text = f"{error.message}; {error.action}" if error.action else error.message
    # Clients retry what is unavailable, so this comes before the kind of the error.
    status = flight.FlightUnavailableError if error.retriable else flight.FlightServerError
    # Never as cancelled: a Python client whose call is cancelled by the other side raises KeyboardInterrupt.
    if isinstance(error, QueryTimeout):
        status = flight.FlightTimedOutError
    return status(text, json.dumps(document).encode())


@contextmanager
def flight_errors() -> Iterator[None]:
    """Raise errors of the block as Flight errors."""
    try:
        yield
    except HeadraceError as error:
        raise flight_error(error) from error
    except NotOffered:
        raise
    except Exception as error:
        # As over HTTP: the inside of a node goes to its log and not to clients.
        trace = "".join(traceback.format_tb(error.__traceback__)[-TRACE_FRAMES:])
        _log.error("flight call failed", error=repr(error), trace=trace)
        internal = HeadraceError("the node failed to answer", action="its log has the details")
        raise flight_error(internal) from error
