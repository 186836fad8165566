"""The query route: parses the request, runs the query on a thread, and streams its result batch by batch."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import structlog
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from headrace.connectors.http import AS_OF_HEADER, QUERY_ID_HEADER
from headrace.consumers.query.engine import PendingQuery, QueryEngine
from headrace.consumers.query.guard import has_half_pair
from headrace.consumers.query.parameters import problem_of
from headrace.consumers.query.query_errors import QueryError, is_of_change
from headrace.consumers.query.query_timer import QueryTimer
from headrace.consumers.query.result_formats import MEDIA_TYPES, Chunk, encode
from headrace.consumers.query.result_stream import ResultStream
from headrace.consumers.serve.request_bodies import RequestInvalid, RequestTooLarge, bounded_body, url_parameters
from headrace.schemas.durations import DurationInvalid, duration_s
from headrace.schemas.errors import HeadraceError, StateUnknown

DISCONNECT_CHECK_S = 0.25
STALL_GRACE_S = 0.5
SPARE_THREADS = 2
BODY_BYTES_MAX = 1024 * 1024
WHOLE_BYTES_MAX = 64 * 1024
"""An answer of up to so many bytes is encoded to its end before its first byte is sent."""
SMALL_BYTES_MAX = 16 * 1024
"""Rows of up to so many bytes are encoded by the thread that answers."""
FORMAT_DEFAULT = "json"
QUERY_PARAMETERS = ("after", "timeout_ms", "limit", "stale", "parameters", "user")
"""What a query may have beside its SQL and its format, on every surface."""
COUNT_MAX = 2**63 - 1
"""DuckDB and Arrow count rows and offsets in 64 bits."""
DIGITS_MAX = len(str(COUNT_MAX))
USER_CHARACTERS_MAX = 100
_log = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """One query.

    `after` maps groups to log offsets that the result must contain; `limit` bounds its rows; `parameters` has
    the values of the names that the SQL writes as `$name`. `stale_s`: how old an answer of a node that does not
    serve may be; None = `query.stale_max_s`.
    """

    sql: str
    format: str = FORMAT_DEFAULT
    after: Mapping[str, int] = field(default_factory=dict)
    timeout_ms: int | None = None
    limit: int | None = None
    stale_s: float | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)
    user: str = ""


class _StartedQuery(NamedTuple):
    """A query whose first rows are there: the bytes so far, the chunks to come, and whether there are none."""

    result: ResultStream
    first: bytes
    chunks: Iterator[Chunk]
    complete: bool


class CutOnError(StreamingResponse):
    """A response that ends unfinished when its query fails, which makes the server cut the connection.

    So it ends when the time of the query is over and its client takes no rows, which would hold the query for ever.
    A scan for another node is a query here.
    """

    def __init__(
        self, rows: AsyncGenerator[Chunk], timer: QueryTimer, media_type: str, headers: dict[str, str] | None = None
    ) -> None:
        super().__init__(rows, media_type=media_type, headers=headers)
        self._rows = rows
        self._timer = timer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            # Later than the time of the query: one that computes ends by itself then, and says so.
            async with asyncio.timeout(self._timer.left_s + STALL_GRACE_S):
                await super().__call__(scope, receive, send)
        except (QueryError, TimeoutError):
            pass
        finally:
            await self._rows.aclose()


class QueryService:
    """Runs queries of HTTP requests on threads of its own, so that long queries delay no health checks."""

    def __init__(self, engine: QueryEngine) -> None:
        self._engine = engine
        # More threads than queries may run: one query too many then reaches the engine, which refuses it at once,
        # instead of waiting for a thread.
        self._threads = ThreadPoolExecutor(engine.settings.queries_max + SPARE_THREADS, thread_name_prefix="query")

    async def respond(self, request: Request, query: QueryRequest) -> Response:
        """The response to a query. A client that disconnects cancels its query.

        Errors of an answer of up to WHOLE_BYTES_MAX, and those before that much of a larger one is there, are
        raised. Later ones cut the connection, so that no client takes a part of the result for all of it.
        """
        pending = self._engine.begin(query.sql, **_options(query))
        try:
            await _until_ready(request, pending)
        except asyncio.CancelledError:
            # Its end may wait for a step, and the event loop must not.
            self._threads.submit(pending.fail, None)
            raise
        answer = await self._started(pending, query.format)
        media_type, as_of = MEDIA_TYPES[query.format], answer.result.as_of
        headers = {QUERY_ID_HEADER: answer.result.query_id}
        if as_of is not None:
            headers[AS_OF_HEADER] = as_of.iso()
        if answer.complete:
            # Nothing is to be closed: a query whose last row was taken ends by itself.
            return Response(answer.first, media_type=media_type, headers=headers)
        return CutOnError(self._stream(answer), answer.result.timer, media_type, headers)

    async def _started(self, pending: PendingQuery, format_name: str) -> _StartedQuery:
        """The beginning of an answer that is ready."""
        size_bytes = pending.output.whole_bytes
        if size_bytes is not None and size_bytes <= SMALL_BYTES_MAX:
            # Encoded sooner than another thread could begin.
            return _start(pending, format_name, lambda result: self._threads.submit(result.close))
        started = asyncio.wrap_future(self._threads.submit(_start, pending, format_name, ResultStream.close))
        try:
            return await asyncio.shield(started)
        except asyncio.CancelledError:
            pending.cancel()
            started.add_done_callback(_close_unwanted)
            raise

    async def _stream(self, query: _StartedQuery) -> AsyncGenerator[Chunk]:
        loop = asyncio.get_running_loop()
        try:
            yield query.first
            while chunk := await loop.run_in_executor(self._threads, next, query.chunks, b""):
                yield chunk
        except QueryError as error:
            log = _log.info if is_of_change(error) else _log.warning
            log("answer cut short", kind=error.kind, message=error.message, rows=query.result.rows)
            raise
        finally:
            # Closing may wait for a batch that is being computed; the event loop must not.
            self._threads.submit(query.result.close)


def start_query(
    engine: QueryEngine, query: QueryRequest, on_start: Callable[[Callable[[], None]], None]
) -> ResultStream:
    """Start a query (see `QueryEngine.query`). Raises a QueryError."""
    return engine.query(query.sql, on_start=on_start, **_options(query))


def _options(query: QueryRequest) -> dict[str, Any]:
    return {
        "after": query.after,
        "timeout_ms": query.timeout_ms,
        "row_limit": query.limit,
        "stale_s": query.stale_s,
        "parameters": query.parameters,
        "user": query.user,
    }


async def _until_ready(request: Request, pending: PendingQuery) -> None:
    """Wait until the beginning of an answer can be taken. A client that leaves cancels the query."""
    loop = asyncio.get_running_loop()
    ready = loop.create_future()

    def set_ready() -> None:
        if not ready.done():
            ready.set_result(None)

    def wake() -> None:
        # The loop may have ended.
        with contextlib.suppress(RuntimeError):
            loop.call_soon_threadsafe(set_ready)

    pending.output.when_ready(wake, WHOLE_BYTES_MAX)
    # Nothing wakes a coroutine when its client leaves, and the first row may take minutes: so it polls.
    while not (await asyncio.wait({ready}, timeout=DISCONNECT_CHECK_S))[0]:
        if await request.is_disconnected():
            pending.cancel()


def _start(pending: PendingQuery, format_name: str, close: Callable[[ResultStream], Any]) -> _StartedQuery:
    result = pending.result()
    try:
        chunks = encode(format_name, result.schema, result.batches())
        return _StartedQuery(result, *_beginning(chunks))
    except BaseException:
        close(result)
        raise


def _beginning(chunks: Iterator[Chunk]) -> tuple[bytes, Iterator[Chunk], bool]:
    """The first bytes of an answer, the chunks behind them, and whether there are none."""
    # Encoded before the response begins: an error up to here still has its status, above all that of a node
    # which finds at the end of a query that it must not answer.
    parts: list[Chunk] = []
    size = 0
    for chunk in chunks:
        parts.append(chunk)
        size += len(chunk)
        if size > WHOLE_BYTES_MAX:
            return b"".join(parts), chunks, False
    return b"".join(parts), chunks, True


def _close_unwanted(started: asyncio.Future[_StartedQuery]) -> None:
    if not started.cancelled() and started.exception() is None:
        started.result().result.close()


async def query_request(request: Request) -> QueryRequest:
    """The query of a GET (`?q=`) or a POST (JSON). Raises RequestInvalid or RequestTooLarge."""
    if request.method == "POST":
        return parse_query(await posted_json(request))
    texts = _once(url_parameters(request).multi_items())
    if "q" in texts and "sql" in texts:
        raise RequestInvalid("q and sql are both the SQL", action="give one of them")
    if "q" in texts:
        texts["sql"] = texts.pop("q")
    return request_of_texts(texts)


def request_of_texts(texts: Mapping[str, str]) -> QueryRequest:
    """A query from parameters that are texts, as those of a URL. Raises RequestInvalid."""
    given: dict[str, Any] = dict(texts)
    for name in ("timeout_ms", "limit"):
        if name in given:
            given[name] = _number(name, given[name])
    for name in ("after", "parameters"):
        if name in given:
            given[name] = _parsed(name, given[name])
    return parse_query(given)


def parse_query(given: Mapping[str, Any]) -> QueryRequest:
    """A query from its parameters. Raises RequestInvalid, which names the parameter that is wrong."""
    # An unknown parameter is an error: a misspelled `limit` must not return everything.
    known = ("sql", "format", *QUERY_PARAMETERS)
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise RequestInvalid(
            f"there is no parameter {unknown[0]!r}", action=f"known are {', '.join(known[:-1])} and {known[-1]}"
        )
    sql, name, after = given.get("sql"), given.get("format") or FORMAT_DEFAULT, given.get("after") or {}
    if not isinstance(sql, str) or not sql.strip():
        raise RequestInvalid("the request has no SQL", action='send {"sql": "SELECT …"}, or GET with ?q=')
    if name not in MEDIA_TYPES:
        raise RequestInvalid(f"there is no format {name!r}", action=f"use one of {', '.join(MEDIA_TYPES)}")
    if not isinstance(after, dict) or not all(_is_count(offset) for offset in after.values()):
        raise RequestInvalid("after does not map groups to offsets", action='send {"after": {"group": offset}}')
    for part in ("timeout_ms", "limit"):
        if given.get(part) is not None and not (_is_count(given[part]) and given[part] > 0):
            raise _not_positive(part)
    parameters = given.get("parameters") or {}
    problem = problem_of(parameters)
    if problem is not None:
        raise RequestInvalid(problem, action='send {"parameters": {"name": value}}')
    user = given.get("user") or ""
    if not isinstance(user, str) or len(user) > USER_CHARACTERS_MAX or has_half_pair(user):
        raise RequestInvalid(f"user is not a text of up to {USER_CHARACTERS_MAX} characters")
    stale_s = _stale_s(given.get("stale"))
    return QueryRequest(sql, name, after, given.get("timeout_ms"), given.get("limit"), stale_s, parameters, user)


def _stale_s(given: Any) -> float | None:
    try:
        return None if given is None else duration_s(given)
    except DurationInvalid as error:
        raise RequestInvalid(f"stale: {error.message}", action=error.action) from error


async def posted_json(request: Request) -> Mapping[str, Any]:
    """The JSON object of a POST. Raises RequestInvalid, RequestTooLarge."""
    # A page of another site can post text or forms without asking the browser first, but not JSON.
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise RequestInvalid("the request is not JSON", action="send it with Content-Type: application/json")
    given = _parsed("the body", await _body(request))
    if not isinstance(given, dict):
        raise RequestInvalid("the body is not a JSON object", action="send the parameters as one object")
    return given


async def _body(request: Request) -> bytes:
    refusal = RequestTooLarge(f"the body is larger than {BODY_BYTES_MAX} bytes", action="send a smaller query")
    return await bounded_body(request, BODY_BYTES_MAX, refusal)


def _parsed(name: str, text: str | bytes) -> Any:
    try:
        return json.loads(text, object_pairs_hook=_once)
    except (ValueError, RecursionError) as error:
        raise RequestInvalid(f"{name} is not JSON: {error}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object, or the parameters of a URL. Of one that is given twice the last would win, and a delete be another."""
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise RequestInvalid(f"{twice!r} is given twice", action="give it once")
    return found


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > DIGITS_MAX:
        raise _not_positive(name)
    return int(text)


