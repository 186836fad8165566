"""Values of the topics `status`, `table` and `membership`; `messages.py` has those of the forward logs."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from enum import StrEnum
from typing import Any

from headrace.schemas.framing import BASE_FORMAT, HEADER_BYTES, codec
from headrace.schemas.group_changes import BEGINNING, GroupKey, HandOverPosition
from headrace.schemas.membership_records import (
    MEMBERSHIP_CHANGE_FORMAT,
    MembershipChange,
    decode_membership_change,
    encode_membership_change,
    is_membership_change,
)
from headrace.schemas.tables import (
    DatabaseChange,
    FieldType,
    RecordName,
    RecordRefusal,
    SchemaChange,
    TableChange,
    TableDrop,
    TimeResolution,
)

_NAMESPACE = "headrace.v1."
HASH_NAME = "xxh3_64"
_CHANGE_FORMAT = 2


class Role(StrEnum):
    """The role of a node in a data group.

    A node never reports itself offline: the failure detector of others infers it.
    """

    LEADER = "leader"
    FOLLOWER = "follower"
    UNSYNCED = "unsynced"


@dataclass(frozen=True, slots=True)
class Acceptance:
    """The newest position in the log of a former holder of slots that counted in this group.

    `table_version` is that of the newest table by which slots have come from it; 0 from builds that do not show it.
    """

    group: str
    birth: int
    version: int
    part: int
    table_version: int = 0

    @classmethod
    def of(cls, key: GroupKey, position: HandOverPosition, table_version: int = 0) -> Acceptance:
        """The acceptance of what `key` has handed over up to a position."""
        return cls(key.group, key.birth, position.version, position.part, table_version)


@dataclass(frozen=True, slots=True)
class Status:
    """The status of one node in one data group, as it reports it; `status.avsc` explains the fields."""

    node: str
    incarnation: str
    store: str
    http: str
    flight: str
    group: str
    topic_id: str
    role: Role
    eligible: bool
    epoch: int
    version: int
    offset: int
    position: int
    durable_offset: int
    sealed_version: int
    sealed_offset: int
    chain_version: int
    chain: bytes
    stored_version: int
    content: bytes
    sealed_log_bytes: int
    segment_bytes: int
    log_lost: bool
    recovery_done: int
    recovery_total: int
    format: int
    reason: str
    sent_boot_ns: int
    receipts: bytes = b""
    accepted: tuple[Acceptance, ...] = ()
    change: int = 0
    settled: int = 0

    def accepted_from(self, key: GroupKey) -> HandOverPosition:
        """The newest position that counted there of what a group has handed over; BEGINNING before the first."""
        found = (
            (each.version, each.part) for each in self.accepted if (each.group, each.birth) == (key.group, key.birth)
        )
        return next((HandOverPosition(*position) for position in found), BEGINNING)


_STATUS_FIELDS = tuple(each.name for each in fields(Status))


@dataclass(frozen=True, slots=True)
class Create:
    """The creation of the cluster.

    The hash is named so that a build with another one refuses to place slots.
    """

    nodes: tuple[str, ...]
    replication: int
    slots: int
    hash: str = HASH_NAME


MembershipRecord = Create | MembershipChange


def encode_status(status: Status) -> bytes:
    """A status as the value of a record of `{c}.status`."""
    # Not by `asdict`, which copies every value deeply: that took longer than all the encoding.
    accepted = [asdict(each) for each in status.accepted]
    return codec("status").encode({name: getattr(status, name) for name in _STATUS_FIELDS} | {"accepted": accepted})


def decode_status(value: bytes) -> Status:
    """The status in a record's value. Raises FrameInvalid."""
    record = codec("status").decode(value)
    # fastavro gives the default of a field of bytes as a string; a status of 0.1.0 has no receipts.
    accepted = tuple(Acceptance(**each) for each in record["accepted"])
    kept = {"role": Role(record["role"]), "receipts": record["receipts"] or b"", "accepted": accepted}
    return Status(**{**record, **kept})


