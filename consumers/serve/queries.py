"""The query route: a question in, an answer that streams batch by batch."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import structlog
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from consumers.query.engine import QueryEngine
from consumers.query.errors import QueryError
from consumers.query.results import MEDIA_TYPES, encode
from consumers.query.running import QueryResult
from consumers.serve.requests import QueryRequest
from schemas.errors import HeadraceError

DISCONNECT_CHECK_S = 0.25
SPARE_THREADS = 2
_log = structlog.get_logger(__name__)


@dataclass(slots=True)
class _Running:
    """One query between the thread that runs it and the coroutine that waits: `cancel` ends it as soon as it can notice."""

    cancelled: bool = False
    _end: Callable[[], None] | None = field(default=None)

    def started(self, end: Callable[[], None]) -> None:
        self._end = end
        if self.cancelled:
            end()

    def cancel(self) -> None:
        self.cancelled = True
        if self._end is not None:
            self._end()


class _Answered(NamedTuple):
    """A query whose first rows are there: its first piece as bytes, and the pieces to come."""

    result: QueryResult
    first: bytes
    pieces: Iterator[bytes]


class _Stream(StreamingResponse):
    """A response that ends unfinished when its query fails, which makes the server cut the connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(QueryError):
            await super().__call__(scope, receive, send)


class Asking:
    """Answers questions on threads of its own, so that long queries never keep health checks waiting.

    There are a few more threads than places for queries: a query too many is refused at once.
    """

    def __init__(self, engine: QueryEngine) -> None:
        self._engine = engine
        self._threads = ThreadPoolExecutor(engine.settings.queries_max + SPARE_THREADS, thread_name_prefix="query")

    async def answer(self, request: Request, question: QueryRequest) -> Response:
        """The answer to a question. Errors before its first rows are raised; later ones cut the connection, so that no client takes a part for
        all. A client that leaves takes its query with it.
        """
        running = _Running()
        started = asyncio.wrap_future(self._threads.submit(_start, self._engine, question, running))
        try:
            while not (await asyncio.wait({started}, timeout=DISCONNECT_CHECK_S))[0]:
                if await request.is_disconnected():
                    running.cancel()
        except asyncio.CancelledError:
            running.cancel()
            started.add_done_callback(_close_unwanted)
            raise
        answered = started.result()
        return _Stream(self._stream(answered), media_type=MEDIA_TYPES[question.format])

    async def _stream(self, answered: _Answered) -> AsyncIterator[bytes]:
        loop = asyncio.get_running_loop()
        try:
            yield answered.first
            while piece := await loop.run_in_executor(self._threads, next, answered.pieces, b""):
                yield piece
        except QueryError as error:
            _log.warning("answer cut short", kind=error.kind, message=error.message, rows=answered.result.rows)
            raise
        finally:
            # Closing may wait for a batch that is being computed; the event loop must not.
            self._threads.submit(answered.result.close)


def _start(engine: QueryEngine, question: QueryRequest, running: _Running) -> _Answered:
    result = engine.query(
        question.sql,
        after=question.after,
        timeout_ms=question.timeout_ms,
        row_limit=question.limit,
        on_start=running.started,
    )
    try:
        pieces = encode(question.format, result.schema, result.batches())
        return _Answered(result, next(pieces, b""), pieces)
    except BaseException:
        result.close()
        raise


def _close_unwanted(started: asyncio.Future[_Answered]) -> None:
    if not started.cancelled() and started.exception() is None:
        started.result().result.close()


def http_status(error: HeadraceError) -> int:
    """The HTTP status of an error."""
    return _STATUSES.get(type(error).__name__, 400)


_STATUSES = {
    "QueryTimeout": 504,
    "NotCaughtUp": 503,
    "TooManyQueries": 503,
    "SegmentUnreadable": 500,
    "QueryError": 503,
    "QueryCancelled": 503,
    "RequestTooLarge": 413,
}
