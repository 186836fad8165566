"""The messages of a data group's forward log, as values.

`encode_message` and `decode_message` are the only conversion between these values and bytes. The digest of a
message covers its content without its producer: replicas recognise a repeat by (producer, batch, sequence,
digest) without decoding its rows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

import xxhash

from headrace.schemas.framing import (
    BASE_FORMAT,
    FENCED_LOAD_FORMAT,
    GROUP_CHANGE_FORMAT,
    HEADER_BYTES,
    LOAD_FORMAT,
    SYNCED_LOAD_FORMAT,
    codec,
)
from headrace.schemas.group_changes import (
    Barrier,
    GroupChange,
    HandedOver,
    HandOverAccepted,
    digest_parts,
    group_change,
    group_change_record,
)
from headrace.schemas.message_bodies import Anchor, Delete, Leadership, ProducerPosition, TableVersion, Write

MESSAGE_BYTES_MAX = 8 * 1024 * 1024
# The hash chain before the first record (docs/internals/formats.md).
NO_CHAIN = bytes(16)
_NAMESPACE = "headrace.v1."
_SYNC_FIELDS = ("sender", "order", "settled", "stores", "synced", "loaded_era", "loaded_version")
"""Of a Load; one without them is a record of `load.avsc`, with the digest that it had before."""
_FENCE_FIELDS = ("group", "number")
_DELETES_PREFIX = "sync/"
_PLACES, _TABLES = 1 << 14, 1 << 16
DELETES_OF_NUMBER = _TABLES * _PLACES
"""Batches of the deletes of one manifest of a sync sender: so many deletes, by so many versions of the slot table."""
MANIFEST_NUMBER_MAX = (1 << 63) // DELETES_OF_NUMBER - 1

__all__ = [
    "MESSAGE_BYTES_MAX",
    "NO_CHAIN",
    "Anchor",
    "Barrier",
    "Body",
    "CarriedDelete",
    "Claim",
    "Compact",
    "Delete",
    "Drop",
    "Gap",
    "GroupChange",
    "HandOverAccepted",
    "HandedOver",
    "Leadership",
    "Load",
    "Message",
    "ProducerPosition",
    "Seal",
    "SyncedRows",
    "TableVersion",
    "Write",
    "body_digest",
    "decode_message",
    "deletes_batch",
    "deletes_producer",
    "encode_message",
    "format_of",
    "last_deletes_batch",
    "load_identity",
]


@dataclass(frozen=True, slots=True)
class Seal:
    """All rows of the group at this version become segments. Leader only."""

    leadership: Leadership
    anchor: Anchor
    tables: tuple[TableVersion, ...] = ()


@dataclass(frozen=True, slots=True)
class Drop:
    """Slices of a table that end at or before `before_ns` leave the store. Leader only."""

    leadership: Leadership
    database: str
    table: str
    before_ns: int


@dataclass(frozen=True, slots=True)
class Compact:
    """The named segments of one table become one. Leader only."""

    leadership: Leadership
    database: str
    table: str
    inputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Claim:
    """A node takes the group's leadership; valid only with an epoch of exactly the current one + 1.

    It also sets the size of a memtable at which the log seals by itself.
    """

    leadership: Leadership
    anchor: Anchor
    # In the log rather than in each node's settings, because every replica has to seal at the same record. A
    # `Seal` of the leader is behind any backlog, and a replica whose memtable is full would wait for it for
    # ever.
    seal_rows: int
    seal_bytes: int


@dataclass(frozen=True, slots=True)
class Gap:
    """An operator accepts that the log has lost records: it continues after the anchor at `resume_offset` of
    the topic `topic_id`.
    """

    topic_id: str
    resume_offset: int
    anchor: Anchor


@dataclass(frozen=True, slots=True)
class CarriedDelete:
    """A delete of an earlier holder of a slot, with its rank there; tags and their values are sorted."""

    era: int
    version: int
    tags: tuple[tuple[str, tuple[str, ...]], ...] = ()
    start_ns: int | None = None
    end_ns: int | None = None


@dataclass(frozen=True, slots=True)
class SyncedRows:
    """What a file has of one sync sender.

    `order` is the highest one of the sender's files in it. No file of the sender up to `settled` is undecided there.
    """

    sender: str
    order: str
    settled: str = ""


@dataclass(frozen=True, slots=True)
class Load:
    """One sealed file of another log becomes a segment of this group. Leader only.

    It counts once, by origin, file and content digest. The record brings no bytes: each replica attaches the
    file when it has it. `load.avsc` explains the fields, `synced_load.avsc` those from `sender` on.
    """

    leadership: Leadership
    origin: str
    held_since: int
    database: str
    table: str
    slice_number: int
    bucket: int
    era: int
    first_version: int
    last_version: int
    generation: int
    content_digest: bytes
    rows: int
    min_time_ns: int
    max_time_ns: int
    size_bytes: int
    schema_version: int
    deletes: tuple[CarriedDelete, ...] = ()
    sender: str = ""
    order: str = ""
    settled: str = ""
    stores: tuple[str, ...] = ()
    synced: tuple[SyncedRows, ...] = ()
    loaded_era: int = 0
    loaded_version: int = 0
    group: str = ""
    number: int = 0

    @property
    def has_sync(self) -> bool:
        """Whether rows of the file come from a sync sender."""
        return any(getattr(self, name) for name in _SYNC_FIELDS)


Body = Write | Delete | Seal | Drop | Compact | Claim | Gap | Load | GroupChange


@dataclass(frozen=True, slots=True)
class Message:
    """One forward message; `digest` is filled in by `encode_message` and read back by `decode_message`."""

    position: ProducerPosition
    body: Body
    digest: bytes = b""


def encode_message(message: Message) -> bytes:
    """A message as the value of a Kafka record."""
    envelope: dict[str, Any] = {
        "producer": message.position.producer,
        "batch": message.position.batch,
        "sequence": message.position.sequence,
        "digest": body_digest(message.body),
    }
    if isinstance(message.body, GroupChange):
        return codec("group_change").encode(envelope | {"body": group_change_record(message.body)})
    name, record = _body_record(message.body)
    if isinstance(message.body, Load):
        kind = "synced_load" if message.body.has_sync else "load"
        return codec(kind).encode(envelope | {"body": record})
    return codec("forward").encode(envelope | {"body": (_NAMESPACE + name, record)})


def decode_message(value: bytes) -> Message:
    """The message in a record's value. Raises FrameInvalid for bytes that no build could have written."""
    prefix = bytes(value[:HEADER_BYTES])
    load = next((kind for kind in ("load", "synced_load") if codec(kind).reads(prefix)), None)
    if load is not None:
        record = codec(load).decode(value)
        body: Body = _load(record["body"])
    elif prefix == codec("group_change").prefix:
        record = codec("group_change").decode(value)
        body = group_change(*record["body"])
    else:
        record = codec("forward").decode(value)
        name, content = record["body"]
        body = _BODIES[name](content)
    return Message(ProducerPosition(record["producer"], record["batch"], record["sequence"]), body, record["digest"])


