"""The figures of a node's pulls, for metrics, statuses and operators."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from headrace.consumers.migration.pull import Pull
from headrace.consumers.migration.slot_pull import PullState
from headrace.schemas.group_changes import GroupKey

REASONS_SHOWN = 3
"""Pairs that a status names: a new group takes slots from every other one."""


class FetchCounts(Protocol):
    """What was fetched since the node started; see FilePuller."""

    files: int
    errors: int


@dataclass(frozen=True, slots=True)
class PullFigures:
    """What a node pulls for the running change: zeros while there is none. `files` and `errors` are never reset.

    `reasons` has, by group, what the data of its slots waits for.
    """

    slots_done: int = 0
    slots_total: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    bytes_per_second: float = 0.0
    files: int = 0
    errors: int = 0
    reasons: Mapping[str, str] = field(default_factory=dict)


def figures_of(
    pulls: Sequence[Pull],
    faults: Mapping[GroupKey, str],
    bytes_per_second: float,
    counts: FetchCounts,
    ahead: tuple[int, int] = (0, 0),
) -> PullFigures:
    """The figures of all pairs of a node.

    `faults` are why files do not arrive, by the group that gained slots. `ahead` has the bytes that were copied in a
    first phase, and all that will be.
    """
    reasons: dict[str, list[str]] = {}
    for pull in pulls:
        if pull.decision.state is not PullState.REPORTED:
            reasons.setdefault(pull.pair.target.group, []).append(_reason(pull, faults.get(pull.pair.target, "")))
    return PullFigures(
        slots_done=sum(len(pull.pair.slots) for pull in pulls if pull.decision.state is PullState.REPORTED),
        slots_total=sum(len(pull.pair.slots) for pull in pulls),
        bytes_done=ahead[0] + sum(pull.bytes_done for pull in pulls),
        bytes_total=ahead[1] + sum(pull.bytes_total for pull in pulls),
        bytes_per_second=bytes_per_second,
        files=counts.files,
        errors=counts.errors,
        reasons={group: _bounded(texts) for group, texts in reasons.items()},
    )


def _bounded(texts: Sequence[str]) -> str:
    """A few of them: first those that have a cause, which is behind their semicolon."""
    shown, more = sorted(texts, key=lambda text: "; " not in text)[:REASONS_SHOWN], len(texts) - REASONS_SHOWN
    return "; ".join([*shown, *([f"and {more} more"] if more > 0 else [])])


def _reason(pull: Pull, fault: str) -> str:
    state, slots = pull.decision.state, len(pull.pair.slots)
    done = f", {pull.bytes_done / 1e6:.1f} of {pull.bytes_total / 1e6:.1f} MB" if pull.listing is not None else ""
    why = pull.refusal if state in (PullState.LISTING, PullState.LOADING) else ""
    why = fault if state is PullState.FETCHING else why
    return f"pulling {slots} slots of group {pull.pair.donor.group}: {state}{done}{f'; {why}' if why else ''}"
