"""The Arrow Flight surface of a node: a ticket is SQL as UTF-8, and the answer a stream of record batches.

Statements of Flight SQL are taken too (`flight_sql.py`): the ticket of their answer is their SQL. That of a prepared
statement with parameters, or of a list (`flight_catalog.py`), is the command itself.

Call headers are the parameters of HTTP queries under the same names, such as `after` and `timeout_ms`.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NoReturn

import pyarrow as pa
import pyarrow.flight as flight
import structlog

from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.query_errors import QueryError, QueryInvalid, is_of_change
from headrace.consumers.query.result_stream import ResultStream
from headrace.consumers.serve.bound_parameters import bound_parameters
from headrace.consumers.serve.connection_cut import cut_connections
from headrace.consumers.serve.flight_calls import FLIGHT_BINDINGS_MAX, OpenCall, OpenCalls
from headrace.consumers.serve.flight_catalog import LIST_COMMANDS, listed
from headrace.consumers.serve.flight_errors import NotOffered, flight_error, flight_errors
from headrace.consumers.serve.flight_sql import (
    CLOSE_PREPARED,
    CREATE_PREPARED,
    CommandUnknown,
    SentQuery,
    created_statement,
    handle_message,
    is_prepared,
    list_of,
    query_of,
    sql_to_prepare,
)
from headrace.consumers.serve.query_service import (
    QUERY_PARAMETERS,
    QueryRequest,
    request_of_texts,
    start_query,
)
from headrace.consumers.serve.request_bodies import RequestInvalid
from headrace.consumers.serve.server import AddressInUse

AS_OF_KEY = b"headrace.as_of"
"""Key in the metadata of a schema: the moment up to which an answer of a node that does not serve has everything."""
QUERY_ID_KEY = b"headrace.query_id"
"""Key in the metadata of a schema: the id by which the query can be listed and killed, as the header of HTTP has it."""
MESSAGE_BYTES_MAX = 2 * 1024 * 1024
"""gRPC clients that are not Arrow's own take messages of 4 MiB by default."""
GRACE_S = 1.0
PATIENCE_S = 1.0
STOP_S = 5.0
_HEADERS = "headers"
_log = structlog.get_logger(__name__)


class FlightServer:
    """The address of a node's Flight surface and what serves on it. It starts once; stopping it twice is fine."""

    def __init__(self, engine: QueryEngine, host: str, reserved: socket.socket) -> None:
        """`reserved` is the socket that `reserve_address` returned for this host and a port."""
        self.calls = OpenCalls()
        self.port: int = reserved.getsockname()[1]
        self.location = f"grpc://{f'[{host}]' if ':' in host else host}:{self.port}"
        self._engine = engine
        self._reserved = reserved
        self._surface: _Surface | None = None

    def start(self) -> None:
        """Listen and serve. Raises AddressInUse."""
        try:
            self._surface = _Surface(self._engine, self.calls, self.location)
        except (pa.ArrowException, OSError) as error:
            raise AddressInUse(
                f"cannot listen on {self.location} for Arrow Flight",
                action="give another address; port 0 takes a free one",
            ) from error
        finally:
            # gRPC binds by itself. Until here the address was kept from others.
            self._reserved.close()
        self.calls.start()

    def stop(self) -> None:
        """Refuse new calls, let open ones finish for a second, end the others with an error, and stop listening."""
        surface, self._surface = self._surface, None
        if surface is None:
            self._reserved.close()
            return
        ended = self.calls.stop(GRACE_S, PATIENCE_S)
        ending = threading.Thread(target=surface.shutdown, name="flight-stop", daemon=True)
        ending.start()
        ending.join(PATIENCE_S if ended else 0)
        # gRPC waits for every call. A client that neither reads nor leaves must not keep the node from stopping.
        if ending.is_alive():
            cut_connections(self.port)
            ending.join(STOP_S)


class _Headers(flight.ServerMiddleware):  # type: ignore[misc]
    """The headers of one call."""

    def __init__(self, texts: Mapping[str, str]) -> None:
        self.texts = texts


class _HeadersFactory(flight.ServerMiddlewareFactory):  # type: ignore[misc]
    """Keeps those headers of a call that are parameters of queries."""

    def start_call(self, info: Any, headers: Mapping[str, list[str | bytes]]) -> _Headers:
        """See pyarrow.flight.ServerMiddlewareFactory."""
        del info
        if "origin" in headers:
            # Browsers send no gRPC, but gateways translate for them. Pages of other sites are refused.
            refusal = RequestInvalid("a page of a browser may not send requests here", action="use the HTTP surface")
            raise flight_error(refusal)
        # As over HTTP: of a limit that is given twice the last would win.
        if twice := sorted(name for name in QUERY_PARAMETERS if len(headers.get(name, ())) > 1):
            raise flight_error(RequestInvalid(f"the header {twice[0]!r} is given twice", action="give it once"))
        known = {name: values[0] for name, values in headers.items() if name in QUERY_PARAMETERS}
        return _Headers({name: text for name, text in known.items() if isinstance(text, str)})


