"""One group of a centre in a simulation of sync: its log of loads and deletes, its files, merges, and what queries see.

What counts, and where it ranks, is decided by the code that ships; a file is a map from keys to values here.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from headrace.consumers.migration.cut_listing import NOBODY
from headrace.consumers.replication import sync_rules
from headrace.consumers.replication.actions import Ignored
from headrace.consumers.replication.group_state import ProducerState
from headrace.consumers.store import synced
from headrace.consumers.store.segment import SegmentEntry
from headrace.consumers.sync.load import sync_load
from headrace.schemas.message_bodies import ProducerPosition
from headrace.schemas.messages import Load, SyncedRows, load_identity
from headrace.schemas.sync_records import SyncFile

Key = tuple[str, int]
"""(series, time)."""
ERA = 1


@dataclass
class StoredFile:
    """A segment, and its rows."""

    entry: SegmentEntry
    rows: dict[Key, int]


@dataclass(frozen=True)
class OwnDelete:
    """A delete of devices of one sender between two times."""

    position: ProducerPosition
    series: tuple[str, ...]
    start: int
    end: int


class SimStore:
    """See the module."""

    def __init__(self) -> None:
        self.files: list[StoredFile] = []
        self.loads: set[bytes] = set()
        self.producers: dict[str, ProducerState] = {}
        self.senders: dict[str, str] = {}
        self.contents: dict[tuple[str, bytes], int] = {}
        self.void = self.repeated = self.late = self.merged = 0
        self._version = 0

    def load(self, body: SyncFile, sender: str, number: int, data: bytes) -> Ignored | None:
        """A record of a load is read; why it changes nothing."""
        load = sync_load(body, sender, number, NOBODY, 1)
        self._version += 1
        ignored = sync_rules.stale_load(load, self.loads, self.producers)
        if ignored is not None:
            self.void += ignored is Ignored.VOID
            self.repeated += ignored is Ignored.REPEATED
            return ignored
        self.loads.add(load_identity(load))
        self.contents[sender, body.content_digest] = self.contents.get((sender, body.content_digest), 0) + 1
        rows = {(series, time): value for series, time, value in json.loads(data)}
        for series, _ in rows:
            # Whatever the owner topic says: rows of one device never come from two senders.
            assert self.senders.setdefault(series, sender) == sender, f"device {series} has rows of two senders"
        for each in body.deletes:
            assert each.start_ns is not None
            assert each.end_ns is not None
            _remove(rows, dict(each.tags)["s"], each.start_ns, each.end_ns)
        present = [each.entry for each in self.files]
        entry = synced.ranked(_entry(load), ERA, self._version, present)
        self.late += entry.first_version < self._version
        self.files.append(StoredFile(entry, rows))
        return None

    def delete(self, delete: OwnDelete) -> None:
        """A record of a delete is read: a repeat, or one of an older batch, changes nothing."""
        self._version += 1
        at = delete.position
        known = self.producers.get(at.producer)
        place = (at.sequence, b"")
        if known is not None and (at.batch < known.batch or (at.batch == known.batch and place in known.seen)):
            return
        if known is None or at.batch > known.batch:
            known = self.producers[at.producer] = ProducerState(at.batch, self._version)
        known.seen.add(place)
        for file in self.files:
            _remove(file.rows, delete.series, delete.start, delete.end)

    def merge(self) -> None:
        """The lowest two units that may be merged become one segment."""
        ordered = sorted(self.files, key=lambda each: synced.rank_of(each.entry))
        units = synced.whole_versions([each.entry for each in ordered])
        settled = synced.settled_of(each.entry for each in ordered)
        for lower, upper in pairwise(units):
            whole = synced.is_settled(lower, settled) and synced.is_settled(upper, settled)
            if whole and synced.may_join(lower, upper, settled):
                chosen = {each.name for each in (*lower, *upper)}
                self._replace([each for each in ordered if each.entry.name in chosen])
                return

    def _replace(self, inputs: Sequence[StoredFile]) -> None:
        entries = [each.entry for each in inputs]
        assert synced.in_order(entries), "a merge has inputs out of order"
        rows: dict[Key, int] = {}
        for each in inputs:
            rows |= each.rows
        senders, stores = synced.of_all(entries)
        first, last = entries[0].first_version, max(each.last_version for each in entries)
        whole = replace(entries[0], first_version=first, last_version=last, order="", synced=senders, stores=stores)
        whole = replace(whole, generation=max(each.generation for each in entries) + 1)
        whole = replace(whole, name=synced.name_of(whole).relative)
        self.files = [each for each in self.files if each not in inputs]
        self.files.append(StoredFile(whole, rows))
        self.merged += 1

    def rows(self) -> dict[Key, int]:
        """What queries see: of each key the value of the highest rank."""
        found: dict[Key, int] = {}
        for each in sorted(self.files, key=lambda each: synced.rank_of(each.entry)):
            found |= each.rows
        return found


def _remove(rows: dict[Key, int], series: Sequence[str], start: int, end: int) -> None:
    for key in [key for key in rows if key[0] in series and start <= key[1] < end]:
        del rows[key]


def _entry(load: Load) -> SegmentEntry:
    place = (load.database, load.table, load.slice_number, load.bucket)
    ranks = (load.era, load.first_version, load.last_version, load.generation)
    entry = SegmentEntry("", *place, *ranks, load.rows, 0, 1, load.size_bytes, load.content_digest.hex(), "", 1, 0)
    rows = (SyncedRows(load.sender, load.order, load.settled),)
    return replace(entry, order=synced.place_of(load), synced=rows, stores=load.stores)
