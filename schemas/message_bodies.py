"""The values that every kind of forward message has in common, and the two kinds that producers write."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ProducerPosition:
    """The position of a message among those of its producer; a newer batch supersedes older ones."""

    # A message of an older batch comes from a zombie, for example a Spark task that was replaced. Its
    # successor wrote the batch again as a whole, so replicas drop it. Equal positions with another digest are
    # applied: a retry may cut a batch differently.
    producer: str
    batch: int
    sequence: int


@dataclass(frozen=True, slots=True)
class Leadership:
    """The leadership under which a leader-only record was written; replicas ignore records of any but the
    newest.
    """

    epoch: int
    node: str
    incarnation: str


@dataclass(frozen=True, slots=True)
class Anchor:
    """A record that the writer has applied: its offset, version and the chain after it."""

    # By the anchor a member notices that the log was truncated and has grown again: the same offset then has
    # another chain.
    offset: int
    version: int
    chain: bytes


@dataclass(frozen=True, slots=True)
class TableVersion:
    """A table at one version of its schema."""

    database: str
    table: str
    schema_version: int


@dataclass(frozen=True, slots=True)
class Write:
    """Rows of one table; `rows` is an encoded row batch (schemas/payload.py)."""

    database: str
    table: str
    schema_version: int
    slot_table_version: int
    row_count: int
    rows: bytes


@dataclass(frozen=True, slots=True)
class Delete:
    """Hides every row of lower rank that matches: tags among the named values, start <= time < end (None =
    unbounded). One with an empty range is a fence: only its position counts.
    """

    database: str
    table: str
    tags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    start_ns: int | None = None
    end_ns: int | None = None

    @property
    def is_fence(self) -> bool:
        """True if it can match no row."""
        return self.start_ns is not None and self.end_ns is not None and self.start_ns >= self.end_ns
