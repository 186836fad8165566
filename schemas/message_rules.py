"""What a forward message may hold beyond its Avro schema: names, numbers and sizes. Pure.

Writers refuse a message that breaks a rule, and every replica ignores it at the same version. The rules depend
on the message alone. Those of its rows are in `payload.py`; what depends on a table is decided where the
table's schema is known.
"""

from __future__ import annotations

from headrace.schemas.errors import HeadraceError
from headrace.schemas.messages import Body, Compact, Delete, Drop, Load, Message, Seal, Write
from headrace.schemas.tables import check_name

# Producers stay in the replicated state. Ours are a UUID, a Spark query, or a node with its incarnation.
PRODUCER_BYTES_MAX = 1_024
SCHEMA_VERSION_MAX = 2**31 - 1
ORIGIN_BYTES_MAX = 1_024
CARRIED_DELETES_MAX = 10_000
"""Deletes that one file brings. A holder that has more applies them by rewriting the file before it gives it up."""
ERA_MAX, VERSION_MAX = 10**6 - 1, 10**15 - 1
"""What the name of a segment has digits for."""


class MessageInvalid(HeadraceError):
    """A message that no table of any cluster could take."""


def check_message(message: Message) -> None:
    """Raises MessageInvalid or SchemaError for a message that breaks a rule."""
    if len(message.position.producer.encode()) > PRODUCER_BYTES_MAX:
        raise MessageInvalid(f"the producer's name is longer than {PRODUCER_BYTES_MAX} bytes")
    check_body(message.body)


def check_body(body: Body) -> None:
    """Raises MessageInvalid or SchemaError for a body that breaks a rule."""
    if isinstance(body, Write | Delete | Drop | Compact | Load):
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
    elif isinstance(body, Load):
        _check_schema_version(body.schema_version)
        _check_load(body)


def _check_load(load: Load) -> None:
    # What needs the table's slices and buckets is checked by the store, where they are known.
    if not 0 < len(load.origin.encode()) <= ORIGIN_BYTES_MAX:
        raise MessageInvalid(f"the origin of a file has 1 to {ORIGIN_BYTES_MAX} bytes")
    if not (0 <= load.era <= ERA_MAX and 0 < load.first_version <= load.last_version <= VERSION_MAX):
        raise MessageInvalid(f"no log has rows of era {load.era}, versions {load.first_version} to {load.last_version}")
    # Else deletes of this group would be compared with rows of another log in one era.
    if load.held_since and load.era >= load.held_since:
        raise MessageInvalid(f"a file of era {load.era} is of no earlier holder of a slot held since {load.held_since}")
    sizes = (load.rows, load.size_bytes)
    if load.held_since < 0 or load.bucket < 0 or load.generation < 0 or min(sizes) <= 0:
        raise MessageInvalid("a file has a number that no file can have")
    if load.min_time_ns > load.max_time_ns:
        raise MessageInvalid("the first time of a file is after its last")
    if len(load.deletes) > CARRIED_DELETES_MAX:
        raise MessageInvalid(f"a file brings {len(load.deletes)} deletes; {CARRIED_DELETES_MAX} are the most")
    for each in load.deletes:
        if (each.era, each.version) <= (load.era, load.last_version):
            raise MessageInvalid("a file brings a delete that does not outrank it")
        for name, _ in each.tags:
            check_name("tag", name)


def _check_table(database: str, table: str) -> None:
    check_name("database", database)
    check_name("table", table)


def _check_schema_version(version: int) -> None:
    if not 0 < version <= SCHEMA_VERSION_MAX:
        raise MessageInvalid(f"there is no version {version} of any table")
