"""The routes of the queries that run here: `GET /api/v1/queries`, `DELETE /api/v1/queries/{id}`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.consumers.scheduling.driver_task import QueryReport
from headrace.consumers.scheduling.task_states import TaskState
from headrace.consumers.serve.node_api import NodeApi
from headrace.consumers.serve.request_threads import STATUS_THREADS, RequestThreads


def running_query_routes(node: NodeApi) -> list[Route]:
    """Which queries run, and the end of one of them."""
    # Of their own: who ends a query has often other requests that wait.
    threads = RequestThreads("queries", STATUS_THREADS)

    async def queries(_request: Request) -> Response:
        return JSONResponse(await threads.run(_queries, node))

    async def kill(request: Request) -> Response:
        query_id = request.path_params["id"]
        await threads.run(node.engine.kill, query_id)
        return JSONResponse({"killed": query_id})

    return [
        Route("/api/v1/queries", queries, methods=["GET"]),
        Route("/api/v1/queries/{id:path}", kill, methods=["DELETE"]),
    ]


def _queries(node: NodeApi) -> list[dict[str, Any]]:
    name = node.status()["node"]
    return [query_document(report, name) for report in node.engine.reports()]


def query_document(report: QueryReport, node: str) -> dict[str, Any]:
    """A running query as operators see it."""
    live = (TaskState.READY, TaskState.RUNNING, TaskState.BLOCKED)
    return {
        "id": report.id,
        "sql": report.sql,
        "user": report.user,
        "node": node,
        "state": str(report.state),
        "level": report.level,
        "cpu_seconds": round(report.cpu_seconds, 6),
        "drivers": {str(state): report.drivers[state] for state in live},
        "memory_bytes": report.memory_bytes,
        "blocked_on": None if report.blocked_on is None else str(report.blocked_on),
    }