class _Surface(flight.FlightServerBase):  # type: ignore[misc]
    """Answers calls, each on a thread of gRPC."""

    def __init__(self, engine: QueryEngine, calls: OpenCalls, location: str) -> None:
        self._engine = engine
        self._calls = calls
        super().__init__(location, middleware={_HEADERS: _HeadersFactory()})

    def do_get(self, context: flight.ServerCallContext, ticket: flight.Ticket) -> flight.FlightDataStream:
        """The rows of a ticket."""
        with flight_errors():
            if (found := self._list(context, ticket.ticket)) is not None:
                return flight.RecordBatchStream(found)
            request = _request(context, _query(ticket.ticket))
            call = self._calls.open(context)
            try:
                result = start_query(self._engine, request, call.started)
                call.streams(result)
                batches = _Batches(call, result)
                return flight.GeneratorStream(batches.schema, batches)
            except QueryError as error:
                call.close()
                raise call.error(error) from error
            except BaseException:
                call.close()
                raise

    def get_flight_info(
        self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor
    ) -> flight.FlightInfo:
        """Schema and ticket of a descriptor whose command is SQL."""
        with flight_errors():
            if (found := self._list(context, descriptor.command)) is not None:
                return _info(found.schema, descriptor, descriptor.command)
            query = _query(descriptor.command)
            ticket = descriptor.command if query.parameters else query.sql
            return _info(self._schema(context, query), descriptor, ticket)

    def get_schema(self, context: flight.ServerCallContext, descriptor: flight.FlightDescriptor) -> flight.SchemaResult:
        """The schema of a descriptor whose command is SQL."""
        with flight_errors():
            found = self._list(context, descriptor.command)
            return flight.SchemaResult(
                self._schema(context, _query(descriptor.command)) if found is None else found.schema
            )

    # Without these gRPC shows the traceback of its own refusal.

    def do_action(self, context: flight.ServerCallContext, action: flight.Action) -> Sequence[bytes]:
        """Prepare a statement, or forget one, of which a node keeps nothing."""
        if action.type == CLOSE_PREPARED:
            return ()
        if action.type != CREATE_PREPARED:
            raise NotOffered(f"the action {action.type!r}")
        with flight_errors():
            try:
                sql = sql_to_prepare(action.body.to_pybytes())
            except CommandUnknown as error:
                raise RequestInvalid(f"there is no SQL in {error}", action="send a SELECT") from error
            parameters = self._parameters(context, sql)
            rows = self._known_schema(context, sql, parameters)
            return (created_statement(sql, rows, bytes(parameters.serialize()) if parameters.names else b""),)

    def list_actions(self, _context: flight.ServerCallContext) -> Sequence[flight.ActionType]:
        """Those of prepared statements."""
        return (
            flight.ActionType(CREATE_PREPARED, "prepare a statement of Flight SQL"),
            flight.ActionType(CLOSE_PREPARED, "forget a prepared statement"),
        )

    def list_flights(self, _context: flight.ServerCallContext, _criteria: bytes) -> NoReturn:
        """Answers are made when they are asked for."""
        raise NotOffered("a list of answers")

    def do_put(
        self,
        context: flight.ServerCallContext,
        descriptor: flight.FlightDescriptor,
        reader: flight.MetadataRecordBatchReader,
        writer: flight.FlightMetadataWriter,
    ) -> None:
        """Bind parameters to a prepared statement. Rows are written over HTTP or Kafka."""
        if not is_prepared(descriptor.command or b""):
            raise NotOffered("writing")
        with flight_errors():
            call = self._calls.open(context, FLIGHT_BINDINGS_MAX)
            try:
                parameters = bound_parameters(chunk.data for chunk in reader)
                handle = handle_message(SentQuery(_query(descriptor.command).sql, parameters))
                # The client may have left.
                with suppress(OSError, pa.ArrowException):
                    writer.write(handle)
            finally:
                call.close()

    def do_exchange(self, *_of: object) -> NoReturn:
        """See `do_put`."""
        raise NotOffered("an exchange")

    def _list(self, context: flight.ServerCallContext, command: bytes | None) -> pa.Table | None:
        """The list that a command asks for, None for any other command. Raises RequestInvalid, NotOffered."""
        try:
            asked = list_of(command or b"", LIST_COMMANDS)
            if asked is None:
                return None
            call = self._calls.open(context)
            try:
                return listed(asked, self._engine.tables())
            finally:
                call.close()
        except CommandUnknown as error:
            raise NotOffered(str(error)) from error

    def _parameters(self, context: flight.ServerCallContext, sql: bytes) -> pa.Schema:
        """The parameters of a statement, and the types that it most likely wants."""
        if b"?" not in sql and b"$" not in sql:
            return pa.schema([])
        request = _request(context, SentQuery(sql))
        call = self._calls.open(context)
        try:
            return self._engine.parameters(request.sql, timeout_ms=request.timeout_ms, on_start=call.started)
        except QueryError as error:
            raise call.error(error) from error
        finally:
            call.close()

    def _known_schema(self, context: flight.ServerCallContext, sql: bytes, parameters: pa.Schema) -> bytes:
        """The schema of the rows of a statement as an IPC message; nothing where values of parameters decide it."""
        nothing = json.dumps(dict.fromkeys(parameters.names)).encode() if parameters.names else b""
        try:
            return bytes(self._schema(context, SentQuery(sql, nothing)).serialize())
        except QueryInvalid:
            if nothing:
                return b""
            raise

    def _schema(self, context: flight.ServerCallContext, query: SentQuery) -> pa.Schema:
        # A limit of 0 is that of queries for their schema, which read nothing.
        request = replace(_request(context, query), limit=0)
        call = self._calls.open(context)
        try:
            with start_query(self._engine, request, call.started) as result:
                return result.schema
        except QueryError as error:
            raise call.error(error) from error
        finally:
            call.close()


