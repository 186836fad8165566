"""What a user imports and types. `import headrace` is quick: what it offers is loaded when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from connectors.formats.parsed import FormatError
    from connectors.http import NodeUnreachable
    from connectors.log.port import LogUnavailable
    from consumers.membership.cluster import NoCluster
    from consumers.membership.forwarding import WriteFailed, WriteUnknown
    from consumers.membership.quorum import QuorumTimeout, QuorumTooLarge
    from consumers.query.errors import QueryError
    from headrace._answers import QueryResult
    from headrace.client import Client, NoNode, Writer, connect
    from headrace.settings import SettingsInvalid
    from schemas.errors import HeadraceError, StateUnknown
    from schemas.tables import FieldType, SchemaError, TableSchema, TypeClash

_HOMES = {
    "Client": "headrace.client",
    "FieldType": "schemas.tables",
    "FormatError": "connectors.formats.parsed",
    "HeadraceError": "schemas.errors",
    "LogUnavailable": "connectors.log.port",
    "NoCluster": "consumers.membership.cluster",
    "NoNode": "headrace.client",
    "NodeUnreachable": "connectors.http",
    "QueryError": "consumers.query.errors",
    "QueryResult": "headrace._answers",
    "QuorumTimeout": "consumers.membership.quorum",
    "QuorumTooLarge": "consumers.membership.quorum",
    "SchemaError": "schemas.tables",
    "SettingsInvalid": "headrace.settings",
    "StateUnknown": "schemas.errors",
    "TableSchema": "schemas.tables",
    "TypeClash": "schemas.tables",
    "WriteFailed": "consumers.membership.forwarding",
    "WriteUnknown": "consumers.membership.forwarding",
    "Writer": "headrace.client",
    "connect": "headrace.client",
}

__all__ = [
    "Client",
    "FieldType",
    "FormatError",
    "HeadraceError",
    "LogUnavailable",
    "NoCluster",
    "NoNode",
    "NodeUnreachable",
    "QueryError",
    "QueryResult",
    "QuorumTimeout",
    "QuorumTooLarge",
    "SchemaError",
    "SettingsInvalid",
    "StateUnknown",
    "TableSchema",
    "TypeClash",
    "WriteFailed",
    "WriteUnknown",
    "Writer",
    "connect",
]


def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
