"""The HTTP surface of a node: health, metrics, status, tables, queries, operations, and a page for people."""

from __future__ import annotations

import json
import traceback
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import structlog
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from headrace.consumers.serve.change_service import change_routes
from headrace.consumers.serve.cut_service import cut_routes
from headrace.consumers.serve.edge_service import edge_routes
from headrace.consumers.serve.error_documents import document, document_of, refusal
from headrace.consumers.serve.expected_bodies import ExpectedBodies
from headrace.consumers.serve.influx_service import influx_routes
from headrace.consumers.serve.metrics import metrics_text
from headrace.consumers.serve.node_api import NodeApi
from headrace.consumers.serve.operations import admin_routes, snapshot_routes
from headrace.consumers.serve.origin_check import OriginCheck
from headrace.consumers.serve.query_service import QueryService, http_status, query_request
from headrace.consumers.serve.request_threads import HEALTH_THREADS, STATUS_THREADS, RequestThreads
from headrace.consumers.serve.running_queries import running_query_routes
from headrace.consumers.serve.scan_service import scan_routes
from headrace.consumers.serve.schema_service import schema_routes
from headrace.consumers.serve.sync_service import sync_routes
from headrace.consumers.serve.write_service import write_routes
from headrace.schemas.errors import HeadraceError
from headrace.schemas.table_documents import table_document

STATIC = Path(__file__).parent / "static"
METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TRACE_FRAMES = 3
_log = structlog.get_logger(__name__)


def create_app(node: NodeApi, *, loopback: bool = True, names: frozenset[str] = frozenset()) -> Starlette:
    """The ASGI application of a node. With `loopback` it refuses requests under names of other machines, and with
    `names`, those of the node, under other names (see `origin_check.objection`).
    """
    surface = _Surface(node)
    routes = [
        # First: routes are tried in their order, and this is the one that has to be fast.
        Route("/api/v1/query", surface.query, methods=["GET", "POST"]),
        Route("/", surface.page),
        Route("/health/live", surface.live),
        Route("/health/ready", surface.ready),
        Route("/health/startup", surface.startup),
        Route("/metrics", surface.metrics),
        Route("/api/v1/status", surface.status),
        Route("/api/v1/tables", surface.tables),
        *running_query_routes(node),
        *scan_routes(node),
        *admin_routes(node),
        *change_routes(node),
        *snapshot_routes(node),
        *write_routes(node.writes),
        *schema_routes(node.writes),
        *influx_routes(node.writes),
        *cut_routes(lambda: node.migration.cuts),
        *sync_routes(lambda: node.migration.synced),
        *edge_routes(lambda: node.edge),
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(ExpectedBodies), Middleware(OriginCheck, loopback=loopback, names=names)],
        exception_handlers={
            HeadraceError: _known_error,
            HTTPException: _http_error,
            ClientDisconnect: _client_left,
            Exception: _internal_error,
        },
    )


class _Surface:
    """The routes of people and monitoring."""

    def __init__(self, node: NodeApi) -> None:
        self._node = node
        self._queries = QueryService(node.engine)
        # Methods of a node take its locks, which a thread may hold for long.
        self._health = RequestThreads("health", HEALTH_THREADS)
        self._reports = RequestThreads("status", STATUS_THREADS)

    async def page(self, _request: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    async def live(self, _request: Request) -> Response:
        # Without a thread, for which it might have to wait. It takes no lock.
        return _health(self._node.live(), ["only a restart can help this node"])

    async def startup(self, _request: Request) -> Response:
        return _health(self._node.startup_done(), ["the node is starting"])

    async def ready(self, _request: Request) -> Response:
        is_ready, reasons = await self._health.run(self._node.ready)
        return _health(is_ready, reasons)

    async def metrics(self, _request: Request) -> Response:
        text = await self._reports.run(metrics_text, self._node)
        return PlainTextResponse(text, media_type=METRICS_MEDIA_TYPE)

    async def status(self, _request: Request) -> Response:
        return _json(await self._reports.run(self._status))

    async def tables(self, _request: Request) -> Response:
        return _json([table_document(schema) for schema in await self._reports.run(self._node.engine.tables)])

    async def query(self, request: Request) -> Response:
        return await self._queries.respond(request, await query_request(request))

    def _status(self) -> dict[str, Any]:
        engine = self._node.engine
        limits = {"queries_max": engine.settings.queries_max, "memory_limit_mb": engine.settings.memory_limit_mb}
        return {**self._node.status(), "queries": asdict(engine.statistics) | limits}


def _health(good: bool, reasons: Sequence[str]) -> Response:
    # Probes look at the status alone; the reasons are for whoever looks at the probe.
    return JSONResponse({"ok": good, "reasons": [] if good else list(reasons)}, 200 if good else 503)


def _json(document: object) -> Response:
    return Response(json.dumps(document, default=str, ensure_ascii=False), media_type="application/json")


async def _known_error(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadraceError)
    return refusal(http_status(error), document_of(error))


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    error_document = document("Http", f"{request.method} {request.url.path}: {error.detail}")
    # Those of 405 name the methods that there are.
    return refusal(error.status_code, error_document, error.headers)


async def _client_left(_request: Request, _error: Exception) -> Response:
    # In the middle of its body: nothing of it is written, nobody reads this answer, and the node has not failed.
    return Response(status_code=400)


async def _internal_error(request: Request, error: Exception) -> Response:
    # The inside of a node goes to its log and not to clients: paths and values may be nobody else's business.
    trace = "".join(traceback.format_tb(error.__traceback__)[-TRACE_FRAMES:])
    _log.error("request failed", path=request.url.path, error=repr(error), trace=trace)
    return refusal(500, document("Internal", "the node failed to answer", "its log has the details"))