class _Batches(Iterator[object]):
    """The batches of one answer as Flight takes them: one when the client has room for it."""

    # A class and no generator: gRPC may let go of it before the first batch, and the code of a generator that has
    # not begun never runs, so nothing would be released.

    def __init__(self, call: OpenCall, result: ResultStream) -> None:
        self.schema = _sent_schema(result)
        self._call = call
        self._result = result
        self._batches = _sized(result.batches())
        self._encoded = any(map(_has_dictionary, self.schema.types))
        call.computes(False)

    def __next__(self) -> object:
        self._call.computes(True)
        try:
            with flight_errors():
                batch = self._next()
            if batch is None:
                raise StopIteration
        except BaseException:
            self._call.close()
            raise
        self._call.computes(False)
        return batch

    def _next(self) -> object:
        """The next batch, None behind the last."""
        try:
            batch = next(self._batches, None)
        except QueryError as error:
            cause = self._call.error(error)
            log = _log.info if is_of_change(cause) else _log.warning
            log("answer cut short", kind=cause.kind, message=cause.message, rows=self._result.rows)
            raise cause from error
        if batch is None:
            return None
        batch = pa.RecordBatch.from_arrays(batch.columns, schema=self.schema)
        # Flight sends the dictionaries of a nested stream only.
        return flight.RecordBatchStream(pa.Table.from_batches([batch])) if self._encoded else batch

    def __del__(self) -> None:
        self._call.close()


def _info(schema: pa.Schema, descriptor: flight.FlightDescriptor, ticket: bytes) -> flight.FlightInfo:
    # No location: the ticket is for the node that was asked, under the address by which it was reached.
    return flight.FlightInfo(schema, descriptor, [flight.FlightEndpoint(ticket, [])], -1, -1)


def _query(command: bytes | None) -> SentQuery:
    """The query of a ticket or a command, also of a statement of Flight SQL. Raises NotOffered."""
    try:
        return query_of(command or b"")
    except CommandUnknown as error:
        raise NotOffered(str(error)) from error


def _request(context: flight.ServerCallContext, query: SentQuery) -> QueryRequest:
    """The query of a call. Raises RequestInvalid."""
    try:
        texts = {**context.get_middleware(_HEADERS).texts, "sql": query.sql.decode()}
        if query.parameters:
            texts["parameters"] = query.parameters.decode()
    except UnicodeDecodeError as error:
        raise RequestInvalid("the ticket is not UTF-8", action="a ticket is SQL as UTF-8") from error
    if not texts["sql"].strip():
        raise RequestInvalid("the ticket has no SQL", action="a ticket, or the command of a descriptor, is SQL")
    # No SQL begins so.
    if texts["sql"].lstrip().startswith("{"):
        raise RequestInvalid(
            "the ticket is a JSON object, as clients of InfluxDB 3 send it",
            action="a ticket is SQL as UTF-8: use a client of Arrow Flight, or a driver of Flight SQL",
        )
    return request_of_texts(texts)


def _sent_schema(result: ResultStream) -> pa.Schema:
    beside = {QUERY_ID_KEY: result.query_id}
    return result.schema.with_metadata(beside if result.as_of is None else beside | {AS_OF_KEY: result.as_of.iso()})


def _sized(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The same rows in batches of at most about MESSAGE_BYTES_MAX."""
    for batch in batches:
        rows = max(1, batch.num_rows * MESSAGE_BYTES_MAX // max(1, batch.nbytes))
        for start in range(0, batch.num_rows, rows):
            yield batch.slice(start, rows)


def _has_dictionary(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        return True
    return any(_has_dictionary(kind.field(number).type) for number in range(kind.num_fields))
