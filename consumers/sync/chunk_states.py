"""The chunks of one file, as a table of states: which are written, and which are asked for again. Pure.

Chunks come in order, since one partition has them. A chunk that is missing was dropped by Kafka, or was damaged: then
everything from it on is asked for once more.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class FileState(StrEnum):
    """How far a file is at a receiver."""

    EXPECTED = "expected"
    RECEIVING = "receiving"
    GAPPED = "gapped"
    COMPLETE = "complete"
    DECIDED = "decided"


class ChunkEvent(StrEnum):
    """What a chunk is for its file, or what has happened to the file."""

    NEXT = "next"
    LAST = "last"
    AHEAD = "ahead"
    KNOWN = "known"
    MISFIT = "misfit"
    SILENCE = "silence"
    DECIDE = "decide"


class ChunkAction(StrEnum):
    """What to do."""

    NOTHING = "nothing"
    WRITE = "write"
    RESEND = "resend"
    REJECT = "reject"


Step = tuple[FileState, ChunkAction]
_OPEN: Mapping[ChunkEvent, Step] = {
    ChunkEvent.NEXT: (FileState.RECEIVING, ChunkAction.WRITE),
    ChunkEvent.LAST: (FileState.COMPLETE, ChunkAction.WRITE),
    ChunkEvent.AHEAD: (FileState.GAPPED, ChunkAction.RESEND),
    ChunkEvent.SILENCE: (FileState.GAPPED, ChunkAction.RESEND),
    ChunkEvent.MISFIT: (FileState.DECIDED, ChunkAction.REJECT),
    ChunkEvent.DECIDE: (FileState.DECIDED, ChunkAction.NOTHING),
}
STEPS: Mapping[FileState, Mapping[ChunkEvent, Step]] = {
    FileState.EXPECTED: {**_OPEN, ChunkEvent.KNOWN: (FileState.EXPECTED, ChunkAction.NOTHING)},
    FileState.RECEIVING: {**_OPEN, ChunkEvent.KNOWN: (FileState.RECEIVING, ChunkAction.NOTHING)},
    # Those behind the gap that were sent before the sender reads of it; it sends them again.
    FileState.GAPPED: {
        **_OPEN,
        ChunkEvent.KNOWN: (FileState.GAPPED, ChunkAction.NOTHING),
        ChunkEvent.AHEAD: (FileState.GAPPED, ChunkAction.NOTHING),
    },
    FileState.COMPLETE: {
        **dict.fromkeys(ChunkEvent, (FileState.COMPLETE, ChunkAction.NOTHING)),
        ChunkEvent.DECIDE: (FileState.DECIDED, ChunkAction.NOTHING),
    },
    FileState.DECIDED: dict.fromkeys(ChunkEvent, (FileState.DECIDED, ChunkAction.NOTHING)),
}
