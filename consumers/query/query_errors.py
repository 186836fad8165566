"""The conditions that end a query, one class for each that a caller can act on.

Those that end a query whoever runs it are from `consumers.scheduling`. This module stays free of DuckDB and Arrow:
every client imports it, and a command must not wait for them. Class names are the `kind` of HTTP answers, so they are
part of the protocol between node and client.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from headrace.consumers.scheduling.scheduling_errors import QueryCancelled as QueryCancelled
from headrace.consumers.scheduling.scheduling_errors import QueryError as QueryError
from headrace.consumers.scheduling.scheduling_errors import QueryFailed as QueryFailed
from headrace.consumers.scheduling.scheduling_errors import QueryMemory as QueryMemory
from headrace.consumers.scheduling.scheduling_errors import QueryTimeout as QueryTimeout
from headrace.consumers.scheduling.scheduling_errors import QueryTooLarge as QueryTooLarge
from headrace.consumers.scheduling.scheduling_errors import QueryUnknown as QueryUnknown
from headrace.consumers.scheduling.scheduling_errors import TooManyQueries as TooManyQueries
from headrace.schemas.errors import HeadraceError


class NotReadOnly(QueryError):
    """SQL that is not one single reading statement."""


class FunctionRefused(QueryError):
    """SQL that calls a function that reads files, settings or other queries."""


class UnknownTable(QueryError):
    """SQL that names a table that no database has, or that several have."""


class QueryInvalid(QueryError):
    """SQL that cannot be parsed, bound, or run over these rows."""


class NotReady(QueryError):
    """The node does not serve now: it is starting, behind, cut off, or holds data that it does not trust."""

    @classmethod
    def because(cls, reasons: Iterable[str], age: str = "") -> NotReady:
        """The error of a node that is not ready for these reasons; `age` is that of the answer it could give."""
        way_out = "; or allow an older answer: --stale 60s, in Python stale=60, over HTTP stale" if age else ""
        return cls(
            f"this node is not ready: {'; '.join([*reasons, *([age] if age else [])])}",
            action=f"retry, or ask another node; /health/ready shows when{way_out}",
            retriable=True,
        )


class AnswerStale(QueryError):
    """The node stopped serving while the query ran, or replaced the data that it read: the rows may be outdated."""

    is_planned = False
    """Whether a change of the cluster has taken the data from the node, and nothing is at fault."""

    @classmethod
    def because(cls, reason: str) -> AnswerStale:
        """The error of a query during which the node stopped serving for a reason."""
        return cls(
            f"this node stopped serving while the query ran: {reason}",
            action="retry, or ask another node",
            retriable=True,
        )


def is_of_change(error: HeadraceError) -> bool:
    """Whether a faultless change of the cluster ended a query: it is planned again, or another node is asked."""
    return isinstance(error, SlotNotHeld) or (isinstance(error, AnswerStale) and error.is_planned)


class NotCaughtUp(QueryError):
    """The node has not applied its logs up to the offsets that the query must see."""

    @classmethod
    def to(cls, offsets: Mapping[str, int]) -> NotCaughtUp:
        """The error of a node that did not reach the offsets, by group, within the time of a query."""
        groups = ", ".join(f"offset {offset} of group {group}" for group, offset in sorted(offsets.items()))
        return cls(
            f"this node did not reach {groups} in the time of the query",
            action="retry, or ask another node",
            retriable=True,
        )

    @classmethod
    def with_moved_rows(cls) -> NotCaughtUp:
        """The error of a node that did not get what other groups hand over within the time of a query."""
        return cls(
            "this node has not received the rows of slots that changed hands in the time of the query",
            action="retry, or ask another node",
            retriable=True,
        )


class UnknownLog(QueryError):
    """A query that must contain an offset of a log that the cluster does not have."""

    @classmethod
    def named(cls, name: str) -> UnknownLog:
        """The error of a query whose `after` has this name."""
        return cls(
            f"after names {name!r}, which is no forward log of this cluster",
            action="give the topics that headrace write --json shows as offsets",
        )


class SlotNotHeld(QueryError):
    """A node that was asked for rows of a group that it is no member of: never an empty answer."""

    @classmethod
    def of(cls, group: str, node: str) -> SlotNotHeld:
        """The error of a node that does not hold a group."""
        return cls(f"node {node} does not hold group {group}", action="ask a member of the group", retriable=True)

    @classmethod
    def left(cls, group: str) -> SlotNotHeld:
        """The error of a query whose group has left the node while the query waited for it, or before it read it."""
        return cls(f"group {group} has left this node", action="retry, or ask a member of the group", retriable=True)


class SlotsMoved(SlotNotHeld):
    """A group has reached a newer slot table than the one that a query was planned with: it must be planned again."""

    @classmethod
    def to(cls, group: str, reached: int, planned: int) -> SlotsMoved:
        """The error of a query that was planned with table `planned`, while its group has reached `reached`."""
        return cls(
            f"group {group} has reached slot table {reached}, and the query was planned with table {planned}",
            action="retry: the node that was asked reads the newer table in a moment",
            retriable=True,
        )


class TooManyScans(QueryError):
    """As many scans for other nodes run as the node allows at a time."""


class GroupUnavailable(QueryError):
    """No member of a group gave its rows; names the group, and why each of them did not."""

    @classmethod
    def because(cls, group: str, reasons: Iterable[str]) -> GroupUnavailable:
        """The error of a query that needs rows of a group of other nodes."""
        return cls(
            f"no member of group {group} gave its rows: {'; '.join(reasons)}",
            action="retry, or ask another node; headrace status of the members shows the cause",
            retriable=True,
        )


class ReplicaLost(GroupUnavailable):
    """A member that was asked for rows was lost before its last one, and no other member took its place."""

    @classmethod
    def because(cls, group: str, reasons: Iterable[str]) -> ReplicaLost:
        """The error of a query that needs rows of a group of other nodes."""
        return cls(
            f"a member of group {group} was lost before its last row, and no other one took its place: "
            f"{'; '.join(reasons)}",
            action="retry, or ask another node; headrace status of the members shows the cause",
            retriable=True,
        )


class SegmentUnreadable(QueryError):
    """A segment file of this node cannot be read: the fault is the node's, not the SQL's."""

    @classmethod
    def because(cls, reason: str) -> SegmentUnreadable:
        """The error of a query that met a file, or the index of one, that cannot be read."""
        # Retriable: this node compares all its files now, and recovers if one differs; others have their own files.
        return cls(
            f"a segment cannot be read: {reason}",
            action="retry, or ask another node; run headrace verify if it lasts: this node may have to recover",
            retriable=True,
        )
