"""The errors that a node raised, under their own classes again."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from headrace.connectors.http import NodeRefused
from headrace.consumers.query import query_errors
from headrace.schemas.errors import HeadraceError

_FORMATS, _TABLES = "headrace.connectors.formats.interface", "headrace.schemas.tables"
_HOMES = {
    "ArrayInvalid": "headrace.connectors.formats.row_rules",
    "ColumnMissing": _FORMATS,
    "ColumnTypeError": _FORMATS,
    "FormatError": _FORMATS,
    "TimeRangeError": _FORMATS,
    "SchemaError": _TABLES,
    "TypeClash": _TABLES,
    "SchemaContended": "headrace.consumers.membership.schema_log",
    "DeleteInvalid": "headrace.producers.deletes",
    "QuorumInvalid": "headrace.producers.acks",
    "QuorumTooLarge": "headrace.producers.acks",
    "RowTooLarge": "headrace.producers.router",
    "ResolutionFixed": "headrace.producers.writer",
    "WriterClosed": "headrace.producers.writer",
    "LogUnavailable": "headrace.connectors.log.port",
}
"""Errors of writers by name, with the modules that have them: loaded for an error only, queries need none of them."""
_UNKNOWN = ("WriteUnknown", "AppendUnknown")


def raised_by_node(url: str, refusal: NodeRefused) -> HeadraceError:
    """The error that the node at a URL raised, under its own class where that is known here, else as NodeRefused."""
    document = refusal.document
    if not document:
        return NodeRefused(
            f"{url} answered HTTP {refusal.status}",
            action="is this the address of a node?",
            status=refusal.status,
            body=refusal.body,
            retry_after_s=refusal.retry_after_s,
        )
    message, action = str(document["message"]), str(document.get("action", ""))
    retriable, kind = bool(document.get("retriable", False)), str(document.get("kind", ""))
    # The kind comes from outside this process, so only names of known errors count.
    known = getattr(query_errors, kind, None)
    if isinstance(known, type) and issubclass(known, query_errors.QueryError):
        return known(message, action=action, retriable=retriable)
    if kind in _HOMES:
        raised: HeadraceError = getattr(import_module(_HOMES[kind]), kind)(message, action=action, retriable=retriable)
        return raised
    if kind in ("WriteFailed", "QuorumTimeout", *_UNKNOWN):
        return _of_writer(kind, message, action, document, retriable=retriable)
    return NodeRefused(
        message,
        action=action,
        retriable=retriable,
        status=refusal.status,
        body=refusal.body,
        document=document,
        retry_after_s=refusal.retry_after_s,
    )


def not_a_node(url: str) -> NodeRefused:
    """The error for an answer that no node gives: of another service, or of a later build."""
    return NodeRefused(f"{url} answers, and not as a node of this build does", action="is this the address of a node?")


def _of_writer(kind: str, message: str, action: str, document: Mapping[str, Any], *, retriable: bool) -> HeadraceError:
    """An error that counts rows; the node's message has the number."""
    from headrace.producers.acks import QuorumTimeout
    from headrace.producers.sender import WriteFailed, WriteUnknown

    if kind == "QuorumTimeout":
        return QuorumTimeout(message, rows=0, lagging=document.get("lagging") or {})
    if kind in _UNKNOWN:
        return WriteUnknown(message, rows=0, action=action)
    return WriteFailed(message, rows=0, action=action, retriable=retriable)
