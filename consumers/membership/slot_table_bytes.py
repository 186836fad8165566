"""A slot table as bytes, and back: runs of slots with one owner, by `slot_table.avsc`. Pure."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from headrace.schemas.framing import FrameInvalid, codec

_SCHEMA = "slot_table"
_POSITION_BYTES = 8


@dataclass(frozen=True, slots=True)
class TableContent:
    """The fields of a table: `nodes` are (id, position, birth) in ring order. See SlotTable."""

    version: int
    replication: int
    nodes: tuple[tuple[str, int, int], ...]
    slot_headers: tuple[int, ...]
    moved: tuple[tuple[int, str], ...]
    ended: tuple[tuple[str, int], ...]


def encode_table(table: TableContent) -> bytes:
    """The same content gives the same bytes in every process."""
    owners = np.asarray(table.slot_headers, np.int32)
    starts = np.flatnonzero(np.diff(owners, prepend=-1))
    moved: dict[str, list[int]] = {}
    for slot, previous in table.moved:
        moved.setdefault(previous, []).append(slot)
    nodes = [
        {"id": node, "position": position.to_bytes(_POSITION_BYTES, "big"), "birth": birth}
        for node, position, birth in table.nodes
    ]
    record = {
        "version": table.version,
        "replication": table.replication,
        "nodes": nodes,
        "run_owners": owners[starts].tolist(),
        "run_lengths": np.diff(starts, append=len(owners)).tolist(),
        "moved": [{"previous": previous, "slots": slots} for previous, slots in sorted(moved.items())],
        "ended": [{"header": header, "birth": birth} for header, birth in table.ended],
    }
    return codec(_SCHEMA).encode(record)


def decode_table(data: bytes, slots_max: int) -> TableContent:
    """The inverse of `encode_table`. Raises FrameInvalid."""
    record = codec(_SCHEMA).decode(data)
    owners, lengths = record["run_owners"], record["run_lengths"]
    # A length comes from the bytes: it must not decide how much memory a reader takes.
    if len(owners) != len(lengths) or min(lengths, default=0) < 1 or sum(lengths) > slots_max:
        raise FrameInvalid(f"a slot table has {len(owners)} runs of slots with {sum(lengths)} slots")
    # Avro reads numbers of 64 bits, whatever the schema names them.
    if not all(0 <= owner < len(record["nodes"]) for owner in owners):
        raise FrameInvalid("a slot table has slots without an owner")
    slots = sum(lengths)
    moved = [(slot, group["previous"]) for group in record["moved"] for slot in group["slots"]]
    if len(dict(moved)) != len(moved) or not all(0 <= slot < slots for slot, _ in moved):
        raise FrameInvalid("a slot table moves a slot twice, or one that it does not have")
    return TableContent(
        record["version"],
        record["replication"],
        tuple((node["id"], int.from_bytes(node["position"], "big"), node["birth"]) for node in record["nodes"]),
        tuple(np.repeat(np.asarray(owners, np.int32), lengths).tolist()),
        tuple(sorted(moved)),
        tuple((group["header"], group["birth"]) for group in record["ended"]),
    )
