"""Which slots a write concerns, as the replica asks for it; `distinct_slots.py` has the answer. Pure."""

from __future__ import annotations

from collections.abc import Callable

from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import Slots
from headrace.schemas.messages import Write

SlotsOf = Callable[[Write, int], Slots]
"""The distinct slots of the rows of a write, of so many slots in all. Raises PayloadInvalid."""


class SlotsUnknown(HeadraceError):
    """A record concerns slots that moved, and nobody here computes the slots of its rows."""


def no_slots(_write: Write, _slots_total: int) -> Slots:
    """The answer of a build that does not follow slots: the group stops. Raises SlotsUnknown."""
    raise SlotsUnknown(
        "slots of this group have moved, and this build does not follow that", action="upgrade this node"
    )
