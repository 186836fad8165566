"""Where the files of moved slots come from: another node over HTTP, or another group of this node by hard links.

A file is staged under its content digest (see `headrace.consumers.store.load_job`). One that has its name there is
complete and verified. A partial one is continued at its byte by whichever node sends it next: the digest of the
sender decides in the end.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from headrace.connectors.files import PARTIAL_SUFFIX
from headrace.consumers.migration.copies_ahead import CopyNote
from headrace.consumers.migration.cut_listing import NOBODY, CutListing, CutListingInvalid
from headrace.consumers.migration.cut_scan import CutAnswer, CutScan
from headrace.consumers.migration.slot_pull import Pair
from headrace.consumers.recovery.progress import CopyObserver
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import Use
from headrace.consumers.store import (
    CutFile,
    CutUnready,
    SegmentEntry,
    Slots,
    StoreError,
    TableUnknown,
    staged_names,
)
from headrace.consumers.store.segment_files import translate_errors
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.messages import Load

CUT_ROUTE = "/api/v1/cut"
CUT_FILE_ROUTE = "/api/v1/cut/file"
BUNDLE_ROUTE = "/api/v1/cut/bundle"
PRESENT_ROUTE = "/api/v1/cut/present"
NOTE_ROUTE = "/api/v1/cut/note"
ROWS_ROUTE = "/api/v1/cut/rows"
DIGEST_HEADER = "x-headrace-digest"
"""xxh3-128 of all bytes of a series file, in hex. The digest of a segment is in its series."""
SERIES_BYTES_HEADER = "x-headrace-series-bytes"
"""How many bytes of an answer are the series, which come before the segment."""
SEGMENT_PART, SERIES_PART, BOTH_PARTS = "segment", "series", "both"


class CutRefused(HeadraceError):
    """A node that does not list or send files of a cut now; `kind` is the type of its error."""

    def __init__(self, message: str, *, action: str = "", retriable: bool = True, kind: str = "") -> None:
        super().__init__(message, action=action, retriable=retriable)
        self.kind = kind


class FileGone(HeadraceError):
    """A file that a group does not have here, or not any more."""


class FileMerged(FileGone):
    """A file that a group has loaded, and merged or dropped since: none of its members gives it any more."""


class CutSource(Protocol):
    """One copy of a group that has files of moved slots. Every method raises CutRefused and SourceFailed."""

    @property
    def name(self) -> str:
        """The node."""
        ...

    def listing(self, pair: Pair, table_version: int) -> CutListing:
        """The files of a pair. Raises CutListingInvalid."""
        ...

    def present(self, pair: Pair, slots_total: int) -> tuple[Load, ...]:
        """The files of slots that the group has given to nobody yet, without their deletes: what it may give later.

        None of a group whose files will be linked. Raises CutListingInvalid.
        """
        ...

    def note(self, note: CopyNote) -> None:
        """Say that files of the group are copied ahead."""
        ...

    def rows(self, pair: Pair, table_version: int, scan: CutScan, timeout_s: float) -> CutAnswer:
        """Rows of a table that left with the slots of a pair, before their files can be listed too.

        Raises CutAnswerInvalid.
        """
        ...

    def stage(self, entry: SegmentEntry, staging: Path, observer: CopyObserver, loaded: int = 0) -> bool:
        """Put the file of an awaited entry and its series into a staging directory.

        `loaded` is the version of its load if this is a copy of the group that awaits it, which may have merged it.
        Returns whether its bytes were compared with the digest of the sender, and synced.
        Raises SourceCorrupt, TransferStopped, StoreFull, StoreUnwritable.
        """
        ...

    def stage_together(self, entries: Sequence[SegmentEntry], staging: Path, observer: CopyObserver) -> frozenset[str]:
        """Put several small files into a staging directory, as far as the source gives them together.

        Returns the content digests of those that are there, compared and synced: others are staged alone. Raises what
        `stage` raises.
        """
        ...


def _given(group: Group, target: GroupKey) -> tuple[int, tuple[int, ...]]:
    """(version, slots) of the newest cut with which a group here gave slots to another one. Raises CutUnready."""
    given = {slot: each.version for slot, each in group.applied.changes.given.items() if each.target == target}
    if not given:
        raise CutUnready(f"group {group.name} has not given a slot to {target.group} yet")
    if group.health.refuses(Use.QUORUM):
        raise CutRefused(f"group {group.name} has wrong data here", action="ask another member")
    version = max(given.values())
    return version, tuple(sorted(slot for slot, newest in given.items() if newest == version))


def rows_of_cut(group: Group, target: GroupKey, table_version: int, scan: CutScan) -> CutAnswer:
    """Rows that a group here has given to another one with the cut that leads to a table, or to a later one.

    Raises CutUnready, CutTooLarge, SegmentAwaited.
    """
    if group.applied.changes.settled_version < table_version:
        raise CutUnready(f"group {group.name} has not reached slot table {table_version}")
    version, slots = _given(group, target)
    total = group.applied.changes.slots_total
    try:
        found = group.store.read_cut(version, Slots(frozenset(slots), total), (scan.database, scan.table), scan.request)
    except TableUnknown:
        return CutAnswer(slots, 0)
    schema, batches = found
    return CutAnswer(slots, schema.version, tuple(batches))


def cut_of(group: Group, target: GroupKey) -> CutListing:
    """What a group here has given to another one with its newest cut. Raises CutUnready, SegmentAwaited."""
    changes = group.applied.changes
    version, slots = _given(group, target)
    cut = group.store.cut(version, Slots(frozenset(slots), changes.slots_total))
    # Parts that were accepted are forgotten. Whoever asks has read some of them, and compares with the rest.
    due = [each.transfer for each in changes.due.get(target, ()) if each.transfer.rank is None]
    parts = max((each.position.part for each in due if each.position.version == version), default=0) + 1
    loads = tuple(file.load(NOBODY, "", 0) for file in cut.files)
    return CutListing(changes.settled_version, version, parts, slots, changes.slots_total, loads)


def present_files(group: Group) -> tuple[Load, ...]:
    """The files of a group that are here, of all slots. Raises CutRefused."""
    if group.health.refuses(Use.QUORUM):
        raise CutRefused(f"group {group.name} has wrong data here", action="ask another member")
    entries = (entry for entry in group.store.segments() if not entry.awaited)
    return tuple(CutFile(entry, ()).load(NOBODY, "", 0) for entry in entries)


def checked(document: Any, pair: Pair, table_version: int, origin: str) -> CutListing:
    """A list that was received. Raises CutRefused for one of another cut, and CutListingInvalid."""
    if not isinstance(document, dict):
        raise CutListingInvalid("a list of a cut is no JSON object", retriable=True)
    listing = CutListing.parse(document, origin, table_version)
    # Before a donor has applied the cut of this change, its newest one is that of an earlier change.
    if listing.slots != pair.slots or listing.table_version < table_version:
        raise CutRefused(
            f"group {pair.donor.group} has given other slots to {pair.target.group} so far", kind=CutUnready.__name__
        )
    return listing


class OwnCut:
    """See CutSource: another group of this node. Its files are linked, and stay where they are."""

    def __init__(self, node: str, group: Group, origin: str, files: PresentFiles) -> None:
        """`origin` is the forward topic of the group."""
        self.name = node
        self._group = group
        self._origin = origin
        self._files = files

    def listing(self, pair: Pair, table_version: int) -> CutListing:
        """See CutSource."""
        try:
            document = cut_of(self._group, pair.target).document()
        except HeadraceError as error:
            raise CutRefused(error.message, kind=type(error).__name__) from error
        return checked(document, pair, table_version, self._origin)

    def present(self, pair: Pair, slots_total: int) -> tuple[Load, ...]:
        """See CutSource."""
        del pair, slots_total
        return ()

    def note(self, note: CopyNote) -> None:
        """See CutSource."""
        del note

    def rows(self, pair: Pair, table_version: int, scan: CutScan, timeout_s: float) -> CutAnswer:
        """See CutSource."""
        del timeout_s
        try:
            return rows_of_cut(self._group, pair.target, table_version, scan)
        except HeadraceError as error:
            raise CutRefused(error.message, kind=type(error).__name__) from error

    def stage_together(self, entries: Sequence[SegmentEntry], staging: Path, observer: CopyObserver) -> frozenset[str]:
        """See CutSource; a link for each costs less than a request for all."""
        del entries, staging, observer
        return frozenset()

    def stage(self, entry: SegmentEntry, staging: Path, observer: CopyObserver, loaded: int = 0) -> bool:
        """See CutSource."""
        # This node's own group is a donor, and never the one that awaits the file.
        del loaded
        store = self._group.store
        segment, series = (staging / name for name in staged_names(entry.content_digest))
        try:
            present = self._files.find(self._group, entry.content_digest)
            data = store.series_file(present)
            observer.kept(present.size_bytes)
        except (FileGone, StoreError) as error:
            raise CutRefused(error.message, kind=type(error).__name__) from error
        with translate_errors(staging):
            staging.mkdir(parents=True, exist_ok=True)
            write_series(series, data)
            segment.unlink(missing_ok=True)
            try:
                os.link(store.segments_directory / present.name, segment)
            except FileNotFoundError as error:
                raise CutRefused(f"{present.name} has left group {self._group.name}", kind="SegmentGone") from error
        # It may have rotted since it was sealed here.
        return False


class PresentFiles:
    """Finds the files of a group by their content. Safe to share between threads."""

    # A list of the catalogue for each request would cost more than the request: files are asked for one by one.
    def __init__(self) -> None:
        # A group that has gone must not stay in memory, with its rows and its last catalogue.
        self._known: WeakKeyDictionary[Group, dict[str, SegmentEntry]] = WeakKeyDictionary()

    def find(self, group: Group, content_digest: str) -> SegmentEntry:
        """The file of a group that is here with some content; it may go at any time. Raises FileGone."""
        entries = self._known.get(group, {})
        if content_digest not in entries:
            entries = self.look(group)
        if (entry := entries.get(content_digest)) is None:
            raise FileGone(f"group {group.name} has no file {content_digest} here", action="ask another member")
        return entry

    def look(self, group: Group) -> dict[str, SegmentEntry]:
        """All files of a group by their content, as of now."""
        present = (*group.store.segments(), *(entry for entry in group.store.cut_files() if not entry.awaited))
        entries = {entry.content_digest: entry for entry in present}
        self._known[group] = entries
        return entries


def write_series(path: Path, data: bytes) -> None:
    """A series file under its name, which has all of it or does not exist. Raises OSError."""
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    partial.write_bytes(data)
    os.rename(partial, path)
