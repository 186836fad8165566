"""What a person sees of a change while it runs: its phases, a bar of its slots, and what it waits for."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from headrace.terminal.output import Output, counted

if TYPE_CHECKING:
    from headrace.terminal.progress_bar import Advance

NOTE_INTERVAL_S = 10.0
"""A change that stays in one phase is described this often."""


def remark(output: Output) -> Callable[[str], None]:
    """Notes for people; with --json the only line on stderr is an error."""
    return (lambda _line: None) if output.json_output else output.note


class ProgressView:
    """Shows how far a change is: phases and causes in lines, and a bar of its slots on a terminal."""

    def __init__(self, output: Output, advance: Advance, clock: Callable[[], float] = time.monotonic) -> None:
        self._note = remark(output)
        self._advance = advance
        self._clock = clock
        self._phase = ""
        self._done = 0
        self._note_due_s = 0.0

    def show(self, change: Mapping[str, Any]) -> None:
        """Take the newest state of the change."""
        now_s = self._clock()
        if change["phase"] != self._phase:
            self._phase = change["phase"]
            self._note(phase_line(change))
            self._note_due_s = now_s + NOTE_INTERVAL_S
        elif now_s >= self._note_due_s:
            self._note(progress_line(change))
            self._note_due_s = now_s + NOTE_INTERVAL_S
        self._advance(change["slots_done"] - self._done, change["slots_total"])
        self._done = change["slots_done"]

    def end(self, slots_moved: int) -> None:
        """All slots have moved: the newest state that was shown lacks those that came last."""
        self._advance(slots_moved - self._done, slots_moved)
        self._done = slots_moved


def phase_line(change: Mapping[str, Any]) -> str:
    """What a phase begins with."""
    phase, groups = change["phase"], counted(change["groups_total"], "group")
    if phase == "pre":
        return f"phase pre: {groups} prepare{'s' if change['groups_total'] == 1 else ''} for the new members"
    if phase == "formal":
        return f"phase formal: {groups} ready, table {change['version']} is due"
    return f"phase {phase}: table {change['version']} counts, {counted(change['slots_total'], 'slot')} to move"


def progress_line(change: Mapping[str, Any]) -> str:
    """How far a phase is, the time left where it is known, and the first thing that it waits for."""
    what = "groups" if change["phase"] == "pre" else "slots"
    reach = f"{change[f'{what}_done']:,} of {change[f'{what}_total']:,} {what} done"
    left = f", about {change['eta_s']:,} s left" if change["eta_s"] >= 0 else ""
    from headrace.cluster_change import first_cause

    causes = first_cause(change["waiting_for"])
    return f"{reach}{left}; waits for {causes}" if causes else reach + left