def _not_positive(name: str) -> RequestInvalid:
    return RequestInvalid(f"{name} is not a positive whole number", action=f"send one from 1 to {COUNT_MAX}")


def _is_count(value: object) -> bool:
    # In Python `True` is an int; in JSON it is not a number.
    return isinstance(value, int) and not isinstance(value, bool) and -COUNT_MAX <= value <= COUNT_MAX


def http_status(error: HeadraceError) -> int:
    """The HTTP status of an error."""
    # What may succeed later, or has perhaps succeeded, is no fault of the request.
    again = error.retriable or isinstance(error, StateUnknown)
    return _STATUSES.get(type(error).__name__, 503 if again else 400)


_STATUSES = {
    "QueryTimeout": 504,
    "NotReady": 503,
    "NotCaughtUp": 503,
    "AnswerStale": 503,
    "TooManyQueries": 503,
    "TooManyScans": 503,
    "GroupUnavailable": 503,
    "ReplicaLost": 503,
    "SlotNotHeld": 409,
    "SlotsMoved": 409,
    "GroupNotHere": 409,
    "SegmentUnreadable": 500,
    "QueryError": 503,
    "QueryCancelled": 503,
    "QueryFailed": 500,
    "QueryUnknown": 404,
    "RequestTooLarge": 413,
    "WritesWaiting": 503,
    "WriteUnknown": 503,
    "QuorumTimeout": 503,
    "WriteFailed": 503,
    "WriterClosed": 503,
}