def format_of(body: Body) -> int:
    """The oldest format of reader that understands the record of a body."""
    # An older reader would take the record for garbage, and would miss the rows of the file for good.
    if isinstance(body, GroupChange):
        return GROUP_CHANGE_FORMAT
    if isinstance(body, Load):
        synced = FENCED_LOAD_FORMAT if body.number else SYNCED_LOAD_FORMAT
        return synced if body.has_sync else LOAD_FORMAT
    return BASE_FORMAT


def deletes_producer(sender: str, group: str) -> str:
    """The producer of the deletes of a group of a sync sender; `deletes_batch` has their batches."""
    return f"{_DELETES_PREFIX}{sender}/{group}"


def is_deletes_producer(producer: str) -> bool:
    """Whether a producer is that of the deletes of a sync sender."""
    return producer.startswith(_DELETES_PREFIX)


def deletes_batch(number: int, table_version: int = 0, place: int = 0) -> int:
    """The batch of a delete that is sent by a slot table: a higher one than those of all manifests of a lower number.

    By a newer table a manifest is sent whole once more, and counts again: a group may have a delete, and get rows later
    from one that ended without it.
    """
    return number * DELETES_OF_NUMBER + min(table_version, _TABLES - 2) * _PLACES + min(place, _PLACES - 1)


