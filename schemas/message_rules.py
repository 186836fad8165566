"""What a forward message may hold beyond its Avro schema: names, numbers and sizes. Pure.

Writers refuse a message that breaks a rule, and every replica ignores it at the same version. The rules depend
on the message alone. Those of its rows are in `payload.py`; what depends on a table is decided where the
table's schema is known.
"""

from __future__ import annotations

import re

from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import (
    BEGINNING,
    RECORD_SLOTS_MAX,
    Barrier,
    BarrierPhase,
    GroupChange,
    GroupKey,
    HandedBody,
    HandedRows,
    HandOverAccepted,
    HandOverPosition,
    Takeover,
)
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
MEMBERS_MAX = 256
"""Members of a group, with those of the first phase of a change."""
NAME_BYTES_MAX = 249
"""Of a node, a group and a topic: as many as Kafka gives a topic."""
LOAD_BYTES = 16
ORDER_CHARACTERS_MAX = 120
"""Of the order of a file at its sync sender: it becomes a part of the name of the segment."""
ORDER_END = "+"
"""Behind the order in `SegmentEntry.order`. It is below every character of an order, so places sort as orders do."""
PLACE_CHARACTERS_MAX = ORDER_CHARACTERS_MAX + 1 + 16
SYNC_NAMES_MAX = 10_000
"""Senders and stores that one file names."""
_ORDER = re.compile(f"[0-9A-Za-z._-]{{1,{ORDER_CHARACTERS_MAX}}}")


class MessageInvalid(HeadraceError):
    """A message that no table of any cluster could take."""


def check_message(message: Message) -> None:
    """Raises MessageInvalid or SchemaError for a message that breaks a rule."""
    _check_producer(message.position.producer)
    check_body(message.body)


def check_body(body: Body) -> None:
    """Raises MessageInvalid or SchemaError for a body that breaks a rule."""
    if isinstance(body, Write | Delete | Drop | Compact | Load):
        _check_table(body.database, body.table)
    if isinstance(body, Write):
        _check_schema_version(body.schema_version)
        if body.row_count < 0:
            raise MessageInvalid(f"a write has {body.row_count} rows")
        if body.slot_table_version < 0:
            raise MessageInvalid(f"a write is routed by slot table {body.slot_table_version}")
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
    elif isinstance(body, GroupChange):
        _check_group_change(body)


def _check_group_change(body: GroupChange) -> None:
    if isinstance(body, Barrier):
        _check_barrier(body)
    elif isinstance(body, HandOverAccepted):
        _check_position(body.target, body.position)
    else:
        _check_position(body.origin, body.position)
        if not BEGINNING <= body.previous < body.position:
            raise MessageInvalid("a hand-over does not follow the one before it")
        _check_handed(body.body)


def _check_barrier(barrier: Barrier) -> None:
    if not (
        barrier.change > 0 and 1 < barrier.table_version <= ERA_MAX and 0 < barrier.slots_total <= RECORD_SLOTS_MAX
    ):
        raise MessageInvalid("a barrier has a number that no change has")
    members = barrier.members
    if not 0 < len(members) <= MEMBERS_MAX or len(set(members)) < len(members):
        raise MessageInvalid(f"a group has 1 to {MEMBERS_MAX} members, each once")
    for each in barrier.moves:
        _check_key(each.key)
        _check_name(each.topic)
        if not each.slots or each.key.birth > barrier.table_version:
            raise MessageInvalid("a barrier gives a group no slots, or a group of a later table some")
    for name in members:
        _check_name(name)
    moved = [slot for each in barrier.moves for slot in each.slots]
    if len({each.key for each in barrier.moves}) < len(barrier.moves) or len(set(moved)) < len(moved):
        raise MessageInvalid("a barrier names a group or a slot twice")
    if max((*moved, *barrier.gains), default=0) >= barrier.slots_total or not set(moved).isdisjoint(barrier.gains):
        raise MessageInvalid("a barrier moves a slot that the cluster does not have, or in both directions")
    if barrier.phase is BarrierPhase.REVERT and (moved or barrier.gains):
        raise MessageInvalid("a change that is cancelled moves no slot")


