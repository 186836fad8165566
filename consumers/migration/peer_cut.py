"""Files of moved slots from another node, over HTTP; see `cut_source`."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import xxhash

from headrace.connectors.deadline import Deadline
from headrace.connectors.files import PARTIAL_SUFFIX, Buffer, fsync_file, sync_together
from headrace.connectors.http import AnswerCut, NodeAnswer, NodeRefused, NodeUnreachable, call_node, request_node
from headrace.consumers.migration.copies_ahead import CopyNote
from headrace.consumers.migration.cut_listing import CutListing, files_of_slots
from headrace.consumers.migration.cut_scan import CutAnswer, CutAnswerInvalid, CutScan
from headrace.consumers.migration.cut_source import (
    BOTH_PARTS,
    BUNDLE_ROUTE,
    CUT_FILE_ROUTE,
    CUT_ROUTE,
    DIGEST_HEADER,
    NOTE_ROUTE,
    PRESENT_ROUTE,
    ROWS_ROUTE,
    SEGMENT_PART,
    SERIES_BYTES_HEADER,
    CutRefused,
    FileGone,
    checked,
    write_series,
)
from headrace.consumers.migration.file_bundle import BUNDLE_BYTES_MAX, BundleInvalid, decode_bundle
from headrace.consumers.migration.slot_pull import Pair
from headrace.consumers.recovery.file_copy import SnapshotFile, SourceCorrupt, SourceFailed, complete_file
from headrace.consumers.recovery.progress import CopyObserver
from headrace.consumers.store import SegmentEntry, SeriesFile, staged_names
from headrace.consumers.store.segment_files import translate_errors
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.messages import Load

ANSWER_TIMEOUT_S = 10.0
LISTING_TIMEOUT_S = 30.0
ROWS_ANSWER_BYTES_MAX = 64 << 20
"""Twice what a donor reads for one answer: series have a dictionary for each file."""
SERIES_BYTES_MAX = 1 << 30
"""A sender without end must not fill the memory."""


class PeerCut:
    """See CutSource: another node. One connection per request, so that a dead node costs no more than a timeout."""

    def __init__(
        self, node: str, url: str, group: GroupKey, origin: str, on_silence: Callable[[float], None] | None = None
    ) -> None:
        """`url` is the address of the node in its status. `origin` is the forward topic of `group`, which it reads.

        `on_silence`: see `request_node`.
        """
        self.name = node
        self._on_silence = on_silence
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
            with self._request(f"{self._url}{ROWS_ROUTE}?{urlencode(asked)}", timeout_s) as answer:
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

    def _request(self, url: str, timeout_s: float) -> NodeAnswer:
        return request_node(url, timeout_s=timeout_s, on_silence=self._on_silence)

    def _document(self, url: str) -> Any:
        try:
            return call_node(url, timeout_s=LISTING_TIMEOUT_S, on_silence=self._on_silence)
        except NodeRefused as error:
            raise _refused(self.name, error) from error
        except NodeUnreachable as error:
            raise SourceFailed(error.message, retriable=True) from error

    def stage(self, entry: SegmentEntry, staging: Path, observer: CopyObserver, loaded: int = 0) -> bool:
        """See CutSource."""
        segment, _ = staged_names(entry.content_digest)
        partial = staging / (segment + PARTIAL_SUFFIX)
        begun = partial.stat().st_size if partial.exists() else 0
        try:
            self._stage_from(begun, entry, partial, observer, loaded)
        except CutRefused as error:
            if not begun or error.kind != FileGone.__name__:
                raise
            # Its file of this content may have other bytes than that of the sender before, and end before them.
            self._stage_from(0, entry, partial, observer, loaded)
        return True

    def _stage_from(self, begun: int, entry: SegmentEntry, partial: Path, observer: CopyObserver, loaded: int) -> None:
        staging = partial.parent
        segment, series = (staging / name for name in staged_names(entry.content_digest))
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

    def stage_together(self, entries: Sequence[SegmentEntry], staging: Path, observer: CopyObserver) -> frozenset[str]:
        """See CutSource."""
        known = {entry.content_digest: entry for entry in entries}
        url = f"{self._url}{BUNDLE_ROUTE}?{urlencode(self._named() | {'digests': ','.join(known)})}"
        with self._ask(url, f"{len(known)} files") as answer:
            size = answer.stream.length
            if size is None or size > BUNDLE_BYTES_MAX:
                raise SourceCorrupt(f"{self.name} sends {size} bytes of small files, at most {BUNDLE_BYTES_MAX}")
            data = answer.read(size)
        observer.received(size)
        files = {digest: (series, segment) for digest, series, segment in self._bundled(data, known)}
        with translate_errors(staging):
            staging.mkdir(parents=True, exist_ok=True)
            paths = {digest: [staging / name for name in staged_names(digest)] for digest in files}
            partials = {digest: path.with_name(path.name + PARTIAL_SUFFIX) for digest, (path, _) in paths.items()}
            for digest, (_, segment) in files.items():
                partials[digest].write_bytes(segment)
            # All together, as in a seal.
            sync_together(fsync_file, [str(partial) for partial in partials.values()])
            for digest, (series, _) in files.items():
                path, series_path = paths[digest]
                write_series(series_path, series)
                os.rename(partials[digest], path)
        return frozenset(files)

    def _bundled(self, data: bytes, known: Mapping[str, SegmentEntry]) -> Iterator[tuple[str, bytes, memoryview]]:
        """(content digest, series, segment) of each file of an answer, compared as `stage` does. Raises SourceCorrupt."""
        try:
            for digest, series_digest, series, segment in decode_bundle(data):
                if digest not in known:
                    raise SourceCorrupt(f"{self.name} sends file {digest}, for which nobody has asked")
                found = _checked_series(series, series_digest, known[digest], self.name)
                if (len(segment), xxhash.xxh3_128_hexdigest(segment)) != (found.size_bytes, found.file_digest):
                    raise SourceCorrupt(f"{known[digest].name} that {self.name} sent does not have its digest")
                yield digest, series, segment
        except BundleInvalid as error:
            raise SourceCorrupt(f"{self.name} sends small files that cannot be read: {error.message}") from error

    @contextmanager
    def _ask(self, url: str, what: str) -> Iterator[NodeAnswer]:
        """The answer to a request for files."""
        try:
            with self._request(url, ANSWER_TIMEOUT_S) as answer:
                yield answer
        except NodeRefused as error:
            raise _refused(self.name, error) from error
        except (NodeUnreachable, AnswerCut) as error:
            raise SourceFailed(f"{self.name} failed while it sent {what}: {error}", retriable=True) from error

    def _ask_file(
        self, entry: SegmentEntry, part: str, offset: int, loaded: int = 0
    ) -> AbstractContextManager[NodeAnswer]:
        """The answer to a request for a file."""
        return self._ask(self._file_url(entry, part, offset, loaded), entry.name)

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
