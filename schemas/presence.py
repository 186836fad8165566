"""What a node reports of itself on `{c}.status`, beside the statuses of its groups.

A node without a group, one that waits to join, sends nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

from headrace.schemas.framing import FORMAT, HEADER_BYTES, codec
from headrace.schemas.records import HASH_NAME

_SCHEMA = "presence"


@dataclass(frozen=True, slots=True)
class Presence:
    """One node, as it reports itself; `presence.avsc` explains the fields."""

    node: str
    incarnation: str
    store: str
    http: str
    replication: int
    slots: int
    eligible: bool
    epoch: int
    records: int
    changes: bool
    reason: str = ""
    hash: str = HASH_NAME
    format: int = FORMAT
    sent_boot_ns: int = 0


_FIELDS = tuple(each.name for each in fields(Presence))


def presence_key(node: str) -> bytes:
    """The key of a node's presence; those of statuses begin with the name of a group."""
    return f"/{node}".encode()


def is_presence(value: bytes) -> bool:
    """Whether a value has the schema of a presence."""
    return bytes(value[:HEADER_BYTES]) == codec(_SCHEMA).prefix


def encode_presence(presence: Presence) -> bytes:
    """A presence as the value of a record of `{c}.status`."""
    return codec(_SCHEMA).encode({name: getattr(presence, name) for name in _FIELDS})


def decode_presence(value: bytes) -> Presence:
    """The presence in a record's value. Raises FrameInvalid."""
    return Presence(**codec(_SCHEMA).decode(value))
