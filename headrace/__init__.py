"""The public names of Headrace. `import headrace` is quick: each name is loaded when it is first used."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace._answers import QueryResult
    from headrace._asking import NoNode
    from headrace.client import Client, Writer, connect
    from headrace.connectors.formats.interface import FormatError
    from headrace.connectors.http import NodeUnreachable
    from headrace.connectors.log.port import LogUnavailable
    from headrace.consumers.membership.bootstrap import NoCluster
    from headrace.consumers.query.query_errors import QueryError, ReplicaLost
    from headrace.producers.acks import QuorumTimeout, QuorumTooLarge
    from headrace.producers.sender import WriteFailed, WriteUnknown
    from headrace.schemas.errors import HeadraceError, StateUnknown
    from headrace.schemas.tables import FieldType, SchemaError, TableSchema, TypeClash
    from headrace.settings import SettingsInvalid

_HOMES = {
    "Client": "headrace.client",
    "FieldType": "headrace.schemas.tables",
    "FormatError": "headrace.connectors.formats.interface",
    "HeadraceError": "headrace.schemas.errors",
    "LogUnavailable": "headrace.connectors.log.port",
    "NoCluster": "headrace.consumers.membership.bootstrap",
    "NoNode": "headrace._asking",
    "NodeUnreachable": "headrace.connectors.http",
    "QueryError": "headrace.consumers.query.query_errors",
    "QueryResult": "headrace._answers",
    "QuorumTimeout": "headrace.producers.acks",
    "QuorumTooLarge": "headrace.producers.acks",
    "ReplicaLost": "headrace.consumers.query.query_errors",
    "SchemaError": "headrace.schemas.tables",
    "SettingsInvalid": "headrace.settings",
    "StateUnknown": "headrace.schemas.errors",
    "TableSchema": "headrace.schemas.tables",
    "TypeClash": "headrace.schemas.tables",
    "WriteFailed": "headrace.producers.sender",
    "WriteUnknown": "headrace.producers.sender",
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
    "ReplicaLost",
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


# PEP 562. Loading everything here takes half a second, for pyarrow and confluent_kafka above all.
def __getattr__(name: str) -> Any:
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'headrace' has no attribute {name!r}")
    return getattr(import_module(home), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
