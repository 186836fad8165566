"""Routes of writers that reach the cluster through this node alone: schemas, drops and retentions of tables."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.consumers.serve.query_service import posted_json
from headrace.consumers.serve.request_bodies import RequestInvalid
from headrace.consumers.serve.request_threads import LOG_THREADS, RequestThreads
from headrace.consumers.serve.write_api import WriteApi
from headrace.schemas.table_documents import catalogue_document, table_document


def schema_routes(writes: WriteApi) -> list[Route]:
    """`GET /api/v1/schemas`, `POST /api/v1/drop` and `POST /api/v1/retention`."""
    threads = RequestThreads("schema", LOG_THREADS)

    async def schemas(_request: Request) -> Response:
        catalogue = await threads.run(writes.schemas)
        return JSONResponse(catalogue_document(catalogue))

    async def drop(request: Request) -> Response:
        given = await posted_json(request)
        database, table = _table(given, {"database", "table", "quorum"})
        quorum = quorum_of(given.get("quorum"))
        offsets = await threads.run(writes.drop, database, table, quorum)
        return JSONResponse({"dropped": True, "offsets": dict(offsets)})

    async def retention(request: Request) -> Response:
        given = await posted_json(request)
        database, table = _table(given, {"database", "table", "keep_ns"})
        # Left out by mistake it would end a retention.
        if "keep_ns" not in given:
            raise RequestInvalid("the request names no keep_ns", action="send nanoseconds, or null for ever")
        keep_ns = given["keep_ns"]
        if keep_ns is not None and (isinstance(keep_ns, bool) or not isinstance(keep_ns, int)):
            raise RequestInvalid("keep_ns is no whole number", action="send nanoseconds, or null for ever")
        return JSONResponse(table_document(await threads.run(writes.set_retention, database, table, keep_ns)))

    return [
        Route("/api/v1/schemas", schemas, methods=["GET"]),
        Route("/api/v1/drop", drop, methods=["POST"]),
        Route("/api/v1/retention", retention, methods=["POST"]),
    ]


def quorum_of(given: object) -> int | None:
    """A quorum of a JSON document. Raises RequestInvalid."""
    if given is None or (isinstance(given, int) and not isinstance(given, bool) and given >= 0):
        return given
    raise RequestInvalid("quorum is not a whole number", action="leave it out for the setting of the node")


def _table(given: Mapping[str, Any], known: set[str]) -> tuple[str, str]:
    if unknown := sorted(given.keys() - known):
        raise RequestInvalid(f"there is no parameter {unknown[0]!r}", action=f"known are {', '.join(sorted(known))}")
    names = given.get("database"), given.get("table")
    for kind, name in zip(("database", "table"), names, strict=True):
        if not isinstance(name, str) or not name:
            raise RequestInvalid(f"the request names no {kind}")
    return str(names[0]), str(names[1])
