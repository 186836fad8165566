"""What a forward message may hold beyond its Avro schema: names, numbers and sizes. Pure.

Writers refuse a message that breaks a rule, and every replica ignores it at the same version. The rules depend
on the message alone. Those of its rows are in `payload.py`; what depends on a table is decided where the
table's schema is known.
"""

from __future__ import annotations

from headrace.schemas.errors import HeadraceError
from headrace.schemas.messages import Body, Compact, Delete, Drop, Message, Seal, Write
from headrace.schemas.tables import check_name

# Producers stay in the replicated state. Ours are a UUID, a Spark query, or a node with its incarnation.
PRODUCER_BYTES_MAX = 1_024
SCHEMA_VERSION_MAX = 2**31 - 1


class MessageInvalid(HeadraceError):
    """A message that no table of any cluster could take."""


def check_message(message: Message) -> None:
    """Raises MessageInvalid or SchemaError for a message that breaks a rule."""
    if len(message.position.producer.encode()) > PRODUCER_BYTES_MAX:
        raise MessageInvalid(f"the producer's name is longer than {PRODUCER_BYTES_MAX} bytes")
    check_body(message.body)


def check_body(body: Body) -> None:
    """Raises MessageInvalid or SchemaError for a body that breaks a rule."""
    if isinstance(body, Write | Delete | Drop | Compact):
        _check_table(body.database, body.table)
    if isinstance(body, Write):
        _check_schema_version(body.schema_version)
        if body.row_count < 0:
            raise MessageInvalid(f"a write has {body.row_count} rows")
    elif isinstance(body, Delete):
        for name in body.tags:
            check_name("tag", name)
    elif isinstance(body, Seal):
        for table in body.tables:
            _check_table(table.database, table.table)
            _check_schema_version(table.schema_version)


def _check_table(database: str, table: str) -> None:
    check_name("database", database)
    check_name("table", table)


def _check_schema_version(version: int) -> None:
    if not 0 < version <= SCHEMA_VERSION_MAX:
        raise MessageInvalid(f"there is no version {version} of any table")
