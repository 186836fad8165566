"""What clients of InfluxDB ask before they write: whether somebody is there, and that a database be made.

Telegraf sends `CREATE DATABASE` to `/query` when it starts, and writes no row before it has an answer. The statements
that are understood are those; readings are queried in SQL.
"""

from __future__ import annotations

import re

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.consumers.serve.query_service import http_status
from headrace.consumers.serve.request_bodies import RequestTooLarge, bounded_body, text_parameters, url_parameters
from headrace.consumers.serve.request_threads import LOG_THREADS, RequestThreads
from headrace.consumers.serve.write_api import WriteApi
from headrace.schemas.errors import HeadraceError

STATEMENT_BYTES_MAX = 64 * 1024
_FORM = "application/x-www-form-urlencoded"
_NAME = r'(?P<name>"(?:[^"\\]|\\.)+"|[A-Za-z_][A-Za-z0-9_]*)'
_CREATE = re.compile(rf"\s*CREATE\s+DATABASE\s+{_NAME}\s*;?\s*", re.IGNORECASE)
_SHOW = re.compile(r"\s*SHOW\s+DATABASES\s*;?\s*", re.IGNORECASE)
_ESCAPE = re.compile(r"\\(.)")
_UNKNOWN = "only CREATE DATABASE and SHOW DATABASES are understood here; send SQL to /api/v1/query"
_HEADERS = {"X-Influxdb-Version": "headrace"}
"""Its clients show the header of this name as the version of the server."""


def influx_routes(writes: WriteApi) -> list[Route]:
    """`/ping`, `/health` and `/query` of InfluxDB."""
    threads = RequestThreads("influx", LOG_THREADS)

    async def ping(_request: Request) -> Response:
        return Response(status_code=204, headers=_HEADERS)

    async def health(_request: Request) -> Response:
        # Whether it takes rows. `/health/ready` is whether it answers queries.
        document = {"name": "headrace", "message": "ready for writes", "status": "pass", "checks": []}
        return JSONResponse(document, headers=_HEADERS)

    async def query(request: Request) -> Response:
        return JSONResponse(*await _answer(writes, threads, await _statement(request)), headers=_HEADERS)

    return [
        Route("/ping", ping, methods=["GET", "HEAD"]),
        Route("/health", health, methods=["GET"]),
        Route("/query", query, methods=["GET", "POST"]),
    ]


async def _statement(request: Request) -> str:
    """The statement of a URL, or of a form. Raises RequestInvalid, RequestTooLarge."""
    given = url_parameters(request)
    if "q" in given:
        return given["q"]
    refusal = RequestTooLarge(f"the body is larger than {STATEMENT_BYTES_MAX} bytes", action="send one statement")
    body = await bounded_body(request, STATEMENT_BYTES_MAX, refusal)
    is_form = request.headers.get("content-type", "").partition(";")[0].strip().lower() == _FORM
    return text_parameters(body).get("q", "") if is_form else ""


async def _answer(writes: WriteApi, threads: RequestThreads, statement: str) -> tuple[dict[str, object], int]:
    """(document, status) as InfluxDB 1 has them: an error of a statement is in its result."""
    try:
        if found := _CREATE.fullmatch(statement):
            await threads.run(writes.create_database, _name(found["name"]))
            return {"results": [{"statement_id": 0}]}, 200
        if _SHOW.fullmatch(statement):
            names = sorted((await threads.run(writes.schemas)).databases)
            series = {"name": "databases", "columns": ["name"], "values": [[name] for name in names]}
            return {"results": [{"statement_id": 0, "series": [series]}]}, 200
    except HeadraceError as error:
        if error.retriable:
            return {"error": str(error)}, http_status(error)
        return {"results": [{"statement_id": 0, "error": str(error)}]}, 200
    return {"error": _UNKNOWN if statement.strip() else 'missing required parameter "q"'}, 400


def _name(text: str) -> str:
    """A name as it is meant: without its quotes, escapes resolved."""
    if not text.startswith('"'):
        return text
    return _ESCAPE.sub(lambda found: "\n" if found[1] == "n" else found[1], text[1:-1])
