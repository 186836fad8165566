"""What a node reports of itself on `{c}.status`, beside the statuses of its groups.

A node without a group, one that waits to join, sends nothing else. The keys of all records of that topic are here.
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


def status_key(group: str, node: str) -> bytes:
    """The key of a node's status in a group."""
    return f"{group}/{node}".encode()


def sender_of(key: bytes | None) -> tuple[str, str] | None:
    """(group, node) of a key of `{c}.status`, with no group for a presence; None for a key of something else."""
    group, slash, node = (key or b"").decode(errors="replace").rpartition("/")
    return (group, node) if slash and node else None


def is_presence(value: bytes) -> bool:
    """Whether a value has a schema of a presence."""
    return codec(_SCHEMA).reads(bytes(value[:HEADER_BYTES]))


def encode_presence(presence: Presence) -> bytes:
    """A presence as the value of a record of `{c}.status`."""
    return codec(_SCHEMA).encode({name: getattr(presence, name) for name in _FIELDS})


def decode_presence(value: bytes) -> Presence:
    """The presence in a record's value. Raises FrameInvalid."""
    return Presence(**codec(_SCHEMA).decode(value))
