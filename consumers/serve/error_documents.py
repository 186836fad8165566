"""Errors as every route answers them."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.responses import JSONResponse, Response

from headrace.consumers.scheduling.scheduling_errors import RETRY_AFTER_S
from headrace.producers.acks import QuorumTimeout
from headrace.schemas.errors import HeadraceError, StateUnknown


def document_of(error: HeadraceError) -> dict[str, object]:
    """`kind`, `message`, `action` and `retriable` of an error, `state_unknown` of one of these, and its `lagging`."""
    unknown = {"state_unknown": True} if isinstance(error, StateUnknown) else {}
    lagging = {"lagging": error.lagging} if isinstance(error, QuorumTimeout) else {}
    return document(type(error).__name__, error.message, error.action, retriable=error.retriable) | unknown | lagging


def document(kind: str, message: str, action: str = "", *, retriable: bool = False) -> dict[str, object]:
    """The document of an error that is no exception."""
    return {"kind": kind, "message": message, "action": action, "retriable": retriable}


def refusal(status: int, error: Mapping[str, object], headers: Mapping[str, str] | None = None) -> Response:
    """The answer with an error; one of 503 has the time to try again."""
    again = {"retry-after": str(RETRY_AFTER_S)} if status == 503 else {}
    return JSONResponse({"error": error}, status, {**(headers or {}), **again})
