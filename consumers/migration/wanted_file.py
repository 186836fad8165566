"""A file that a group awaits, and where it may be."""

from __future__ import annotations

from dataclasses import dataclass

from headrace.consumers.migration.file_bundle import SMALL_BYTES_MAX
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import State
from headrace.consumers.store import SegmentEntry, staged_names
from headrace.schemas.group_changes import GroupKey


@dataclass(frozen=True, slots=True)
class WantedFile:
    """A file that a group awaits, and the copies that may have it, the best first: (node, group)."""

    topic: str
    group: Group
    entry: SegmentEntry
    sources: tuple[tuple[str, GroupKey], ...]
    ahead: bool = False
    """Whether no record names it yet: it is staged, tried once, and attached by its load."""
    yields: bool = False
    """Whether nobody waits for it: its copy leaves busy processors to others."""

    @property
    def has_donors(self) -> bool:
        """Whether another group may have it, and not the other members of this one alone."""
        return any(key != self.group.birth_key for _, key in self.sources)

    @property
    def is_small(self) -> bool:
        """Whether its donor sends it with others. A member of the group itself may have merged it, and says so."""
        own = not self.sources or self.sources[0][1] == self.group.birth_key
        return not own and self.entry.size_bytes <= SMALL_BYTES_MAX

    def is_like(self, other: WantedFile) -> bool:
        """Whether both may come with one request: small ones of one donor, for one purpose."""
        same = self.group is other.group and self.sources == other.sources and self.ahead == other.ahead
        return same and self.is_small

    @property
    def key(self) -> tuple[str, str]:
        """By topic and content: files of equal content are attached together."""
        return self.topic, self.entry.content_digest

    @property
    def is_wanted(self) -> bool:
        """Whether it is due still: a list may be older than the end of an earlier attempt, or than the load."""
        # The directories of a group that leaves are deleted, and nobody would look for a file that is staged then.
        if self.group.health.holds(State.LEAVING):
            return False
        store = self.group.store
        return not store.has_loaded(self.entry) if self.ahead else store.awaits(self.entry.content_digest)

    @property
    def is_staged(self) -> bool:
        """Whether it is in the staging directory with its series."""
        staging = self.group.store.staging_directory
        return all((staging / name).exists() for name in staged_names(self.entry.content_digest))
