"""What a member of a group that ended does, until the topic of the group is deleted. Pure.

Kafka acknowledges records into a topic until its deletion. So nobody deletes a topic before it refuses every record,
and before all of it was handed over. docs/internals/membership.md has the situations as a table, which a test reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Ending(StrEnum):
    """Where a group that ended is, as one member sees it; the first that holds, in this order."""

    FOLLOWING = "following"
    HANDING_OVER = "handing over"
    REOPENING = "reopening"
    CLOSING = "closing"
    DRAINING = "draining"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class EndingView:
    """What a member knows of its group, whose change has ended.

    `acts`: this node leads the group, or it is the one that may claim. `due`: other groups must still accept records
    of the log as far as it was applied. `closed`: the topic has the setting of a closed one. `end` is its final end,
    None unless this node has closed it. `applied`: the offset behind all that was read and applied.
    """

    acts: bool
    due: bool
    closed: bool
    end: int | None
    applied: int


def decide_ending(view: EndingView) -> Ending:
    """What this node does now."""
    if not view.acts:
        return Ending.FOLLOWING
    if view.due:
        # A closed topic takes no claim, and no record that the target has accepted something. So it is opened again:
        # that loses nothing, and writers have had more time to read the new table.
        return Ending.REOPENING if view.closed else Ending.HANDING_OVER
    if view.end is None or not view.closed:
        return Ending.CLOSING
    return Ending.DELETING if view.applied >= view.end else Ending.DRAINING
