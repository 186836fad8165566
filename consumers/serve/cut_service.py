"""Routes for members of groups that gained slots: the list of a cut, and the bytes of each file from any offset.

`GET /api/v1/cut?group=G&birth=B&target=T&target_birth=B` is refused with `CutUnready` until this member has applied
and sealed the cut, and with `SegmentAwaited` while it is still pulling some of these slots itself. Both pass.
`GET /api/v1/cut/present?group=G&birth=B` lists the files of all slots that the group has now.
`GET /api/v1/cut/note?group=G&birth=B&change=C&node=N&left=K` says that a node copies K more of them ahead.
`GET /api/v1/cut/rows?group=G&birth=B&target=T&target_birth=B&table=V&scan=JSON` sends rows that left with the cut of slot
table V, from the moment on at which this member has applied it.
`GET /api/v1/cut/file?group=G&birth=B&digest=D&part=both|segment|series&offset=N` sends any file of the group that is here.
`GET /api/v1/cut/bundle?group=G&birth=B&digests=D,D` sends those of some small files that are here, see `file_bundle`.
"""

from __future__ import annotations

import asyncio
import os
import string
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from io import FileIO
from itertools import chain

import xxhash
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from headrace.consumers.migration.copies_ahead import CopiesAhead, CopyNote
from headrace.consumers.migration.cut_listing import CutListing, files_document
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
    SERIES_PART,
    CutRefused,
    FileGone,
    FileMerged,
    PresentFiles,
    cut_of,
    present_files,
    rows_of_cut,
)
from headrace.consumers.migration.file_bundle import FILES_MAX, SMALL_BYTES_MAX, encode_bundle
from headrace.consumers.query.query_errors import SlotNotHeld
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import Use
from headrace.consumers.serve.error_documents import document_of, refusal
from headrace.consumers.serve.request_bodies import RequestInvalid
from headrace.consumers.store import SegmentAwaited, SegmentEntry, SegmentGone
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey
from headrace.schemas.messages import Load

CHUNK_BYTES = 1 << 20
DIGITS_MAX = 18
"""Every number of so many digits fits into 64 bits."""
DIGEST_DIGITS = 32


