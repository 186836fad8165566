"""What operators' commands ask of a node: seal a group it leads, show evidence of what it holds, go on behind a gap in a log."""

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

    def accept_gap(self, group_name: str, resume_offset: int | None) -> Mapping[str, Any]:
        """Let a group go on whose log has lost records for good. Raises GapRefused."""
        ...


def admin_routes(node: Administered) -> list[Route]:
    """`POST /api/v1/seal?group=G`, `GET /api/v1/evidence?group=G&version=V&sealed_version=S`, `POST /api/v1/accept-gap?group=G[&resume=OFFSET]`."""

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

    async def accept_gap(request: Request) -> Response:
        group, resume = request.query_params.get("group", ""), request.query_params.get("resume", "")
        if resume and not (resume.isascii() and resume.isdigit() and len(resume) < 19):
            return JSONResponse({"error": {"kind": "UsageInvalid", "message": "resume is not an offset"}}, 400)
        return await _answer(lambda: node.accept_gap(group, int(resume) if resume else None))

    return [
        Route("/api/v1/accept-gap", accept_gap, methods=["POST"]),
        Route("/api/v1/seal", seal, methods=["POST"]),
        Route("/api/v1/evidence", evidence, methods=["GET"]),
    ]


async def _answer(call: Callable[[], Mapping[str, Any]]) -> Response:
    try:
        return JSONResponse(await asyncio.to_thread(call))
    except HeadraceError as error:
        described = {"kind": type(error).__name__, "message": error.message, "action": error.action}
        return JSONResponse({"error": described}, 409)
