"""What a node remembers of the pull of one pair, and what its group shows of it. All of it may be lost at any moment."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import cached_property

from headrace.consumers.migration.cut_listing import CutListing
from headrace.consumers.migration.slot_pull import Pair, PullDecision, PullState, covered
from headrace.consumers.replication.group import Group
from headrace.consumers.store import SegmentEntry
from headrace.schemas.messages import Load


@dataclass
class Pull:
    """One pair: the list, the request for it, and the loads that were appended last. Owned by the puller's thread.

    `missing` are the loads of the list that have not counted in the log.
    """

    pair: Pair
    donors: tuple[str, ...]
    listing: CutListing | None = None
    asked: Future[CutListing] | None = None
    ask_at_s: float = 0.0
    refusal: str = ""
    appended: frozenset[bytes] = frozenset()
    appended_until_s: float = 0.0
    loaded: tuple[Group, int] | None = None
    settled: Group | None = None
    awaited_bytes: int = 0
    missing: tuple[Load, ...] = ()
    decision: PullDecision = field(default_factory=lambda: PullDecision(PullState.WAITING))

    @cached_property
    def slots(self) -> frozenset[int]:
        """The slots of the pair, for looks at one of them."""
        return frozenset(self.pair.slots)

    @property
    def bytes_total(self) -> int:
        """Bytes of all files of the list, 0 before there is one."""
        return 0 if self.listing is None else self.listing.size_bytes

    @property
    def bytes_done(self) -> int:
        """Bytes of the files that are attached here."""
        missing_bytes = sum(load.size_bytes for load in self.missing)
        return max(0, self.bytes_total - self.awaited_bytes - missing_bytes)


def missing_loads(listing: CutListing, group: Group) -> dict[bytes, Load]:
    """The loads of a list that have not counted in the log of a group so far, by identity."""
    known = group.replica.state.loads
    missing = {identity: load for identity, load in listing.by_identity.items() if identity not in known}
    if not missing:
        return missing
    # A group forgets its oldest loads, so the catalogue is asked too: a list may be longer than that memory.
    present: dict[tuple[str, str, int, int], list[SegmentEntry]] = {}
    for entry in (*group.store.segments(), *group.store.awaited()):
        present.setdefault(entry.location, []).append(entry)
    return {identity: load for identity, load in missing.items() if not covered(load, present)}


def is_settled(pull: Pull, group: Group) -> bool:
    """Whether the store has carried out the loads of a pull, all of which have counted."""
    if pull.settled is group:
        return True
    if pull.loaded is None or pull.loaded[0] is not group:
        # The replica has them from here on. Their jobs exist once the group shows this version as applied.
        pull.loaded = group, group.replica.state.version
    version = pull.loaded[1]
    # By the versions of the jobs: later ones, such as seals under full load, may follow one another without an end.
    done = group.version >= version and not group.store.has_pending(version)
    pull.settled = group if done else None
    return done
