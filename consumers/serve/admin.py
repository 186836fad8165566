"""What operators' commands ask of a node: seal a group it leads, and show evidence of what it holds."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from schemas.errors import HeadraceError


class Administered(Protocol):
    """A node as these routes need it."""

    def seal(self, group_name: str) -> Mapping[str, Any]:
        """Seal a group and wait until its log says so; `{"group", "version"}`. Raises NotLeader."""
        ...

    def evidence(self, group_name: str, version: int, sealed_version: int) -> Mapping[str, Any]:
        """The chain after a record and the digests of segments up to a version."""
        ...


def admin_routes(node: Administered) -> list[Route]:
    """`POST /api/v1/seal?group=G` and `GET /api/v1/evidence?group=G&version=V&sealed_version=S`."""

    async def seal(request: Request) -> Response:
        group = request.query_params.get("group", "")
        return await _answer(lambda: node.seal(group))

    async def evidence(request: Request) -> Response:
        query = request.query_params
        try:
            group, version, sealed = query["group"], int(query["version"]), int(query["sealed_version"])
        except (KeyError, ValueError):
            return JSONResponse({"error": {"kind": "UsageInvalid", "message": "group, version, sealed_version"}}, 400)
        return await _answer(lambda: node.evidence(group, version, sealed))

    return [
        Route("/api/v1/seal", seal, methods=["POST"]),
        Route("/api/v1/evidence", evidence, methods=["GET"]),
    ]


async def _answer(call: Callable[[], Mapping[str, Any]]) -> Response:
    try:
        return JSONResponse(await asyncio.to_thread(call))
    except HeadraceError as error:
        described = {"kind": type(error).__name__, "message": error.message, "action": error.action}
        return JSONResponse({"error": described}, 409)
