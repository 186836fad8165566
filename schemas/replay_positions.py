"""How far a dead-letter topic was replayed into a cluster: the values of `{c}.replayed`."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from headrace.schemas.framing import codec


@dataclass(frozen=True, slots=True)
class ReplayPosition:
    """Records of a dead-letter topic below `offset` are done; `replayed.avsc` explains the fields."""

    topic: str
    topic_id: str
    offset: int
    run: str


def encode_position(position: ReplayPosition) -> bytes:
    """A position as a single-object frame."""
    return codec("replayed").encode(asdict(position))


def decode_position(value: bytes) -> ReplayPosition:
    """The position in a frame. Raises FrameInvalid."""
    return ReplayPosition(**codec("replayed").decode(value))
