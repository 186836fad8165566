"""Routes by which receivers bring files of senders to the members of a group, and have its leader load them.

`PUT /api/v1/sync/file?group=G&birth=B&database=D&bucket=N&slice=N&digest=C&rows=N&min=NS&max=NS&segment_bytes=N&`
`segment_digest=X&series_bytes=N&series_digest=X` takes the bytes of a segment and of its series. The answer means: they
are verified and durable. A file that is here already is answered at once, as one whose load (`&identity=X`) has counted.

With `&linked=NAME` it has no body: a receiver on this machine has linked the file into the staging directory of the group
as `NAME.upload` and `NAME.series.upload`. `GET /api/v1/sync/staging?group=G&birth=B` is where that directory is.

`POST /api/v1/sync/loads?group=G&birth=B` takes manifests, see `member_routes`. The answer has `files`, in their order:
`{"repeated"}` means that the group has read the load as accepted, and has applied it; `{"error"}` is that of one file.
"""

from __future__ import annotations

import asyncio
import string
from collections.abc import Awaitable, Callable, Mapping, Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.consumers.query.query_errors import SlotNotHeld
from headrace.consumers.serve.error_documents import document_of, refusal
from headrace.consumers.serve.request_bodies import RequestInvalid, arriving, bounded_body
from headrace.consumers.serve.request_threads import LOAD_THREADS, RequestThreads
from headrace.consumers.serve.sync_loads import SyncLoads
from headrace.consumers.serve.sync_uploads import LinkMissing, Upload, UploadInvalid, UploadRequest, Uploads
from headrace.consumers.sync.manifest_rules import DatabaseDiffers, FormatTooNew, ManifestInvalid
from headrace.consumers.sync.member_routes import (
    SYNC_FILE_ROUTE,
    SYNC_LOADS_ROUTE,
    SYNC_STAGING_ROUTE,
    LoadRequest,
    decode_loads,
)
from headrace.schemas.errors import HeadraceError
from headrace.schemas.framing import FrameInvalid
from headrace.schemas.group_changes import GroupKey

DIGITS_MAX = 18
DIGEST_DIGITS = 32
LOADS_BODY_BYTES_MAX = 16 << 20
BLOCK_BYTES = 1 << 20
"""Bytes that are written with one call on a thread."""


class SyncService:
    """A node's part in receiving: uploads and loads. Safe to share between threads."""

    def __init__(self, uploads: Uploads, loads: SyncLoads) -> None:
        self.uploads = uploads
        self.loads = loads
        self._load_threads = RequestThreads("sync-load", LOAD_THREADS)

    def begin(self, query: Mapping[str, str]) -> Upload | None:
        """Take the file that a URL announces; None if it is here. Raises RequestInvalid, and see `Uploads.begin`."""
        return self.uploads.begin(self.request(query), query.get("linked", ""))

    async def load(self, key: GroupKey, requests: Sequence[LoadRequest]) -> list[bool | HeadraceError]:
        """See `SyncLoads.load`."""
        return await self._load_threads.run(self.loads.load, key, requests)

    def staging(self, query: Mapping[str, str]) -> str:
        """The staging directory of a group of this node. Raises RequestInvalid, SlotNotHeld."""
        return str(self.uploads.staging_directory(_key(query)))

    def request(self, query: Mapping[str, str]) -> UploadRequest:
        """A file that is announced in a URL. Raises RequestInvalid, LoadNotReady."""
        group = _key(query)
        slot = self.loads.slot_at(query.get("database", ""), _number(query, "bucket"), _number(query, "slice"))
        return UploadRequest(
            group,
            slot,
            _digest(query, "digest"),
            _number(query, "rows"),
            _number(query, "min"),
            _number(query, "max"),
            _number(query, "segment_bytes"),
            _digest(query, "segment_digest"),
            _number(query, "series_bytes"),
            _digest(query, "series_digest"),
            bytes.fromhex(_digest(query, "identity")) if "identity" in query else b"",
        )


