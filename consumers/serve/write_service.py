"""Writing over HTTP: line protocol as clients of InfluxDB 1, 2 and 3 send it, Arrow streams, and deletes.

A body is read up to a limit, decompressed up to the same limit, and waits with those of other clients for one sync
(`producers/group_writer.py`). What cannot be taken now is refused with 503 and the time to retry. An answer of 204 or 200
means that the rows are in the log, or at as many members as `write.quorum` says.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any, cast

import pyarrow as pa
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from headrace.connectors.formats.interface import NS_PER_UNIT, FormatError, TimeUnit
from headrace.connectors.formats.stream_reader import StreamTooLarge, StreamUnreadable, read_stream
from headrace.connectors.http import OFFSETS_HEADER
from headrace.consumers.query.guard import has_half_pair
from headrace.consumers.scheduling.scheduling_errors import RETRY_AFTER_S
from headrace.consumers.serve.query_service import posted_json
from headrace.consumers.serve.request_bodies import (
    BodyShare,
    RequestInvalid,
    RequestTooLarge,
    bounded_body,
    url_parameters,
)
from headrace.consumers.serve.request_threads import LINE_THREADS, WRITE_THREADS, RequestThreads
from headrace.consumers.serve.schema_service import quorum_of
from headrace.consumers.serve.write_api import WriteApi, WriteOptions
from headrace.producers.group_writer import WritesWaiting
from headrace.producers.line_batches import LinesRefused
from headrace.producers.line_requests import AUTO, LineAnswer, LineRequest, RefusedLine
from headrace.producers.router import RowTooLarge
from headrace.schemas.errors import HeadraceError, StateUnknown
from headrace.schemas.tables import SchemaError, TimeResolution, TypeClash

V1_PRECISIONS: Mapping[str, TimeUnit] = {
    "": "ns", "ns": "ns", "n": "ns", "us": "us", "u": "us", "ms": "ms", "s": "s", "m": "m", "h": "h"
}  # fmt: skip
V2_PRECISIONS: Mapping[str, TimeUnit] = {"": "ns", "ns": "ns", "us": "us", "ms": "ms", "s": "s"}
V3_PRECISIONS: Mapping[str, TimeUnit | None] = {
    "": None,
    AUTO: None,
    "nanosecond": "ns",
    "microsecond": "us",
    "millisecond": "ms",
    "second": "s",
    **{unit: cast("TimeUnit", unit) for unit in NS_PER_UNIT if unit not in ("m", "h")},
}
DEFAULT_RETENTION_POLICIES = ("", "autogen")
"""Names of the retention policy that a database of InfluxDB has by itself."""
OPTIONS = ("quorum", "quorum_timeout_ms", "resolution", "required")
"""What an Arrow request may choose, see `WriteOptions`; `required` is about the resolution, and true by itself."""
_OF_CONTENT = (FormatError, RequestInvalid, RowTooLarge, SchemaError, TypeClash)
"""What is wrong with lines themselves. Clients drop rows that were answered with 400, and send all others again: also
where only an operator can mend what keeps the node from writing.
"""
_TRUTH = {"true": True, "": True, "false": False}
_RESOLUTIONS = {"": None, **{str(each): each for each in TimeResolution}}


def write_routes(writes: WriteApi) -> list[Route]:
    """The routes of writers; `docs/operating/edge.md` lists them for people."""
    service = WriteService(writes)
    return [
        Route("/write", service.write_v1, methods=["POST"]),
        Route("/api/v2/write", service.write_v2, methods=["POST"]),
        Route("/api/v3/write_lp", service.write_v3, methods=["POST"]),
        Route("/api/v1/write", service.write_arrow, methods=["POST"]),
        Route("/api/v1/delete", service.delete, methods=["POST"]),
    ]


class WriteService:
    """Answers requests to write. Everything that waits for the log runs on threads."""

    def __init__(self, writes: WriteApi) -> None:
        self._writes = writes
        # Rows of Arrow and deletes wait for the log on their thread. Lines only queue, and are refused when too many do.
        self._waiting = RequestThreads("write", WRITE_THREADS)
        self._queueing = RequestThreads("lines", LINE_THREADS)

    async def write_v1(self, request: Request) -> Response:
        """`POST /write?db=DB[&rp=R]&precision=P`."""

        async def lines() -> Response:
            given = _parameters(request, {"db", "rp", "precision", "u", "p", "consistency"})
            unit = _chosen("precision", V1_PRECISIONS, given.get("precision", ""))
            return await self._write_lines(request, _database(given, "db"), unit, whole=False)

        return await _influx(lines)

    async def write_v2(self, request: Request) -> Response:
        """`POST /api/v2/write?bucket=DB[/R]&org=…&precision=P`."""

        async def lines() -> Response:
            given = _parameters(request, {"bucket", "org", "orgID", "precision"})
            unit = _chosen("precision", V2_PRECISIONS, given.get("precision", ""))
            return await self._write_lines(request, _database(given, "bucket"), unit, whole=False)

        return await _influx(lines)

    async def write_v3(self, request: Request) -> Response:
        """`POST /api/v3/write_lp?db=DB&precision=P&accept_partial=B`."""

        async def lines() -> Response:
            given = _parameters(request, {"db", "precision", "accept_partial", "no_sync"})
            unit = _chosen("precision", V3_PRECISIONS, given.get("precision", ""))
            partial = _chosen("accept_partial", _TRUTH, given.get("accept_partial", ""))
            return await self._write_lines(request, _database(given, "db"), unit, whole=not partial)

        return await _influx(lines)

    async def write_arrow(self, request: Request) -> Response:
        """`POST /api/v1/write?database=DB&table=T&tags=A,B[&quorum=K]`, an Arrow IPC stream.

        A tag whose name has a comma is given as `tag=NAME`. See OPTIONS for the others.
        """
        known = ("database", "table", "tags", *OPTIONS)
        given = _parameters(request, set(known))
        # Of a misspelt `tags` the values would be fields, and rows that differ in them alone replace each other.
        if unknown := sorted(given.keys() - {*known, "tag"}):
            raise RequestInvalid(
                f"there is no parameter {unknown[0]!r}", action=f"known are {', '.join((*known, 'tag'))}"
            )
        names = (*given.get("tags", "").split(","), *url_parameters(request).getlist("tag"))
        named = tuple(dict.fromkeys(name for name in names if name))
        tags = named if named or "tags" in given else None
        options = _options(given)
        for name in ("database", "table"):
            if not given.get(name):
                raise RequestInvalid(f"the request names no {name}", action=f"add {name}=NAME to the URL")
        async with self._open_request() as share:
            body = await self._body(request, share)
            written = await self._waiting.run(
                lambda: self._writes.write(
                    given["database"], given["table"], _arrow(body, self._body_bytes_max), tags, options
                )
            )
        return JSONResponse({"rows": written.rows, "points": written.points, "offsets": dict(written.offsets)})

    async def delete(self, request: Request) -> Response:
        """`POST /api/v1/delete` with `{"database", "table", "tags", "start", "end"}`."""
        given = await posted_json(request)
        unknown = sorted(given.keys() - {"database", "table", "tags", "start", "end", "quorum"})
        if unknown:
            raise RequestInvalid(
                f"there is no parameter {unknown[0]!r}", action="known are database, table, tags, start, end, quorum"
            )
        async with self._open_request():
            offsets = await self._waiting.run(lambda: self._writes.delete(**_delete(given)))
        return JSONResponse({"deleted": True, "offsets": dict(offsets)})

    async def _write_lines(self, request: Request, database: str, unit: TimeUnit | None, *, whole: bool) -> Response:
        async with self._open_request() as share:
            lines = LineRequest(database, unit, await self._body(request, share), time.time_ns() // 1_000_000, whole)
            # The first write of a node opens its connection; after that, this only queues.
            answering = await self._queueing.run(self._writes.submit, lines)
            # It is counted among those that wait to be written.
            share.release()
            answer = await asyncio.wrap_future(answering)
        response = _refusal(answer) if answer.refused else Response(status_code=204)
        if answer.offsets:
            response.headers[OFFSETS_HEADER] = json.dumps(answer.offsets)
        return response

    @asynccontextmanager
    async def _open_request(self) -> AsyncIterator[BodyShare]:
        figures = self._writes.figures
        # All requests are handled by one thread, that of the event loop: a counter is enough.
        if figures.open_requests >= self._writes.settings.http_requests_max:
            figures.refused_requests += 1
            raise WritesWaiting("too many requests to write are open", action="try again in a moment", retriable=True)
        figures.open_requests += 1
        try:
            with figures.bodies.share(self._writes.settings.http_waiting_mb_max * 1_000_000) as share:
                yield share
        finally:
            figures.open_requests -= 1

    @property
    def _body_bytes_max(self) -> int:
        """Of a body as it arrives, and of what it holds."""
        return self._writes.settings.http_body_mb_max * 1_000_000

    async def _body(self, request: Request, share: BodyShare) -> bytes:
        limit = self._body_bytes_max
        try:
            return await bounded_body(request, limit, _too_large(limit), self._queueing.run, share)
        except WritesWaiting:
            self._writes.figures.refused_requests += 1
            raise


def _too_large(limit: int) -> RequestTooLarge:
    return RequestTooLarge(
        f"the body is larger than {limit // 1_000_000} MB",
        action="send fewer lines in a request (write.http_body_mb_max)",
    )


def _parameters(request: Request, known: set[str]) -> dict[str, str]:
    """The parameters of a URL. Unknown ones are ignored, as InfluxDB does; one that is given twice is an error."""
    found: dict[str, str] = {}
    for name, value in url_parameters(request).multi_items():
        if name in found and name in known:
            raise RequestInvalid(f"{name} is given twice")
        found[name] = value
    return found


def _database(given: Mapping[str, str], parameter: str) -> str:
    """The database of a request: `DB`, or `DB/R` with a retention policy that has a name."""
    name, _, policy = (
        given.get(parameter, "").partition("/") if parameter == "bucket" else (given.get(parameter, ""), "", "")
    )
    policy = policy or given.get("rp", "")
    if not name:
        raise RequestInvalid(f"the request names no database: {parameter} is missing", action=f"add {parameter}=NAME")
    return name if policy in DEFAULT_RETENTION_POLICIES else f"{name}/{policy}"


def _chosen(name: str, values: Mapping[str, Any], given: str) -> Any:
    if given not in values:
        known = ", ".join(value for value in values if value)
        raise RequestInvalid(f"{name} {given!r} is unknown", action=f"use one of {known}")
    return values[given]


def _options(given: Mapping[str, str]) -> WriteOptions:
    resolution = _chosen("resolution", _RESOLUTIONS, given.get("resolution", ""))
    return WriteOptions(
        _number("quorum", given.get("quorum"), 3),
        _number("quorum_timeout_ms", given.get("quorum_timeout_ms"), 9, least=1),
        resolution,
        resolution_required=resolution is not None and _chosen("required", _TRUTH, given.get("required", "")),
    )


def _number(name: str, given: str | None, digits_max: int, least: int = 0) -> int | None:
    if given is None:
        return None
    if not given.isascii() or not given.isdigit() or len(given) > digits_max:
        raise RequestInvalid(f"{name} {given!r} is not a whole number")
    if int(given) < least:
        raise RequestInvalid(f"{name} {given} is too small", action=f"give at least {least}")
    return int(given)


def _arrow(body: bytes, limit: int) -> pa.Table:
    """The rows of a body, which may take so many bytes once they are decoded, too. Raises RequestInvalid, RequestTooLarge."""
    try:
        schema, batches = read_stream(pa.py_buffer(body), limit)
    except StreamTooLarge as error:
        raise RequestTooLarge(f"the body is {error}", action="send fewer rows (write.http_body_mb_max)") from None
    except StreamUnreadable as error:
        raise RequestInvalid(f"the body is {error}", action="send a whole Arrow IPC stream") from None
    return pa.Table.from_batches(batches, schema)


def _delete(given: Mapping[str, Any]) -> dict[str, Any]:
    texts = {name: given.get(name) for name in ("database", "table")}
    for name, value in texts.items():
        if not _is_text(value) or not value:
            raise RequestInvalid(f"the request names no {name}")
    tags = given.get("tags") or {}
    if not isinstance(tags, dict) or not all(_is_tag(each) for each in tags.values()):
        raise RequestInvalid("tags does not map tags to values", action='send {"tags": {"host": ["a", "b"]}}')
    for name in ("start", "end"):
        value = given.get(name)
        if value is not None and not _is_time(value):
            raise RequestInvalid(f"{name} is no time", action="send ISO 8601, or nanoseconds since 1970")
    times = {name: given.get(name) for name in ("start", "end")}
    if not tags and times["start"] is None and times["end"] is None:
        raise RequestInvalid(
            "this deletes every row of the table", action="send tags, start or end, or drop the table (/api/v1/drop)"
        )
    return {**texts, "tags": tags, **times, "quorum": quorum_of(given.get("quorum"))}


def _is_time(value: object) -> bool:
    is_number = isinstance(value, int) and not isinstance(value, bool)
    return _is_text(value) or (is_number and -(2**63) <= value < 2**63)  # type: ignore[operator]


def _is_text(value: object) -> bool:
    """Whether a value is a text that has a form in UTF-8."""
    return isinstance(value, str) and not has_half_pair(value)


def _is_tag(value: object) -> bool:
    return _is_text(value) or (isinstance(value, list) and all(map(_is_text, value)))


async def _influx(lines: Callable[[], Awaitable[Response]]) -> Response:
    """An answer as clients of InfluxDB expect it, also of an error."""
    try:
        return await lines()
    except LinesRefused as error:
        return _refusal(error.answer)
    except RequestTooLarge as error:
        return _failure(413, "request too large", error)
    except HeadraceError as error:
        if isinstance(error, _OF_CONTENT) and not error.retriable:
            return _failure(400, "invalid", error)
        # Writing again is safe, and only the client can do it: rows are upserts.
        return _failure(503, "unavailable", error)


def _failure(status: int, code: str, error: HeadraceError) -> Response:
    document: dict[str, object] = {"code": code, "message": str(error), "error": str(error)}
    if isinstance(error, StateUnknown):
        document["state_unknown"] = True
    headers = {"retry-after": str(RETRY_AFTER_S)} if status == 503 else {}
    return Response(json.dumps(document), status, headers, "application/json")


def _refusal(answer: LineAnswer) -> Response:
    first = answer.refused[0]
    rest = answer.refused_count - 1
    more = f" (and {rest} more)" if rest else ""
    written = "1 row was" if answer.rows == 1 else f"{answer.rows} rows were"
    message = f"line {first.line}: {first.reason}{more}; {written} written"
    document = {
        "code": "invalid",
        "message": message,
        "error": message,
        "line": first.line,
        "rejected": [_shown(each) for each in answer.refused],
    }
    return Response(json.dumps(document), 400, media_type="application/json")


def _shown(line: RefusedLine) -> dict[str, object]:
    return {"line": line.line, "reason": line.reason}
