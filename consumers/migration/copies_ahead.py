"""What the members of a donor know of the nodes that copy its files ahead: notes in memory, renewed while it lasts.

The leader of the donor waits for them with the report of the first phase. Notes are no part of any log: they may be
lost with the process, and a node that stops sending them is waited for no longer.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

from headrace.connectors.clock import SYSTEM_CLOCK, Clock
from headrace.schemas.group_changes import GroupKey

NOTE_VALID_S = 5.0
"""A node that has sent no note for so long copies no more."""
NOTES_MAX = 1_000


@dataclass(frozen=True, slots=True)
class CopyNote:
    """A node that copies files of a group ahead for a change, and how many it has left."""

    change: int
    node: str
    left: int


class CopiesAhead:
    """The newest note of each node. Safe to share between threads."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._notes: dict[tuple[GroupKey, str], tuple[CopyNote, float]] = {}

    def take(self, key: GroupKey, note: CopyNote) -> None:
        """A node has sent a note."""
        with self._lock:
            self._notes.pop((key, note.node), None)
            self._notes[key, note.node] = note, self._clock.monotonic_s()
            # Any process can send one, under any name.
            while len(self._notes) > NOTES_MAX:
                del self._notes[next(iter(self._notes))]

    def left(self, key: GroupKey, change: int) -> int | None:
        """How many files of a group are left to copy, by the notes that are valid; None without one."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            notes = list(self._notes.items())
        lefts = [
            note.left
            for (noted, _), (note, at_s) in notes
            if noted == key and note.change == change and now_s - at_s < NOTE_VALID_S
        ]
        return sum(lefts) if lefts else None
