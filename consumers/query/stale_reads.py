"""Answers of a node that does not serve, from what it has: only when asked for, and only with their age.

A node without Kafka still has all that was in its logs at a moment that it knows (`consumers.node.data_age`). An
answer then contains everything up to that moment, perhaps more, and never data that the node does not trust.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from headrace.connectors.clock import Moment
from headrace.consumers.query.query_errors import AnswerStale, NotReady
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_registry import GroupNotHere
from headrace.schemas.durations import age_text


class DataState(Protocol):
    """What a node knows of its own data; see `consumers.node.readiness`."""

    def as_of(self) -> Moment | None:
        """The last moment at which every group held all that its log held; None before the first."""
        ...

    def objections(self) -> Sequence[str]:
        """Why the node must not even answer from what it had."""
        ...

    def durable_offset(self, topic: str) -> int:
        """The offset up to which the records of a forward topic are confirmed as durable."""
        ...


class StaleFence:
    """The ReadFence of a query at a node that does not serve: `within_s` bounds its age up to its last row."""

    def __init__(
        self, groups: Mapping[str, Group], state: DataState, within_s: float, reasons: Sequence[str] = ()
    ) -> None:
        """`reasons` are why the node does not serve. Raises NotReady."""
        self._groups = groups
        self._state = state
        self._within_s = within_s
        self._began_with = dict(groups)
        # The moment first: everything that is looked at, waited for and read later is at least as new.
        moment = state.as_of()
        try:
            self.confirmed = {group.key: state.durable_offset(topic) for topic, group in self._began_with.items()}
        except GroupNotHere as error:
            raise NotReady.because([error.message]) from error
        if moment is None or state.objections() or moment.age_s > within_s:
            raise not_ready(state, reasons, within_s)
        self.as_of: Moment | None = moment

    def check(self) -> None:
        """See ReadFence: the age counts at the end of the answer, not at its beginning."""
        assert self.as_of is not None
        for topic, group in self._began_with.items():
            if self._groups.get(topic) is not group and not group.health.leaves_sound:
                raise AnswerStale.because(f"group {group.name} recovered, its files were replaced")
        if objections := self._state.objections():
            raise AnswerStale.because("; ".join(objections))
        if (age_s := self.as_of.age_s) > self._within_s:
            raise AnswerStale.because(
                f"its data is {age_text(age_s)} old by now, {age_text(self._within_s)} is allowed"
            )


def not_ready(state: DataState, reasons: Sequence[str], within_s: float = 0.0) -> NotReady:
    """The error of a node that does not serve, with the way out where there is one."""
    objections, moment = state.objections(), state.as_of()
    if objections or moment is None:
        # A reason may have the name of its group before the same cause.
        more = [each for each in objections if not any(reason.endswith(each) for reason in reasons)]
        return NotReady.because([*reasons, *more])
    age = f"it has everything up to {moment.iso()}, {age_text(moment.age_s)} ago"
    if within_s:
        age += f", and {age_text(within_s)} is allowed"
    return NotReady.because(reasons, age)
