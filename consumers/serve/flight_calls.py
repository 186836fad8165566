"""The open calls of a node's Flight surface, and the watch that ends those that nobody reads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Protocol

import structlog

from headrace.connectors.deadline import Deadline
from headrace.connectors.periodic import PeriodicTask
from headrace.consumers.query.query_errors import QueryCancelled, QueryError, QueryTimeout, TooManyQueries
from headrace.consumers.query.result_stream import ResultStream

FLIGHT_CALLS_MAX = 256
"""Open calls of one node. Each holds a thread of gRPC, also while it waits for a slow client."""
FLIGHT_BINDINGS_MAX = FLIGHT_CALLS_MAX // 2
"""Open calls up to which one more may send parameters. Nothing bounds the time of such a call but its client."""
WATCH_INTERVAL_S = 0.25
_log = structlog.get_logger(__name__)


class CallContext(Protocol):
    """What Flight knows of a call; `pyarrow.flight.ServerCallContext`. Valid until the call ends, and not behind it."""

    def is_cancelled(self) -> bool:
        """Whether the client has left."""
        ...


class OpenCall:
    """One call: a query that starts, then a result of which the client takes one batch after another."""

    def __init__(self, calls: OpenCalls, context: CallContext) -> None:
        self._calls = calls
        self._context = context
        self._cancel_query: Callable[[], None] | None = None
        self._result: ResultStream | None = None
        self._cancelled = False
        self._computing = True
        self._end: QueryError | None = None

    def started(self, cancel_query: Callable[[], None]) -> None:
        """The query runs and can be cancelled."""
        # Both sides store before they look, so the later one sees the other and no cancellation is lost.
        self._cancel_query = cancel_query
        if self._cancelled:
            cancel_query()

    def streams(self, result: ResultStream) -> None:
        """The first rows are there."""
        self._result = result

    def computes(self, computing: bool) -> None:
        """Whether the next batch is computed. If not, the client is sent one, and may take its time."""
        self._computing = computing

    def cancel(self, reason: QueryError | None = None) -> None:
        """End the query as soon as it can be, also before it has started; any thread."""
        self._cancelled, self._end = True, self._end or reason
        if self._cancel_query is not None:
            self._cancel_query()

    def error(self, error: QueryError) -> QueryError:
        """Why the call ended: `error`, unless it only follows from an end that was ordered here."""
        return self._end if self._end is not None and isinstance(error, QueryCancelled) else error

    def watch(self) -> ResultStream | None:
        """Cancel the query of a client that left; the result to close where the time of the query is over."""
        if self._context.is_cancelled():
            self.cancel()
        result = self._result
        if result is None or self._computing or not (result.timer.expired or self._cancelled):
            return None
        # A query that computes is interrupted. One whose client takes no rows would hold its place, memory and
        # files for as long as the connection is open.
        self._end = self._end or QueryTimeout.after(result.timer.timeout_ms)
        return result

    def close(self) -> None:
        """Release what the call holds. Closing twice is fine."""
        # First: behind the end of the call its context must not be asked.
        self._calls.forget(self)
        if self._result is not None:
            self._result.close()


class OpenCalls:
    """All open calls of a node. Every method may be called from any thread."""

    def __init__(self, calls_max: int = FLIGHT_CALLS_MAX) -> None:
        self._calls_max = calls_max
        self._changed = threading.Condition()
        self._open: set[OpenCall] = set()
        self._stopping: QueryError | None = None
        self._watch = PeriodicTask("flight-watch", WATCH_INTERVAL_S, self.turn)

    def __len__(self) -> int:
        return len(self._open)

    def start(self) -> None:
        """Begin to watch."""
        self._watch.start()

    def open(self, context: CallContext, calls_max: int | None = None) -> OpenCall:
        """A new call, beside less than `calls_max` others; its caller closes it.

        Raises TooManyQueries, and QueryCancelled once the node stops.
        """
        calls_max = self._calls_max if calls_max is None else min(calls_max, self._calls_max)
        with self._changed:
            if self._stopping is not None:
                raise self._stopping
            if len(self._open) >= calls_max:
                raise TooManyQueries.because(f"{calls_max} calls of Arrow Flight are open already")
            made = OpenCall(self, context)
            self._open.add(made)
            return made

    def forget(self, call: OpenCall) -> None:
        """A call has ended."""
        with self._changed:
            self._open.discard(call)
            self._changed.notify_all()

    def turn(self) -> None:
        """Look at every call once."""
        with self._changed:
            late = [result for call in self._open if (result := call.watch()) is not None]
        for result in late:
            result.close()

    def stop(self, grace_s: float, patience_s: float) -> bool:
        """Take no more calls, give those that are open `grace_s`, then end them; whether all have ended.

        Ended ones get up to `patience_s` to send their error.
        """
        stopping = QueryCancelled("this node is stopping", action="retry, or ask another node", retriable=True)
        with self._changed:
            self._stopping = stopping
            self._changed.wait_for(lambda: not self._open, grace_s)
        deadline = Deadline(patience_s)
        with self._changed:
            for call in self._open:
                call.cancel(stopping)
        # The next turn closes the results of clients that take no rows.
        self._watch.wake()
        with self._changed:
            ended = self._changed.wait_for(lambda: not self._open, deadline.left_s())
        self._watch.stop()
        with suppress(Exception):
            self.turn()
        return ended
