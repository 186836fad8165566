"""What the groups of one answer have handed over to each other. Pure.

A group that gave up slots hands on the rows that still come for them. They are in no store of its own, so an answer
has them only if the group that holds the slots had accepted them when it was read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from headrace.consumers.replication.change_view import ChangeView
from headrace.schemas.group_changes import BEGINNING, GroupKey, HandOverPosition

Positions = Mapping[GroupKey, HandOverPosition]
"""Positions in the hand-over between two groups, by the other group."""
Required = dict[GroupKey, dict[GroupKey, HandOverPosition]]
"""By group, what it must have accepted, by origin."""


@dataclass(frozen=True, slots=True)
class HandOvers:
    """One group as it was read: what it has handed over, by target, and what it had accepted, by origin."""

    handed: Positions = field(default_factory=dict)
    accepted: Positions = field(default_factory=dict)

    @classmethod
    def of(cls, view: ChangeView) -> HandOvers:
        """Those of a group here."""
        handed = dict(view.handed) | {target: due[-1].transfer.position for target, due in view.due.items() if due}
        return cls({target: position for target, position in handed.items() if position > BEGINNING}, view.accepted)

    def document(self) -> dict[str, Any]:
        """As JSON values; empty when there is nothing."""
        both = {"handed": to_list(self.handed), "accepted": to_list(self.accepted)}
        return {name: positions for name, positions in both.items() if positions}

    @classmethod
    def parse(cls, document: Any) -> HandOvers:
        """The inverse of `document`. Raises ValueError."""
        if not isinstance(document, dict):
            raise ValueError("hand-overs are not a JSON object")
        return cls(from_list(document.get("handed", [])), from_list(document.get("accepted", [])))


def missing(read: Mapping[GroupKey, HandOvers]) -> Required:
    """What groups must have accepted beyond what they had when they were read."""
    found: Required = {}
    for origin, hand_overs in read.items():
        for target, position in hand_overs.handed.items():
            had = read[target].accepted.get(origin, BEGINNING) if target in read else BEGINNING
            if had < position:
                found.setdefault(target, {})[origin] = position
    return found


def to_list(positions: Positions) -> list[list[Any]]:
    """Positions as JSON values."""
    return [[key.group, key.birth, at.version, at.part] for key, at in sorted(positions.items())]


def from_list(given: Any) -> dict[GroupKey, HandOverPosition]:
    """The inverse of `to_list`. Raises ValueError."""
    if not isinstance(given, list) or not all(_is_position(each) for each in given):
        raise ValueError("positions are not lists of group, birth, version and part")
    return {GroupKey(group, birth): HandOverPosition(version, part) for group, birth, version, part in given}


def _is_position(each: Any) -> bool:
    return (
        isinstance(each, list)
        and len(each) == 4
        and isinstance(each[0], str)
        and all(isinstance(number, int) and not isinstance(number, bool) for number in each[1:])
    )