def encode_schema_change(writer: str, change: SchemaChange) -> bytes:
    """A schema change as the value of a record of `{c}.table`."""
    if isinstance(change, RecordRefusal):
        return _encode_refusal(writer, change)
    if isinstance(change, TableDrop):
        return codec("table_drop").encode({"writer": writer, **asdict(change)})
    content = asdict(change)
    if isinstance(change, TableChange):
        content["fields"] = [{"name": name, "type": str(kind)} for name, kind in change.fields]
        content["resolution"] = None if change.resolution is None else str(change.resolution)
    return codec("table").encode({"writer": writer, "change": (_NAMESPACE + type(change).__name__, content)})


def format_of_change(change: SchemaChange) -> int:
    """The oldest format of reader that understands the record of a schema change."""
    # A reader of 0.1.0 takes the record for garbage. It must stop there: a later change in the form that it
    # knows would count for it alone.
    # A drop only hides an empty table from lists, so a reader that does not know it may skip it.
    return BASE_FORMAT if isinstance(change, RecordRefusal | TableDrop) else _CHANGE_FORMAT


def decode_schema_change(value: bytes) -> tuple[str, SchemaChange]:
    """(writer, change). Raises FrameInvalid."""
    # Schemas of their own, so that the one of changes keeps its fingerprint.
    prefix = bytes(value[:HEADER_BYTES])
    if prefix == codec("refusal").prefix:
        return _decode_refusal(value)
    if prefix == codec("table_drop").prefix:
        dropped = codec("table_drop").decode(value)
        return dropped["writer"], TableDrop(dropped["database"], dropped["table"], dropped["base_version"])
    record = codec("table").decode(value)
    name, content = record["change"]
    if name.endswith("DatabaseChange"):
        return record["writer"], DatabaseChange(**content)
    return record["writer"], _table_change(content)


def encode_membership(writer: str, record: MembershipRecord) -> bytes:
    """A record of `{c}.membership` as the value of a message."""
    if not isinstance(record, Create):
        return encode_membership_change(writer, record)
    return codec("membership").encode({"writer": writer, "change": (f"{_NAMESPACE}Create", asdict(record))})


def format_of_membership(record: MembershipRecord) -> int:
    """The oldest format of reader that understands a record of `{c}.membership`."""
    return BASE_FORMAT if isinstance(record, Create) else MEMBERSHIP_CHANGE_FORMAT


def decode_membership(value: bytes) -> tuple[str, MembershipRecord]:
    """(writer, record). Raises FrameInvalid."""
    if is_membership_change(value):
        return decode_membership_change(value)
    record = codec("membership").decode(value)
    content = record["change"]
    # fastavro names the branch of a union only where there are several, and this schema has one.
    content = content[1] if isinstance(content, tuple) else content
    return record["writer"], Create(tuple(content["nodes"]), content["replication"], content["slots"], content["hash"])


def _encode_refusal(writer: str, refusal: RecordRefusal) -> bytes:
    named = {"database": refusal.database, "table": refusal.table, "schema_version": refusal.schema_version}
    return codec("refusal").encode({"writer": writer, **asdict(refusal.record), **named})


def _decode_refusal(value: bytes) -> tuple[str, RecordRefusal]:
    record = codec("refusal").decode(value)
    name = RecordName(record["group"], record["offset"], record["digest"])
    return record["writer"], RecordRefusal(name, record["database"], record["table"], record["schema_version"])


def _table_change(content: dict[str, Any]) -> TableChange:
    fields = tuple((entry["name"], FieldType(entry["type"])) for entry in content["fields"])
    return TableChange(
        content["database"],
        content["table"],
        content["base_version"],
        tuple(content["tags"]),
        fields,
        content["retention_ns"],
        None if content["resolution"] is None else TimeResolution(content["resolution"]),
    )
