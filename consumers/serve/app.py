"""The HTTP surface of a node: health, metrics, status, tables, queries, and a page for people."""

from __future__ import annotations

import asyncio
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
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from consumers.query.engine import RETRY_AFTER_S
from consumers.serve.fences import Fence
from consumers.serve.metrics import query_metrics
from consumers.serve.queries import Asking, http_status
from consumers.serve.requests import query_request
from consumers.serve.view import NodeView
from schemas.errors import HeadraceError
from schemas.tables import TableSchema

STATIC = Path(__file__).parent / "static"
METRICS_MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
TRACE_FRAMES = 3
_log = structlog.get_logger(__name__)


def create_app(node: NodeView, *, loopback: bool = True, operations: Sequence[Route] = ()) -> Starlette:
    """The ASGI application of a node. `loopback`: it listens on this machine only; requests under other names are refused."""
    surface = _Surface(node)
    routes = [
        Route("/", surface.page),
        Route("/health/live", surface.live),
        Route("/health/ready", surface.ready),
        Route("/health/startup", surface.startup),
        Route("/metrics", surface.metrics),
        Route("/api/v1/status", surface.status),
        Route("/api/v1/tables", surface.tables),
        Route("/api/v1/query", surface.query, methods=["GET", "POST"]),
        *operations,
        Mount("/static", StaticFiles(directory=STATIC)),
    ]
    return Starlette(
        routes=routes,
        middleware=[Middleware(Fence, loopback=loopback)],
        exception_handlers={HeadraceError: _failed, HTTPException: _http_failed, Exception: _broken},
    )


class _Surface:
    """The routes. What a node tells takes its locks, so it is asked on a thread and never on the event loop."""

    def __init__(self, node: NodeView) -> None:
        self._node = node
        self._asking = Asking(node.engine)

    async def page(self, _request: Request) -> Response:
        return FileResponse(STATIC / "index.html", headers={"cache-control": "no-cache"})

    async def live(self, _request: Request) -> Response:
        return _health(await asyncio.to_thread(self._node.live), ["only a restart can help this node"])

    async def startup(self, _request: Request) -> Response:
        return _health(await asyncio.to_thread(self._node.startup_done), ["the node is starting"])

    async def ready(self, _request: Request) -> Response:
        is_ready, reasons = await asyncio.to_thread(self._node.ready)
        return _health(is_ready, reasons)

    async def metrics(self, _request: Request) -> Response:
        text = await asyncio.to_thread(lambda: self._node.metrics() + query_metrics(self._node.engine))
        return PlainTextResponse(text, media_type=METRICS_MEDIA_TYPE)

    async def status(self, _request: Request) -> Response:
        return _json(await asyncio.to_thread(self._status))

    async def tables(self, _request: Request) -> Response:
        return _json([_table(schema) for schema in await asyncio.to_thread(self._node.engine.tables)])

    async def query(self, request: Request) -> Response:
        question = await query_request(request)
        is_ready, reasons = await asyncio.to_thread(self._node.ready)
        if not is_ready:
            action = "retry, or ask another node; /health/ready says when"
            return _error(503, "NotReady", f"this node is not ready: {'; '.join(reasons)}", action, retriable=True)
        return await self._asking.answer(request, question)

    def _status(self) -> dict[str, Any]:
        engine = self._node.engine
        limits = {"queries_max": engine.settings.queries_max, "memory_limit_mb": engine.settings.memory_limit_mb}
        return {**self._node.status(), "queries": asdict(engine.statistics) | limits}


def _health(good: bool, reasons: list[str]) -> Response:
    return JSONResponse({"ok": good, "reasons": [] if good else reasons}, 200 if good else 503)


def _json(document: object) -> Response:
    return Response(json.dumps(document, default=str, ensure_ascii=False), media_type="application/json")


def _table(schema: TableSchema) -> dict[str, Any]:
    return {
        "database": schema.database,
        "table": schema.table,
        "version": schema.version,
        "tags": list(schema.tags),
        "fields": [{"name": name, "type": str(kind)} for name, kind in schema.fields],
        "retention_ns": schema.retention_ns,
    }


def _error(status: int, kind: str, message: str, action: str = "", *, retriable: bool = False) -> Response:
    headers = {"retry-after": str(RETRY_AFTER_S)} if status == 503 else {}
    error = {"kind": kind, "message": message, "action": action, "retriable": retriable}
    return JSONResponse({"error": error}, status, headers)


async def _failed(_request: Request, error: Exception) -> Response:
    assert isinstance(error, HeadraceError)
    kind = type(error).__name__
    return _error(http_status(error), kind, error.message, error.action, retriable=error.retriable)


async def _http_failed(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _error(error.status_code, "Http", f"{request.method} {request.url.path}: {error.detail}")


async def _broken(request: Request, error: Exception) -> Response:
    trace = "".join(traceback.format_tb(error.__traceback__)[-TRACE_FRAMES:])
    _log.error("request failed", path=request.url.path, error=repr(error), trace=trace)
    return _error(500, "Internal", "the node failed to answer", "its log has the details")
