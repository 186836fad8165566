"""The fence of a query over groups of this node: they serve without a break, under one slot table, to its last row."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from headrace.connectors.clock import Moment
from headrace.consumers.query.query_errors import AnswerStale, NotReady
from headrace.consumers.query.stale_reads import DataState, not_ready
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_registry import GroupNotHere


class ServingState(DataState, Protocol):
    """Whether a node serves; see `consumers.node.readiness`."""

    @property
    def fencings(self) -> int:
        """How often the node was fenced; see `consumers.replication.heartbeat`."""
        ...

    def refusals(self) -> Sequence[str]:
        """Why the node serves no group at all, whatever their states."""
        ...

    def refusal(self, topic: str) -> str:
        """Why one group does not serve while the node itself may, empty when it does."""
        ...

    def confirmed_offset(self, topic: str) -> int:
        """The offset up to which the node has confirmed the records of a forward topic to anybody."""
        ...


class LocalFence:
    """The ReadFence of one query at this node, for `groups` that are here."""

    as_of: Moment | None = None

    def __init__(
        self,
        groups: Mapping[str, Group],
        state: ServingState,
        topics: Collection[str] | None = None,
        table_version: int = 0,
    ) -> None:
        """Of all groups, or those of `topics`, as they are under one slot table; 0: whichever. Raises NotReady."""
        self.table_version = table_version
        # Before the check: a node that is fenced and back between the two has another number at the end.
        self._fencings = state.fencings
        self._state = state
        self._groups = groups
        try:
            self._began_with = {topic: groups[topic] for topic in (list(groups) if topics is None else topics)}
            self.confirmed = {group.key: state.confirmed_offset(topic) for topic, group in self._began_with.items()}
            reasons = [*state.refusals()] or [reason for topic in self._began_with if (reason := state.refusal(topic))]
        except GroupNotHere as error:
            raise NotReady.because([error.message]) from error
        if reasons:
            raise not_ready(state, reasons)

    @property
    def topics(self) -> Collection[str]:
        """The groups that it is of, by forward topic."""
        return self._began_with.keys()

    @property
    def groups(self) -> Sequence[Group]:
        """The groups that it is of, each with the data that it has now."""
        return [self._groups.get(topic, group) for topic, group in self._began_with.items()]

    def check(self) -> None:
        """See ReadFence. Rows of a group that leaves this node meanwhile are as right as when they were read."""
        stays = {topic: group for topic, group in self._began_with.items() if not group.health.leaves_sound}
        try:
            self._check(stays)
        except GroupNotHere as error:
            left = AnswerStale.because(error.message)
            left.is_planned = True
            raise left from error

    def _check(self, stays: Mapping[str, Group]) -> None:
        reasons = [*self._state.refusals()] or [reason for topic in stays if (reason := self._state.refusal(topic))]
        # A process that was stopped and is back may have read its heartbeat again before it came here.
        if reasons or self._state.fencings != self._fencings:
            raise AnswerStale.because("; ".join(reasons) or "it was stopped, or cut off from Kafka, for a moment")
        for topic, group in stays.items():
            if self._groups[topic] is not group:
                raise AnswerStale.because(f"group {group.name} recovered, its files were replaced")
