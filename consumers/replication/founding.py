"""What a data group is born with. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.schemas.group_changes import Slots


@dataclass(frozen=True, slots=True)
class Founding:
    """What a group is born with: its members, the table that had it first, and the slots that it must take over.

    It is the state before the first record of its log, so it must be equal at every member and at every start,
    however many changes have come since.
    """

    members: tuple[str, ...]
    birth: int = 1
    gains: Slots = ()
