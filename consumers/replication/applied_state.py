"""What a group has applied, as other threads see it."""

from __future__ import annotations

from dataclasses import dataclass, field

from headrace.consumers.replication.change_view import ChangeView
from headrace.consumers.replication.group_state import GroupState
from headrace.schemas.messages import NO_CHAIN, Leadership


@dataclass(frozen=True, slots=True)
class AppliedState:
    """What a group has applied after one record: one value, so that other threads never see half of a step."""

    version: int = 0
    offset: int = -1
    chain: bytes = NO_CHAIN
    timestamp_ms: int = 0
    epoch: int = 0
    leader: Leadership | None = None
    frontier: int = 0
    unsealed_rows: int = 0
    claimed_ms: int = 0
    log_bytes: int = 0
    changes: ChangeView = field(default_factory=ChangeView)

    @classmethod
    def of(cls, state: GroupState, timestamp_ms: int, before: AppliedState | None = None) -> AppliedState:
        """The replicated state with the broker's times.

        They are those of the newest record and, as far as known, of the newest accepted claim.
        """
        # After a start the time of the claim itself is not known: that of the newest record is later, so the grace
        # period may be longer once, and is never shorter.
        claimed_ms = before.claimed_ms if before is not None and before.epoch == state.epoch else timestamp_ms
        newest = (state.version, state.offset, state.chain, timestamp_ms, state.epoch, state.leader)
        changes = ChangeView.of(state.changes, before.changes if before is not None else None)
        return cls(*newest, state.frontier, state.unsealed_rows, claimed_ms, state.log_bytes, changes)