class CutService:
    """Lists and opens the files of the groups of one node. Safe to share between threads."""

    def __init__(self, node: str, groups: Mapping[str, Group], copies: CopiesAhead | None = None) -> None:
        """`groups` by forward topic. `copies` takes the notes of those who copy files ahead."""
        self.copies = copies or CopiesAhead()
        self._node = node
        self._groups = groups
        self._files = PresentFiles()

    def listing(self, key: GroupKey, target: GroupKey) -> CutListing:
        """What a group has given to another one. Raises SlotNotHeld, CutRefused, CutUnready, SegmentAwaited."""
        return cut_of(self._group(key), target)

    def present(self, key: GroupKey) -> tuple[Load, ...]:
        """The files of a group that are here. Raises SlotNotHeld, CutRefused."""
        return present_files(self._group(key))

    def rows(self, key: GroupKey, target: GroupKey, table_version: int, scan: CutScan) -> CutAnswer:
        """Rows of a table that a group has given away. Raises SlotNotHeld, CutRefused, CutUnready, CutTooLarge."""
        return rows_of_cut(self._group(key), target, table_version, scan)

    def open(
        self, key: GroupKey, digest: str, part: str, offset: int, loaded: int = 0
    ) -> tuple[int, str, Iterator[bytes]]:
        """(number of bytes, digest of a series, the bytes) of a file from an offset.

        `loaded` is the version of the record by which this group loads the file, 0 for another group's request.
        Raises SlotNotHeld, CutRefused, SegmentAwaited, FileGone, FileMerged.
        """
        group = self._group(key)
        if group.health.refuses(Use.QUORUM):
            raise CutRefused(f"group {group.name} has wrong data here", action="ask another member")
        if any(each.content_digest == digest for each in group.store.awaited()):
            raise SegmentAwaited(f"group {group.name} awaits file {digest} here itself")
        entry = self._find(group, digest, loaded)
        try:
            if part == SERIES_PART:
                return _series(group, entry, offset)
            # Open, its bytes stay whatever becomes of its name: what a pin would do, and nobody has to release it.
            data = (group.store.segments_directory / entry.name).open("rb", buffering=0)
        except (FileNotFoundError, SegmentGone) as error:
            self._files.look(group)
            raise FileGone(f"{entry.name} has left group {group.name}", action="ask another member") from error
        size = os.fstat(data.fileno()).st_size
        if offset > size:
            data.close()
            raise FileGone(f"there is no byte {offset} of {entry.name}")
        chunks = _chunks(data, offset)
        # Begun, it closes the file whenever it is closed itself.
        next(chunks)
        return size - offset, "", chunks

    def small_files(self, key: GroupKey, digests: Iterable[str]) -> Iterator[tuple[str, str, bytes, bytes]]:
        """See encode_bundle: those of some files that are here and small. Raises SlotNotHeld, CutRefused."""
        group = self._group(key)
        for digest in digests:
            try:
                if self._find(group, digest, 0).size_bytes <= SMALL_BYTES_MAX:
                    _, series_digest, series = self.open(key, digest, SERIES_PART, 0)
                    _, _, segment = self.open(key, digest, SEGMENT_PART, 0)
                    yield digest, series_digest, b"".join(series), b"".join(segment)
            except (SegmentAwaited, FileGone):
                # Whoever asks for it alone reads why.
                continue

    def _find(self, group: Group, digest: str, loaded: int) -> SegmentEntry:
        # Before the look: a file that is loaded in between is found.
        has_loaded = 0 < loaded <= group.store.loaded_version
        try:
            return self._files.find(group, digest)
        except FileGone as error:
            if has_loaded:
                raise FileMerged(error.message, action="copy the files of the group") from error
            raise

    def _group(self, key: GroupKey) -> Group:
        for group in list(self._groups.values()):
            if group.birth_key == key:
                return group
        raise SlotNotHeld.of(key.group, self._node)


def _series(group: Group, entry: SegmentEntry, offset: int) -> tuple[int, str, Iterator[bytes]]:
    data = group.store.series_file(entry)
    if offset > len(data):
        raise FileGone(f"there is no byte {offset} of the series of {entry.name}")
    parts = (data[start : start + CHUNK_BYTES] for start in range(offset, len(data), CHUNK_BYTES))
    return len(data) - offset, xxhash.xxh3_128_hexdigest(data), parts


def _chunks(data: FileIO, offset: int) -> Iterator[bytes]:
    """The bytes of a file from an offset, behind an empty chunk."""
    with data:
        data.seek(offset)
        yield b""
        while chunk := data.read(CHUNK_BYTES):
            yield chunk


def cut_routes(service: Callable[[], CutService]) -> list[Route]:
    """The routes of a donor."""

    async def listing(request: Request) -> Response:
        return await _answer(lambda: _listing(service(), request.query_params))

    async def present(request: Request) -> Response:
        return await _answer(lambda: _present(service(), request.query_params))

    async def rows(request: Request) -> Response:
        return await _answer(lambda: _rows(service(), request.query_params))

    async def note(request: Request) -> Response:
        return await _answer(lambda: _note(service(), request.query_params))

    async def file(request: Request) -> Response:
        return await _answer(lambda: _file(service(), request.query_params))

    async def bundle(request: Request) -> Response:
        return await _answer(lambda: _bundle(service(), request.query_params))

    routes = {CUT_ROUTE: listing, PRESENT_ROUTE: present, NOTE_ROUTE: note, ROWS_ROUTE: rows}
    routes |= {CUT_FILE_ROUTE: file, BUNDLE_ROUTE: bundle}
    return [Route(route, answer, methods=["GET"]) for route, answer in routes.items()]


def _listing(service: CutService, query: Mapping[str, str]) -> Response:
    found = service.listing(_key(query, "group", "birth"), _key(query, "target", "target_birth"))
    return JSONResponse(found.document())


