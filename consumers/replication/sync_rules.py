"""Why a load, or a delete of a sync sender, changes nothing. Pure."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Protocol

from headrace.consumers.replication.actions import Ignored
from headrace.consumers.replication.change_state import ChangeState
from headrace.consumers.replication.group_state import GroupState
from headrace.schemas.message_bodies import ProducerPosition
from headrace.schemas.messages import (
    Load,
    deletes_batch,
    deletes_producer,
    is_deletes_producer,
    is_of_older_table,
    load_identity,
)
from headrace.schemas.series import slot_of


class NewestBatch(Protocol):
    """What is known of a producer."""

    @property
    def batch(self) -> int:
        """The newest one."""
        ...


def refused_load(load: Load, state: GroupState) -> Ignored | None:
    """Why a load does not count in a group, by its state before that record."""
    changes = state.changes
    if not changes.given and not changes.origins:
        return stale_load(load, state.loads, state.producers)
    slot = slot_of(load.database, load.bucket, load.slice_number, changes.slots_total)
    if slot in changes.given:
        # Whoever sent it reads that it did not count, and sends it to the group that holds the slot.
        return Ignored.SLOT_MOVED
    if (stale := stale_load(load, state.loads, state.producers)) is not None:
        return stale
    former = (section.producers for section in changes.sections() if slot in section.slots)
    return Ignored.VOID if any(is_void(load, each) for each in former) else None


def stale_load(load: Load, loads: Container[bytes], producers: Mapping[str, NewestBatch]) -> Ignored | None:
    """What one log says of a load: its file is here, or deletes have made it void."""
    # By its content and not by who sends: a new leader repeats what its predecessor may have appended. After
    # a merge no name of a file shows that this one is here already.
    if load_identity(load) in loads:
        return Ignored.REPEATED
    return Ignored.VOID if is_void(load, producers) else None


def is_void(load: Load, producers: Mapping[str, NewestBatch]) -> bool:
    """Whether deletes of its sender that came since the manifest of the file are among what producers have sent."""
    # A request for a load may outlive the receiver that made it. Behind these deletes it would undo them: the file does
    # not bring them.
    fence = producers.get(deletes_producer(load.sender, load.group)) if load.number else None
    return fence is not None and fence.batch >= deletes_batch(load.number)


def is_late_delete(position: ProducerPosition, changes: ChangeState) -> bool:
    """Whether a delete of a sync sender was sent by an older slot table than the group has reached."""
    # A slot that came since has rows behind it that are newer: until its takeover this group knows of no list of
    # deletes that they have behind them. The receiver that is not replaced sends all by the newest table.
    return is_deletes_producer(position.producer) and is_of_older_table(position.batch, changes.proven_version)