def is_of_older_table(batch: int, table_version: int) -> bool:
    """Whether a delete with this batch was sent by an older slot table."""
    return batch < deletes_batch(batch // DELETES_OF_NUMBER, table_version)


def last_deletes_batch(number: int) -> int:
    """The batch of the fence behind all deletes of a manifest. None of them counts behind it, by whichever table."""
    return (number + 1) * DELETES_OF_NUMBER - 1


def load_identity(load: Load) -> bytes:
    """xxh3-128 of what a load counts once by: its origin, the file's place and ranks, and its content."""
    file = (load.database, load.table, load.slice_number, load.bucket, load.era, load.first_version, load.last_version)
    identity: tuple[object, ...] = (load.origin, *file, load.generation, load.content_digest)
    if load.order:
        identity = (*identity, load.order)
    return xxhash.xxh3_128_digest(repr(identity).encode())


def body_digest(body: Body) -> bytes:
    """xxh3-128 over the kind and the content of a message."""
    # Stable for ever: replicas keep digests of earlier builds in their state and compare new messages with
    # them.
    hasher = xxhash.xxh3_128(type(body).__name__.encode())
    if isinstance(body, Write):
        head = (body.database, body.table, body.schema_version, body.slot_table_version, body.row_count)
        hasher.update(repr(head).encode())
        hasher.update(body.rows)
    elif isinstance(body, GroupChange):
        for part in digest_parts(body):
            hasher.update(part)
    else:
        content = asdict(body)
        if isinstance(body, Load):
            for name in (*(() if body.has_sync else _SYNC_FIELDS), *(() if body.number else _FENCE_FIELDS)):
                del content[name]
        hasher.update(repr(sorted(content.items())).encode())
    return hasher.digest()


def _body_record(body: Body) -> tuple[str, dict[str, Any]]:
    # `asdict` would copy the rows, up to 8 MiB for each message.
    if isinstance(body, Write):
        return "Write", {name: getattr(body, name) for name in Write.__slots__}
    if isinstance(body, Load):
        # The writer of `load.avsc` leaves out the fields of sync.
        return "Load", asdict(body) | {"deletes": [asdict(each) | {"tags": dict(each.tags)} for each in body.deletes]}
    return type(body).__name__, asdict(body)


def _leadership(record: dict[str, Any]) -> Leadership:
    return Leadership(**record["leadership"])


def _delete(record: dict[str, Any]) -> Delete:
    tags = {name: tuple(values) for name, values in sorted(record["tags"].items())}
    return Delete(record["database"], record["table"], tags, record["start_ns"], record["end_ns"])


def _seal(record: dict[str, Any]) -> Seal:
    tables = tuple(TableVersion(**table) for table in record["tables"])
    return Seal(_leadership(record), Anchor(**record["anchor"]), tables)


def _drop(record: dict[str, Any]) -> Drop:
    return Drop(_leadership(record), record["database"], record["table"], record["before_ns"])


def _compact(record: dict[str, Any]) -> Compact:
    return Compact(_leadership(record), record["database"], record["table"], tuple(record["inputs"]))


def _load(record: dict[str, Any]) -> Load:
    deletes = tuple(
        CarriedDelete(**{**each, "tags": tuple((name, tuple(values)) for name, values in sorted(each["tags"].items()))})
        for each in record["deletes"]
    )
    synced = tuple(SyncedRows(**each) for each in record.get("synced", ()))
    own = {"leadership": _leadership(record), "deletes": deletes, "synced": synced}
    return Load(**{**record, **own, "stores": tuple(record.get("stores", ()))})


def _gap(record: dict[str, Any]) -> Gap:
    return Gap(record["topic_id"], record["resume_offset"], Anchor(**record["anchor"]))


def _claim(record: dict[str, Any]) -> Claim:
    return Claim(_leadership(record), Anchor(**record["anchor"]), record["seal_rows"], record["seal_bytes"])


_BODIES: dict[str, Callable[[dict[str, Any]], Body]] = {
    f"{_NAMESPACE}Write": lambda record: Write(**record),
    f"{_NAMESPACE}Delete": _delete,
    f"{_NAMESPACE}Seal": _seal,
    f"{_NAMESPACE}Drop": _drop,
    f"{_NAMESPACE}Compact": _compact,
    f"{_NAMESPACE}Claim": _claim,
    f"{_NAMESPACE}Gap": _gap,
}
