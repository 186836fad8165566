"""What a group's log has decided about its members and slots, as other threads see it. Immutable."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Any, overload

from headrace.consumers.replication import hand_over
from headrace.consumers.replication.change_state import ChangeState
from headrace.consumers.replication.cut_memory import CutMemory
from headrace.consumers.replication.holdings import Given
from headrace.consumers.replication.transfers import HandOver
from headrace.schemas.group_changes import BarrierPhase, GroupKey, HandedOver, HandOverPosition
from headrace.schemas.messages import Message
from headrace.schemas.records import Acceptance

_EMPTY: Mapping[Any, Any] = MappingProxyType({})


class Due(Sequence[HandOver]):
    """What one group must still accept, in order: the beginning of a list to which its owner only appends."""

    # A copy for each late record would cost as much as all the records that wait.
    __slots__ = ("_count", "_items")

    def __init__(self, items: list[HandOver]) -> None:
        self._items, self._count = items, len(items)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[HandOver]:
        return islice(self._items, self._count)

    @overload
    def __getitem__(self, index: int) -> HandOver: ...

    @overload
    def __getitem__(self, index: slice) -> list[HandOver]: ...

    def __getitem__(self, index: int | slice) -> HandOver | list[HandOver]:
        if isinstance(index, slice):
            return [self._items[each] for each in range(*index.indices(self._count))]
        return self._items[range(self._count)[index]]


@dataclass(frozen=True, slots=True)
class ChangeView:
    """Members and slots of a group after one record.

    `change`, `phase` and `table_version` are those of the newest barrier that counted; 0 and None before the first.
    `given` has the slots that other groups hold. `due` is what each of these must still accept, in order, and
    `accepted` the newest position from each origin that counted here. `handed` is what this group knows each of those
    that took slots to have accepted. `taken` has the newest table by which slots have come from each origin. `added`
    are the members that a running first phase adds: they count for no quorum yet. `cuts` is what `record_of` needs for
    takeovers that are due.
    """

    members: tuple[str, ...] = ()
    era: int = 0
    slots_total: int = 0
    change: int = 0
    phase: BarrierPhase | None = None
    table_version: int = 0
    given: Mapping[int, Given] = field(default_factory=lambda: _EMPTY)
    due: Mapping[GroupKey, Sequence[HandOver]] = field(default_factory=lambda: _EMPTY)
    accepted: Mapping[GroupKey, HandOverPosition] = field(default_factory=lambda: _EMPTY)
    added: tuple[str, ...] = ()
    settled: int = 1
    handed: Mapping[GroupKey, HandOverPosition] = field(default_factory=lambda: _EMPTY)
    taken: Mapping[GroupKey, int] = field(default_factory=lambda: _EMPTY)
    cuts: Mapping[int, CutMemory] = field(default_factory=lambda: _EMPTY, repr=False)
    revision: int = field(default=0, compare=False)

    @classmethod
    def of(cls, state: ChangeState, before: ChangeView | None = None) -> ChangeView:
        """The view of a state; `before`, an earlier view of the same state, unless that has changed since."""
        # Nearly every record changes nothing of it.
        if before is not None and before.revision == state.revision:
            return before
        return cls(
            members=state.members,
            era=state.era,
            slots_total=state.slots_total,
            change=state.change,
            phase=state.phase,
            table_version=state.table_version,
            given=MappingProxyType(state.given),
            due=MappingProxyType({key: Due(each.outstanding) for key, each in state.targets.items()}),
            accepted=MappingProxyType({key: each.position for key, each in state.origins.items()}),
            added=state.added,
            settled=state.settled_version,
            handed=MappingProxyType({key: each.accepted for key, each in state.targets.items()}),
            taken=MappingProxyType({key: each.table_version for key, each in state.origins.items()}),
            cuts=MappingProxyType(state.cuts),
            revision=state.revision,
        )

    def acceptances(self) -> tuple[Acceptance, ...]:
        """What statuses show of the groups that have handed over something, sorted by these."""
        return tuple(
            Acceptance.of(key, position, self.taken.get(key, 0)) for key, position in sorted(self.accepted.items())
        )

    @property
    def voters(self) -> tuple[str, ...]:
        """The members that count for a quorum: those that a running first phase adds do not."""
        return tuple(member for member in self.members if member not in self.added)

    @property
    def settled_version(self) -> int:
        """The newest table version whose second phase, or birth, this group has reached."""
        return self.settled

    @property
    def proven_version(self) -> int:
        """The newest table version that a record here has shown to count, also while the second phase is to come."""
        # A writer of the new table proves it. From then on there are rows here that the former holder may have, too.
        return max(self.settled, self.era)

    def due_offset(self) -> int | None:
        """The lowest offset of a record that another group must still accept; None if nothing is due."""
        return min((each.transfer.offset for due in self.due.values() for each in due[:1]), default=None)

    def record_of(self, origin: GroupKey, wanted: HandOver, message: Message | None) -> HandedOver:
        """The record for the group that took slots from this one, `origin`.

        `message` is the one at the offset of the transfer; a part of a takeover needs none.
        """
        return hand_over.record_of(origin, self.cuts, self.slots_total, wanted, message)