def sync_routes(service: Callable[[], SyncService]) -> list[Route]:
    """The routes of a member."""

    async def file(request: Request) -> Response:
        return await _answered(lambda: _take(service(), request))

    async def load(request: Request) -> Response:
        return await _answered(lambda: _load(service(), request))

    async def staging(request: Request) -> Response:
        return await _answered(lambda: _staging(service(), request))

    return [
        Route(SYNC_FILE_ROUTE, file, methods=["PUT"]),
        Route(SYNC_LOADS_ROUTE, load, methods=["POST"]),
        Route(SYNC_STAGING_ROUTE, staging, methods=["GET"]),
    ]


async def _staging(service: SyncService, request: Request) -> Response:
    directory = await asyncio.to_thread(service.staging, request.query_params)
    return JSONResponse({"directory": directory})


async def _take(service: SyncService, request: Request) -> Response:
    try:
        upload = await asyncio.to_thread(service.begin, request.query_params)
    except HeadraceError:
        await _drain(request)
        raise
    if upload is None:
        await _drain(request)
        return JSONResponse({"staged": True, "known": True})
    try:
        rest = await _write(upload, request)
    except BaseException:
        await asyncio.to_thread(upload.abort)
        raise
    await asyncio.to_thread(_finish, upload, rest)
    return JSONResponse({"staged": True, "known": False})


def _finish(upload: Upload, rest: bytes) -> None:
    # One turn of a thread for all of a small file: a turn costs more than its bytes.
    try:
        if rest:
            upload.write(rest)
        upload.finish()
    finally:
        upload.abort()


async def _drain(request: Request) -> None:
    # A sender that is cut off in the middle of a body does not read the answer, and would not know why.
    async for _ in arriving(request):
        pass


async def _write(upload: Upload, request: Request) -> bytes:
    """Write what comes, but for the last bytes, which are returned."""
    waiting = bytearray()
    async for part in arriving(request):
        waiting += part
        if len(waiting) >= BLOCK_BYTES:
            await asyncio.to_thread(upload.write, bytes(waiting))
            waiting.clear()
    return bytes(waiting)


async def _load(service: SyncService, request: Request) -> Response:
    refusal = RequestInvalid("the manifests are larger than any", action="send fewer at once")
    body = await bounded_body(request, LOADS_BODY_BYTES_MAX, refusal)
    key, requests = _key(request.query_params), decode_loads(body)
    answers = await service.load(key, requests)
    return JSONResponse({"files": [_answer(each) for each in answers]})


def _answer(answer: bool | HeadraceError) -> dict[str, object]:
    return {"error": document_of(answer)} if isinstance(answer, HeadraceError) else {"repeated": answer}


async def _answered(call: Callable[[], Awaitable[Response]]) -> Response:
    try:
        return await call()
    except HeadraceError as error:
        status = next((code for kind, code in _STATUSES.items() if isinstance(error, kind)), 503)
        return refusal(status, document_of(error), {"connection": "close"})


_STATUSES: Mapping[type[HeadraceError], int] = {
    RequestInvalid: 400,
    FrameInvalid: 400,
    UploadInvalid: 422,
    LinkMissing: 422,
    ManifestInvalid: 422,
    DatabaseDiffers: 422,
    FormatTooNew: 422,
    SlotNotHeld: 409,
}
"""Everything else passes by itself: 503."""


def _key(query: Mapping[str, str]) -> GroupKey:
    group = query.get("group", "")
    if not group:
        raise RequestInvalid("group names a group", action="send group and birth")
    return GroupKey(group, _number(query, "birth"))


def _number(query: Mapping[str, str], name: str) -> int:
    text = query.get(name, "")
    digits = text.removeprefix("-")
    if not (digits.isascii() and digits.isdigit() and len(digits) <= DIGITS_MAX + 1):
        raise RequestInvalid(f"{name} is not a whole number", action="send digits alone")
    return int(text)


def _digest(query: Mapping[str, str], name: str) -> str:
    text = query.get(name, "")
    if len(text) != DIGEST_DIGITS or set(text) - set(string.hexdigits.lower()):
        raise RequestInvalid(f"{name} is not a digest", action="send 32 hexadecimal digits")
    return text
