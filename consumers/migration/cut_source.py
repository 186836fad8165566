"""Where the files of moved slots come from: another node over HTTP, or another group of this node by hard links.

A file is staged under its content digest (see `headrace.consumers.store.load_job`). One that has its name there is
complete and verified. A partial one is continued at its byte by whichever node sends it next: the digest of the
sender decides in the end.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlencode

import xxhash

from headrace.connectors.deadline import Deadline
from headrace.connectors.files import PARTIAL_SUFFIX, Buffer, fsync_file
from headrace.connectors.http import AnswerCut, NodeAnswer, NodeRefused, NodeUnreachable, call_node, request_node
from headrace.consumers.migration.copies_ahead import CopyNote
from headrace.consumers.migration.cut_listing import NOBODY, CutListing, CutListingInvalid, files_of_slots
from headrace.consumers.migration.cut_scan import CutAnswer, CutAnswerInvalid, CutScan
from headrace.consumers.migration.slot_pull import Pair
from headrace.consumers.recovery.file_copy import SnapshotFile, SourceCorrupt, SourceFailed, complete_file
from headrace.consumers.recovery.progress import CopyObserver
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import Use
from headrace.consumers.store import (
    CutFile,
    CutUnready,
    SegmentEntry,
    SeriesFile,
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
PRESENT_ROUTE = "/api/v1/cut/present"
NOTE_ROUTE = "/api/v1/cut/note"
ROWS_ROUTE = "/api/v1/cut/rows"
DIGEST_HEADER = "x-headrace-digest"
"""xxh3-128 of all bytes of a series file, in hex. The digest of a segment is in its series."""
SERIES_BYTES_HEADER = "x-headrace-series-bytes"
"""How many bytes of an answer are the series, which come before the segment."""
SEGMENT_PART, SERIES_PART, BOTH_PARTS = "segment", "series", "both"
ANSWER_TIMEOUT_S = 10.0
LISTING_TIMEOUT_S = 30.0
ROWS_ANSWER_BYTES_MAX = 64 << 20
"""Twice what a donor reads for one answer: series have a dictionary for each file."""
SERIES_BYTES_MAX = 1 << 30
"""A sender without end must not fill the memory."""


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


class PeerCut:
    """See CutSource: another node. One connection per request, so that a dead node costs no more than a timeout."""

    def __init__(self, node: str, url: str, group: GroupKey, origin: str) -> None:
        """`url` is the address of the node in its status. `origin` is the forward topic of `group`, which it reads."""
        self.name = node
        self._url = url.rstrip("/")
        self._group = group
        self._origin = origin

    def listing(self, pair: Pair, table_version: int) -> CutListing:
        """See CutSource."""
        target = {"target": pair.target.group, "target_birth": pair.target.birth}
        url = f"{self._url}{CUT_ROUTE}?{urlencode(self._named() | target)}"
        return checked(self._document(url), pair, table_version, self._origin)

    def present(self, pair: Pair, slots_total: int) -> tuple[Load, ...]:
        """See CutSource."""
        document = self._document(f"{self._url}{PRESENT_ROUTE}?{urlencode(self._named())}")
        return files_of_slots(document, self._origin, pair.slots, slots_total)

    def note(self, note: CopyNote) -> None:
        """See CutSource."""
        self._document(f"{self._url}{NOTE_ROUTE}?{urlencode(self._named() | asdict(note))}")

    def rows(self, pair: Pair, table_version: int, scan: CutScan, timeout_s: float) -> CutAnswer:
        """See CutSource."""
        target = {"target": pair.target.group, "target_birth": pair.target.birth}
        asked = self._named() | target | {"table": table_version, "scan": scan.to_json()}
        deadline = Deadline(timeout_s)
        try:
            with request_node(f"{self._url}{ROWS_ROUTE}?{urlencode(asked)}", timeout_s=timeout_s) as answer:
                size = answer.stream.length
                if size is None or size > ROWS_ANSWER_BYTES_MAX:
                    raise CutAnswerInvalid(f"{self.name} sends {size} bytes, at most {ROWS_ANSWER_BYTES_MAX}")
                parts = list[bytes]()
                for chunk in answer.chunks():
                    parts.append(chunk)
                    # The timeout of a request is that of each wait: a few bytes now and then would hold a query for ever.
                    if deadline.passed():
                        raise SourceFailed(f"{self.name} sends rows of a cut too slowly", retriable=True)
                return CutAnswer.from_bytes(b"".join(parts))
        except NodeRefused as error:
            raise _refused(self.name, error) from error
        except (NodeUnreachable, AnswerCut) as error:
            raise SourceFailed(error.message, retriable=True) from error

    def _document(self, url: str) -> Any:
        try:
            return call_node(url, timeout_s=LISTING_TIMEOUT_S)
        except NodeRefused as error:
            raise _refused(self.name, error) from error
        except NodeUnreachable as error:
            raise SourceFailed(error.message, retriable=True) from error

    def stage(self, entry: SegmentEntry, staging: Path, observer: CopyObserver, loaded: int = 0) -> bool:
        """See CutSource."""
        segment, series = (staging / name for name in staged_names(entry.content_digest))
        partial = segment.with_name(segment.name + PARTIAL_SUFFIX)
        begun = partial.stat().st_size if partial.exists() else 0
        # One request for both: with small files the requests cost more than the bytes.
        with translate_errors(staging), self._ask_file(entry, BOTH_PARTS, begun, loaded) as answer:
            data, found = self._series(answer, entry, observer)
            file = SnapshotFile(segment.name, found.size_bytes, found.file_digest)
            staging.mkdir(parents=True, exist_ok=True)
            answers = {begun: answer}
            complete_file(lambda at: self._bytes(entry, at, answers.pop(at, None)), file, partial, observer)
            # Here and not where it is attached: the files of several fetches are synced at the same time.
            fsync_file(partial)
            write_series(series, data)
            # Last: with its segment the staged file is complete.
            os.rename(partial, segment)
        return True

    @contextmanager
    def _ask_file(self, entry: SegmentEntry, part: str, offset: int, loaded: int = 0) -> Iterator[NodeAnswer]:
        """The answer to a request for a file."""
        try:
            with request_node(self._file_url(entry, part, offset, loaded), timeout_s=ANSWER_TIMEOUT_S) as answer:
                yield answer
        except NodeRefused as error:
            raise _refused(self.name, error) from error
        except (NodeUnreachable, AnswerCut) as error:
            raise SourceFailed(f"{self.name} failed while it sent {entry.name}: {error}", retriable=True) from error

    def _series(self, answer: NodeAnswer, entry: SegmentEntry, observer: CopyObserver) -> tuple[bytes, SeriesFile]:
        """The series, with which an answer begins, compared with the digest of its sender and with the entry."""
        headers = answer.stream.headers
        sent = headers.get(SERIES_BYTES_HEADER, "")
        size = int(sent) if sent.isascii() and sent.isdigit() else SERIES_BYTES_MAX + 1
        if size > SERIES_BYTES_MAX:
            raise SourceCorrupt(f"{self.name} sends a series file of {sent or 'no'} bytes, at most {SERIES_BYTES_MAX}")
        data = answer.read(size)
        observer.received(len(data))
        return data, _checked_series(data, headers.get(DIGEST_HEADER, ""), entry, self.name)

    def _bytes(self, entry: SegmentEntry, offset: int, answer: NodeAnswer | None = None) -> Iterator[Buffer]:
        """The segment from an offset: what is left of an answer, or a request of its own."""
        if answer is not None:
            yield from answer.views()
            return
        with self._ask_file(entry, SEGMENT_PART, offset) as own:
            yield from own.views()

    def _file_url(self, entry: SegmentEntry, part: str, offset: int, loaded: int = 0) -> str:
        named = self._named() | {"digest": entry.content_digest, "part": part, "offset": offset}
        named |= {"loaded": loaded} if loaded else {}
        return f"{self._url}{CUT_FILE_ROUTE}?{urlencode(named)}"

    def _named(self) -> dict[str, Any]:
        return {"group": self._group.group, "birth": self._group.birth}


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
        self._known: dict[str, tuple[Group, dict[str, SegmentEntry]]] = {}

    def find(self, group: Group, content_digest: str) -> SegmentEntry:
        """The file of a group that is here with some content; it may go at any time. Raises FileGone."""
        known, entries = self._known.get(group.key, (None, {}))
        if known is not group or content_digest not in entries:
            entries = self.look(group)
        if (entry := entries.get(content_digest)) is None:
            raise FileGone(f"group {group.name} has no file {content_digest} here", action="ask another member")
        return entry

    def look(self, group: Group) -> dict[str, SegmentEntry]:
        """All files of a group by their content, as of now."""
        present = (*group.store.segments(), *(entry for entry in group.store.cut_files() if not entry.awaited))
        entries = {entry.content_digest: entry for entry in present}
        self._known[group.key] = (group, entries)
        return entries


def write_series(path: Path, data: bytes) -> None:
    """A series file under its name, which has all of it or does not exist. Raises OSError."""
    partial = path.with_name(path.name + PARTIAL_SUFFIX)
    partial.write_bytes(data)
    os.rename(partial, path)


def _checked_series(data: bytes, digest: str, entry: SegmentEntry, node: str) -> SeriesFile:
    if xxhash.xxh3_128_hexdigest(data) != digest:
        raise SourceCorrupt(f"the series file of {entry.name} that {node} sent does not have the digest {digest!r}")
    try:
        found = SeriesFile.from_bytes(data)
    except (ValueError, KeyError, TypeError) as error:
        raise SourceCorrupt(f"the series file of {entry.name} that {node} sent cannot be read: {error!r}") from error
    if (found.content_digest, found.rows) != (entry.content_digest, entry.rows):
        raise SourceCorrupt(f"the series file that {node} sent is not that of {entry.name}")
    return found


def _refused(node: str, error: NodeRefused) -> CutRefused:
    # Without the address, which an operator reads elsewhere: several nodes are named in one line.
    message = str(error.document.get("message", "")) or error.message
    return CutRefused(f"{node}: {message}", kind=str(error.document.get("kind", "")))
