"""The records that a donor appends to the topics of the groups that took its slots. Pure.

They follow from the donor's log alone: each of its leaders, also a former one, makes the same ones. So it does
no harm to append one again, or from any position on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from headrace.consumers.replication.cut_memory import CutMemory
from headrace.consumers.replication.transfers import HandOver
from headrace.schemas.group_changes import GroupKey, HandedBody, HandedDelete, HandedOver, HandedRows, Takeover
from headrace.schemas.messages import Delete, Message, Write

Cuts = Mapping[int, CutMemory]
"""What cuts bring whose takeovers are due, by their versions."""


def record_of(origin: GroupKey, cuts: Cuts, slots_total: int, wanted: HandOver, message: Message | None) -> HandedOver:
    """The record for the group that took slots from `origin`.

    `message` is the one at that version in the log of the origin; a part of a takeover needs none.
    """
    body = _takeover(cuts, slots_total, wanted) if wanted.transfer.rank is None else _late(wanted, message)
    return HandedOver(origin, wanted.position, wanted.previous, body)


def _takeover(cuts: Cuts, slots_total: int, wanted: HandOver) -> HandedBody:
    position = wanted.position
    return cuts[position.version].takeovers(wanted.target, slots_total)[position.part]


def _late(wanted: HandOver, message: Message | None) -> HandedBody:
    transfer = wanted.transfer
    assert message is not None, transfer
    assert transfer.rank is not None, transfer
    body = message.body
    # From the log of an earlier holder: the rows keep their producer as they keep their rank.
    if isinstance(body, HandedOver) and isinstance(body.body, HandedRows):
        late = body.body
        return HandedRows(transfer.rank, transfer.slots, late.position, late.digest, late.write)
    if isinstance(body, HandedOver) and isinstance(body.body, HandedDelete):
        return HandedDelete(transfer.rank, transfer.slots, body.body.delete)
    if isinstance(body, HandedOver) and isinstance(body.body, Takeover):
        # Records of two logs may have one rank, and then they concern other slots.
        slots = frozenset(transfer.slots)
        of_slots = (each for each in body.body.deletes if slots.issubset(each.slots))
        return replace(next(each for each in of_slots if each.rank == transfer.rank), slots=transfer.slots)
    if isinstance(body, Write):
        return HandedRows(transfer.rank, transfer.slots, message.position, message.digest, body)
    assert isinstance(body, Delete), body
    return HandedDelete(transfer.rank, transfer.slots, body)
