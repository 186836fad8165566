"""The records that a donor appends to the topics of the groups that took its slots. Pure.

They follow from the donor's log alone: each of its leaders, also a former one, makes the same ones. So it does
no harm to append one again, or from any position on.
"""

from __future__ import annotations

from headrace.consumers.replication.change_state import ChangeState, HandOver
from headrace.schemas.group_changes import GroupKey, HandedBody, HandedDelete, HandedOver, HandedRows
from headrace.schemas.messages import Delete, Message, Write


def due(changes: ChangeState, key: GroupKey) -> list[HandOver]:
    """What a group must still accept, in order: where a new leader begins."""
    target = changes.targets.get(key)
    if target is None:
        return []
    before = [target.accepted, *(each.position for each in target.outstanding)]
    return [
        HandOver(key, target.topic, transfer, previous)
        for transfer, previous in zip(target.outstanding, before, strict=False)
    ]


def record_of(origin: GroupKey, changes: ChangeState, wanted: HandOver, message: Message | None) -> HandedOver:
    """The record for the group that took slots from `origin`.

    `message` is the one at that version in the log of the origin; a part of a takeover needs none.
    """
    return HandedOver(origin, wanted.transfer.position, wanted.previous, _body(changes, wanted, message))


def _body(changes: ChangeState, wanted: HandOver, message: Message | None) -> HandedBody:
    transfer = wanted.transfer
    if transfer.rank is None:
        return changes.takeovers(transfer.position.version, wanted.target)[transfer.position.part]
    assert message is not None, transfer
    body = message.body
    # From the log of an earlier holder: the rows keep their producer as they keep their rank.
    if isinstance(body, HandedOver) and isinstance(body.body, HandedRows):
        late = body.body
        return HandedRows(transfer.rank, transfer.slots, late.position, late.digest, late.write)
    if isinstance(body, HandedOver) and isinstance(body.body, HandedDelete):
        return HandedDelete(transfer.rank, transfer.slots, body.body.delete)
    if isinstance(body, Write):
        return HandedRows(transfer.rank, transfer.slots, message.position, message.digest, body)
    assert isinstance(body, Delete), body
    return HandedDelete(transfer.rank, transfer.slots, body)
