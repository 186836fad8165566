"""What a member of a group that ended does, until the topic of the group is deleted. Pure.

Kafka acknowledges records into a topic until its deletion. So nobody deletes a topic before it refuses every record,
and before all of it was handed over. docs/internals/membership.md has the situations as a table, which a test reads.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from headrace.consumers.membership.slot_table import SlotTable
from headrace.schemas.records import Status


class Ending(StrEnum):
    """Where a group that ended is, as one member sees it; the first that holds, in this order."""

    FOLLOWING = "following"
    CLOSING = "closing"
    DRAINING = "draining"
    HANDING_OVER = "handing over"
    KEEPING = "keeping"
    DELETING = "deleting"


@dataclass(frozen=True, slots=True)
class EndingView:
    """What a member knows of its group, whose change has ended.

    `acts`: this node leads the group, or it is the one that may claim. `end` is the final end of the topic, None
    unless this node has closed it. `applied`: the offset behind all that was read and applied. `due`: other groups do
    not show that they have accepted every record of the log, as far as it was applied. `kept`: since this
    node closed the topic, others who read it, as streams of Spark, had time to come to its end.
    """

    acts: bool
    end: int | None
    applied: int
    due: bool
    kept: bool


def decide_ending(view: EndingView) -> Ending:
    """What this node does now."""
    if not view.acts:
        return Ending.FOLLOWING
    # Also while records are due: a late writer may never pause.
    if view.end is None:
        return Ending.CLOSING
    if view.applied < view.end:
        return Ending.DRAINING
    if view.due:
        return Ending.HANDING_OVER
    return Ending.DELETING if view.kept else Ending.KEEPING


def all_settled(table: SlotTable, statuses: Iterable[Status]) -> bool:
    """Whether a member of every group of a table has shown that the group has reached it.

    Before that a group may have late records for one that ended, and that group must accept them.
    """
    reached = {status.group for status in statuses if status.settled >= table.version}
    return reached.issuperset(table.headers)
