"""Records of `{c}.membership` after `Create`: who leads the metadata group, and each step of a change.

They have a schema of their own, `membership_change.avsc`: `Create` keeps the fingerprint that earlier builds
read. Those builds stop at the records here, by their `format` header.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

from headrace.schemas.framing import HEADER_BYTES, codec
from headrace.schemas.messages import Leadership

MEMBERSHIP_CHANGE_FORMAT = 3
"""The oldest format of reader that understands these records."""
_NAMESPACE = "headrace.v1."
_SCHEMA = "membership_change"


class ChangeKind(StrEnum):
    """What a change does: a node joins, a node leaves, or slots move between the nodes there are."""

    ADD = "add"
    REMOVE = "remove"
    BALANCE = "balance"


@dataclass(frozen=True, slots=True)
class MetadataClaim:
    """A node claims the leadership of the metadata group."""

    leadership: Leadership


@dataclass(frozen=True, slots=True)
class Change:
    """Begins a change of the slot table; `table` is the whole table after it, as `SlotTable.to_bytes`.

    `request` is the id of the operator's request. `store` is the data directory of a node that joins. `rate` is how
    many bytes a second each node fetches at most; 0 = no limit beside its own.
    """

    leadership: Leadership
    request: str
    kind: ChangeKind
    node: str
    store: str
    table: bytes
    rate: int = 0


@dataclass(frozen=True, slots=True)
class PreDone:
    """A group has its members of the first phase; its leader `node` read the barrier at `version`, in `epoch`."""

    change: int
    group: str
    node: str
    epoch: int
    version: int


@dataclass(frozen=True, slots=True)
class Formal:
    """The table of a change counts from here on."""

    leadership: Leadership
    change: int


@dataclass(frozen=True, slots=True)
class SlotDone:
    """A node has the data of slots that moved to a group of which it is a member."""

    change: int
    node: str
    slots: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ends a change before its `Formal`."""

    leadership: Leadership
    change: int


@dataclass(frozen=True, slots=True)
class Exile:
    """A removed node has nothing left to hand over: its process ends, now or at its next start."""

    leadership: Leadership
    node: str


MembershipChange = MetadataClaim | Change | PreDone | Formal | SlotDone | Cancel | Exile
_KINDS = {kind.__name__: kind for kind in (MetadataClaim, Change, PreDone, Formal, SlotDone, Cancel, Exile)}


def is_membership_change(value: bytes) -> bool:
    """Whether a value has the schema of these records."""
    return bytes(value[:HEADER_BYTES]) == codec(_SCHEMA).prefix


def encode_membership_change(writer: str, change: MembershipChange) -> bytes:
    """A record as the value of a message of `{c}.membership`."""
    return codec(_SCHEMA).encode({"writer": writer, "change": (_NAMESPACE + type(change).__name__, asdict(change))})


def decode_membership_change(value: bytes) -> tuple[str, MembershipChange]:
    """(writer, record). Raises FrameInvalid."""
    record = codec(_SCHEMA).decode(value)
    name, content = record["change"]
    return record["writer"], _KINDS[name.removeprefix(_NAMESPACE)](**_fields(content))


def _fields(content: dict[str, Any]) -> dict[str, Any]:
    found = dict(content)
    if "leadership" in found:
        found["leadership"] = Leadership(**found["leadership"])
    if "kind" in found:
        found["kind"] = ChangeKind(found["kind"])
    if "slots" in found:
        found["slots"] = tuple(found["slots"])
    return found