def _check_handed(body: HandedBody) -> None:
    if not body.slots:
        raise MessageInvalid("a hand-over concerns no slot")
    if isinstance(body, Takeover):
        known = 1 < body.table_version <= ERA_MAX and body.slots[-1] < body.slots_total <= RECORD_SLOTS_MAX
        if not known or len(body.loads) % LOAD_BYTES:
            raise MessageInvalid("a takeover has a number that no change has")
        for each in body.producers:
            _check_producer(each.producer)
        for deleted in body.deletes:
            _check_handed(deleted)
        return
    if not (0 < body.rank.era <= ERA_MAX and 0 < body.rank.version <= VERSION_MAX):
        raise MessageInvalid(f"no log has a row of rank {body.rank}")
    if isinstance(body, HandedRows):
        _check_producer(body.position.producer)
        check_body(body.write)
    else:
        check_body(body.delete)


def _check_position(key: GroupKey, position: HandOverPosition) -> None:
    _check_key(key)
    if not (0 < position.version <= VERSION_MAX and position.part >= 0):
        raise MessageInvalid("a hand-over has a position that no log has")


def _check_key(key: GroupKey) -> None:
    _check_name(key.group)
    if not 0 < key.birth <= ERA_MAX:
        raise MessageInvalid(f"no group was born with table {key.birth}")


def _check_name(name: str) -> None:
    if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
        raise MessageInvalid(f"a node, group or topic has a name of 1 to {NAME_BYTES_MAX} bytes")


def _check_producer(name: str) -> None:
    if len(name.encode()) > PRODUCER_BYTES_MAX:
        raise MessageInvalid(f"the producer's name is longer than {PRODUCER_BYTES_MAX} bytes")


def _check_load(load: Load) -> None:
    # What needs the table's slices and buckets is checked by the store, where they are known.
    if not 0 < len(load.origin.encode()) <= ORIGIN_BYTES_MAX:
        raise MessageInvalid(f"the origin of a file has 1 to {ORIGIN_BYTES_MAX} bytes")
    if not (0 <= load.era <= ERA_MAX and 0 < load.first_version <= load.last_version <= VERSION_MAX):
        raise MessageInvalid(f"no log has rows of era {load.era}, versions {load.first_version} to {load.last_version}")
    if load.has_sync:
        _check_sync(load)
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


def _check_sync(load: Load) -> None:
    if load.sender and (load.sender != load.origin or load.held_since or load.synced):
        raise MessageInvalid("a file of a sync sender has the sender as its origin, and no slot that moved")
    orders = [each for rows in load.synced for each in (rows.order, rows.settled)] + [load.settled]
    orders += [load.order] if load.sender else [place.partition(ORDER_END)[0] for place in (load.order,) if place]
    if (load.number or load.group) and not (load.sender and load.group and load.number > 0):
        raise MessageInvalid("a number and a group are those of a file of a sync sender, and come together")
    if len(load.group.encode()) > NAME_BYTES_MAX:
        raise MessageInvalid("the group of a file has too long a name")
    if load.sender and not load.order:
        raise MessageInvalid("a file of a sync sender has an order")
    for order in orders:
        if order and not _ORDER.fullmatch(order):
            raise MessageInvalid(
                f"an order has 1 to {ORDER_CHARACTERS_MAX} letters, digits, dots, dashes or underscores"
            )
    if len(load.order) > PLACE_CHARACTERS_MAX or len(load.stores) > SYNC_NAMES_MAX or len(load.synced) > SYNC_NAMES_MAX:
        raise MessageInvalid(f"a file has rows of {SYNC_NAMES_MAX} senders and stores at most")
    for name in (*load.stores, *(each.sender for each in load.synced)):
        if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
            raise MessageInvalid(f"a sender or a store has a name of 1 to {NAME_BYTES_MAX} bytes")


def _check_table(database: str, table: str) -> None:
    check_name("database", database)
    check_name("table", table)


def _check_schema_version(version: int) -> None:
    if not 0 < version <= SCHEMA_VERSION_MAX:
        raise MessageInvalid(f"there is no version {version} of any table")
