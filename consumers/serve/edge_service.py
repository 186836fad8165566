"""Routes for `headrace sync send`: the centres of this store, the files that they have not decided about.

`GET /api/v1/sync/centres`, `POST /api/v1/sync/register {centre, cluster, sender, name}`,
`POST /api/v1/sync/seal {age_s}`, `POST /api/v1/sync/snapshot {centre, sender, group}`,
`POST /api/v1/sync/progress {centre, sender, groups: {group: version}, lower}`,
`GET|POST|DELETE /api/v1/sync/snapshot/{id}[/file?name=N&offset=O]` (read, touch, release) and
`DELETE /api/v1/sync/centres/{centre}`.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable, Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from headrace.consumers.serve.error_documents import document_of, refusal
from headrace.consumers.serve.request_bodies import RequestInvalid, bounded_body
from headrace.consumers.serve.request_threads import LOG_THREADS, RequestThreads
from headrace.consumers.sync.centres import CentreUnknown
from headrace.consumers.sync.edge_store import EdgeStore
from headrace.consumers.sync.snapshots import SyncSnapshotUnknown
from headrace.schemas.errors import HeadraceError, StateUnknown

BODY_BYTES_MAX = 1 << 20
DIGITS_MAX = 18
NUMBER_MAX = 2**63
"""JSON has numbers that no float holds."""
ROOT = "/api/v1/sync"
_STATUSES: Mapping[type, int] = {RequestInvalid: 400, SyncSnapshotUnknown: 404, CentreUnknown: 404}
Call = Callable[[EdgeStore, Request, Mapping[str, Any]], Response]


def edge_routes(store: Callable[[], EdgeStore]) -> list[Route]:
    """The routes of a store that senders read."""
    # A seal waits for the disk, for minutes if it is full.
    seals = RequestThreads("seal", LOG_THREADS)

    def route(path: str, method: str, call: Call) -> Route:
        async def answer(request: Request) -> Response:
            try:
                body = await _body(request) if method == "POST" else {}
                # On a thread: all of these wait for a lock, a log or a disk.
                if path == "/seal":
                    return await seals.run(call, store(), request, body)
                return await asyncio.to_thread(call, store(), request, body)
            except HeadraceError as error:
                return _refusal(error)

        return Route(f"{ROOT}{path}", answer, methods=[method])

    return [
        route("/centres", "GET", _centres),
        # An id is base64, and a server decodes %2F before it looks for a route.
        route("/centres/{centre:path}", "DELETE", _forget),
        route("/register", "POST", _register),
        route("/seal", "POST", lambda edge, _request, body: JSONResponse(edge.seal(_number(body, "age_s")))),
        route("/progress", "POST", _progress),
        route("/snapshot", "POST", _snapshot),
        route("/snapshot/{id}", "POST", _touch),
        route("/snapshot/{id}", "DELETE", _release),
        route("/snapshot/{id}/file", "GET", _file),
    ]


def _centres(edge: EdgeStore, _request: Request, _body: Mapping[str, Any]) -> Response:
    return JSONResponse(edge.describe())


def _forget(edge: EdgeStore, request: Request, _body: Mapping[str, Any]) -> Response:
    edge.centres.forget(request.path_params["centre"])
    return Response(status_code=204)


def _register(edge: EdgeStore, _request: Request, body: Mapping[str, Any]) -> Response:
    centre, cluster, sender = (_text(body, name) for name in ("centre", "cluster", "sender"))
    return JSONResponse(edge.register(centre, cluster, sender, str(body.get("name", ""))))


def _progress(edge: EdgeStore, _request: Request, body: Mapping[str, Any]) -> Response:
    groups = body.get("groups")
    if not isinstance(groups, dict) or not all(type(each) is int and each >= 0 for each in groups.values()):
        raise RequestInvalid("groups is no object of versions", action='send {"groups": {"e1": 17}}')
    lower = body.get("lower", False) is True
    known = edge.centres.set_progress(_text(body, "centre"), _text(body, "sender"), groups, lower=lower)
    return JSONResponse({"groups": dict(known.groups)})


def _snapshot(edge: EdgeStore, _request: Request, body: Mapping[str, Any]) -> Response:
    centre, sender, group = (_text(body, name) for name in ("centre", "sender", "group"))
    above = body.get("above", 0)
    if type(above) is not int or above < 0:
        raise RequestInvalid("above is no version", action='send a whole number, such as {"above": 17}')
    return JSONResponse(edge.snapshot(centre, sender, group, above).document())


def _touch(edge: EdgeStore, request: Request, _body: Mapping[str, Any]) -> Response:
    edge.snapshots.touch(request.path_params["id"])
    return Response(status_code=204)


def _release(edge: EdgeStore, request: Request, _body: Mapping[str, Any]) -> Response:
    edge.snapshots.release(request.path_params["id"])
    return Response(status_code=204)


def _file(edge: EdgeStore, request: Request, _body: Mapping[str, Any]) -> Response:
    offset = request.query_params.get("offset", "0")
    # `isdigit` alone also accepts superscripts, on which `int` fails.
    if not (offset.isascii() and offset.isdigit() and len(offset) <= DIGITS_MAX):
        raise RequestInvalid("offset is not a whole number", action="send digits alone")
    size, chunks = edge.snapshots.open(request.path_params["id"], request.query_params.get("name", ""), int(offset))
    # Without a length an early end of the file would look like its end.
    return StreamingResponse(chunks, media_type="application/octet-stream", headers={"content-length": str(size)})


async def _body(request: Request) -> Mapping[str, Any]:
    refusal = RequestInvalid("the body is too large", action="send one request of a sender")
    data = await bounded_body(request, BODY_BYTES_MAX, refusal)
    try:
        # A request without arguments may have no body.
        body = json.loads(data) if data else {}
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise RequestInvalid("the body is not a JSON object", action="send one")
    return body


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if not isinstance(value, str) or not value:
        raise RequestInvalid(f"{name} is missing", action=f"send {name} as a text")
    return value


def _number(body: Mapping[str, Any], name: str) -> float:
    value = body.get(name, 0)
    if not isinstance(value, int | float) or isinstance(value, bool) or not value >= 0 or NUMBER_MAX < value < math.inf:
        raise RequestInvalid(f"{name} is not a number from 0 on", action=f"send {name} in seconds")
    return float(value)


def _refusal(error: HeadraceError) -> Response:
    # Each request of a sender may come twice: it asks again where nobody knows what became of a seal.
    again = error.retriable or isinstance(error, StateUnknown)
    return refusal(_STATUSES.get(type(error), 409), document_of(error) | {"retriable": again})