def _present(service: CutService, query: Mapping[str, str]) -> Response:
    return JSONResponse(files_document(service.present(_key(query, "group", "birth"))))


def _rows(service: CutService, query: Mapping[str, str]) -> Response:
    key, target = _key(query, "group", "birth"), _key(query, "target", "target_birth")
    answer = service.rows(key, target, _number(query, "table", ""), CutScan.from_json(query.get("scan", "")))
    return Response(answer.to_bytes(), media_type="application/octet-stream")


def _note(service: CutService, query: Mapping[str, str]) -> Response:
    numbers = (_number(query, name, "") for name in ("change", "left"))
    change, left = numbers
    service.copies.take(_key(query, "group", "birth"), CopyNote(change, query.get("node", ""), left))
    return JSONResponse({})


class _FileResponse(StreamingResponse):
    """The bytes of a file, which is closed at the end, also when the asker leaves before it."""

    def __init__(self, first: Iterable[bytes], chunks: Iterator[bytes], headers: Mapping[str, str]) -> None:
        super().__init__(chain(first, chunks), media_type="application/octet-stream", headers=headers)
        self._chunks = chunks

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            if isinstance(self._chunks, Generator):
                self._chunks.close()


def _file(service: CutService, query: Mapping[str, str]) -> Response:
    digest, part = _digest(query.get("digest", "")), query.get("part", SEGMENT_PART)
    if part not in (SEGMENT_PART, SERIES_PART, BOTH_PARTS):
        raise RequestInvalid(f"there is no part {part!r}", action=f"use {BOTH_PARTS}, {SEGMENT_PART} or {SERIES_PART}")
    key, offset, loaded = _key(query, "group", "birth"), _number(query, "offset", "0"), _number(query, "loaded", "0")
    headers: dict[str, str] = {}
    first: Iterable[bytes] = ()
    series_bytes = 0
    if part == BOTH_PARTS:
        series_bytes, found, first = service.open(key, digest, SERIES_PART, 0, loaded)
        headers |= {DIGEST_HEADER: found, SERIES_BYTES_HEADER: str(series_bytes)}
        part = SEGMENT_PART
    size, found, chunks = service.open(key, digest, part, offset, loaded)
    headers |= {DIGEST_HEADER: found} if found and not series_bytes else {}
    # Without a length an early end of the file would look like its end.
    headers["content-length"] = str(series_bytes + size)
    return _FileResponse(first, chunks, headers)


def _bundle(service: CutService, query: Mapping[str, str]) -> Response:
    digests = query.get("digests", "").split(",")
    if len(digests) > FILES_MAX:
        raise RequestInvalid(f"{len(digests)} files are asked for at once", action=f"ask for {FILES_MAX} at most")
    files = service.small_files(_key(query, "group", "birth"), [_digest(each) for each in digests])
    return Response(encode_bundle(files), media_type="application/octet-stream")


def _digest(text: str) -> str:
    if len(text) != DIGEST_DIGITS or set(text) - set(string.hexdigits):
        raise RequestInvalid("digest is not a content digest", action="send one of the list")
    return text


def _key(query: Mapping[str, str], name: str, birth: str) -> GroupKey:
    group = query.get(name, "")
    if not group:
        raise RequestInvalid(f"{name} names a group", action=f"send {name} and {birth}")
    return GroupKey(group, _number(query, birth, "1"))


def _number(query: Mapping[str, str], name: str, default: str) -> int:
    text = query.get(name, default)
    # `isdigit` alone also accepts superscripts, on which `int` fails.
    if not (text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX):
        raise RequestInvalid(f"{name} is not a whole number", action="send digits alone")
    return int(text)


async def _answer(call: Callable[[], Response]) -> Response:
    # On a thread: the catalogue has a lock, and a file is on a disk.
    try:
        return await asyncio.to_thread(call)
    except HeadraceError as error:
        return refusal(_STATUSES.get(type(error), 409), document_of(error))


_STATUSES: Mapping[type, int] = {RequestInvalid: 400, CutAnswerInvalid: 400, FileGone: 404, FileMerged: 404}
