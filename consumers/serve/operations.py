"""Routes for operators' commands, and for members that recover from this node's files."""

from __future__ import annotations

from collections.abc import Callable

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from headrace.consumers.serve.error_documents import document, document_of, refusal
from headrace.consumers.serve.node_api import NodeApi
from headrace.consumers.serve.request_threads import OPERATION_THREADS, RequestThreads
from headrace.consumers.serve.snapshots import SnapshotRegistry, SnapshotUnknown
from headrace.schemas.errors import HeadraceError

OFFSET_DIGITS_MAX = 18
"""Every number of so many digits fits into 64 bits."""


def admin_routes(node: NodeApi) -> list[Route]:
    """The routes of commands.

    `POST /api/v1/seal?group=G`, `GET /api/v1/evidence?group=G&version=V&sealed_version=S[&read_files=true]`,
    `GET /api/v1/members`, `GET /api/v1/files?database=D&table=T` and `POST /api/v1/accept-gap?group=G[&resume=OFFSET]`.
    """
    threads = RequestThreads("operation", OPERATION_THREADS)

    async def seal(request: Request) -> Response:
        group = request.query_params.get("group", "")
        return await _answer(threads, lambda: JSONResponse(node.seal(group)))

    async def evidence(request: Request) -> Response:
        query = request.query_params
        try:
            group, version, sealed = query["group"], int(query["version"]), int(query["sealed_version"])
        except (KeyError, ValueError):
            return refusal(400, document("UsageInvalid", "group, version, sealed_version"))
        read_files = query.get("read_files", "") == "true"
        return await _answer(
            threads, lambda: JSONResponse(node.requests.evidence(group, version, sealed, read_files=read_files))
        )

    async def members(_request: Request) -> Response:
        return await _answer(threads, lambda: JSONResponse(node.requests.members()))

    async def accept_gap(request: Request) -> Response:
        group, resume = request.query_params.get("group", ""), request.query_params.get("resume", "")
        if resume and not _is_offset(resume):
            return refusal(400, document("UsageInvalid", "resume is not an offset"))
        return await _answer(threads, lambda: JSONResponse(node.accept_gap(group, int(resume) if resume else None)))

    async def files(request: Request) -> Response:
        database, table = (request.query_params.get(name, "") for name in ("database", "table"))
        return await _answer(threads, lambda: JSONResponse(node.files(database, table)))

    return [
        Route("/api/v1/files", files, methods=["GET"]),
        Route("/api/v1/accept-gap", accept_gap, methods=["POST"]),
        Route("/api/v1/seal", seal, methods=["POST"]),
        Route("/api/v1/evidence", evidence, methods=["GET"]),
        Route("/api/v1/members", members, methods=["GET"]),
    ]


def snapshot_routes(node: NodeApi) -> list[Route]:
    """The routes of a snapshot's receiver.

    `POST /api/v1/snapshots?group=G`, `GET /api/v1/snapshots/{id}/file?path=P&offset=N` and
    `DELETE /api/v1/snapshots/{id}`.
    """
    threads = RequestThreads("snapshot", OPERATION_THREADS)

    async def make(request: Request) -> Response:
        group = request.query_params.get("group", "")
        return await _answer(threads, lambda: JSONResponse(node.make_snapshot(group).document()))

    async def file(request: Request) -> Response:
        name, path = request.path_params["id"], request.query_params.get("path", "")
        offset = request.query_params.get("offset", "0")
        if not _is_offset(offset):
            return refusal(400, document("UsageInvalid", "offset is not a whole number"))
        return await _answer(threads, lambda: _file_response(node.snapshots, name, path, int(offset)))

    async def release(request: Request) -> Response:
        await threads.run(node.snapshots.release, request.path_params["id"])
        return Response(status_code=204)

    return [
        Route("/api/v1/snapshots", make, methods=["POST"]),
        Route("/api/v1/snapshots/{id}/file", file, methods=["GET"]),
        Route("/api/v1/snapshots/{id}", release, methods=["DELETE"]),
    ]


async def _answer(threads: RequestThreads, call: Callable[[], Response]) -> Response:
    # All of these wait for a lock, a disk or a log, so they run on a thread and never on the event loop.
    try:
        return await threads.run(call)
    except SnapshotUnknown as error:
        return refusal(404, document_of(error))
    except HeadraceError as error:
        return refusal(409, document_of(error))


def _file_response(snapshots: SnapshotRegistry, name: str, path: str, offset: int) -> Response:
    size_bytes, chunks = snapshots.open(name, path, offset)
    # Without a length an early end of the file would look like its end.
    headers = {"content-length": str(size_bytes)}
    return StreamingResponse(chunks, media_type="application/octet-stream", headers=headers)


def _is_offset(text: str) -> bool:
    # `isdigit` alone also accepts superscripts, on which `int` fails.
    return text.isascii() and text.isdigit() and len(text) <= OFFSET_DIGITS_MAX
