"""Arrow Flight: tickets, schemas, headers, errors, limits, clients that leave or stop reading, and the stop."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from headrace.connectors.clock import Moment, SystemClock
from headrace.consumers.query.query_errors import QueryCancelled, QueryTimeout, TooManyQueries
from headrace.consumers.serve.flight_calls import OpenCalls
from headrace.consumers.serve.flight_server import AS_OF_KEY, MESSAGE_BYTES_MAX, QUERY_ID_KEY, FlightServer
from headrace.consumers.serve.server import AddressInUse, reserve_address
from tests.unit.serve.conftest import FakeNode
from tests.waiting import eventually

ENDLESS_ROWS = "SELECT * FROM range(100000000000)"
ENDLESS_COUNT = "SELECT count(*) FROM range(100000000000000)"
WAIT_S = 20.0


@pytest.fixture
def server(node: FakeNode) -> Iterator[FlightServer]:
    """The Flight surface of the fake node."""
    server = FlightServer(node.engine, "127.0.0.1", reserve_address("127.0.0.1", 0))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def flights(server: FlightServer) -> Iterator[flight.FlightClient]:
    """A client of it."""
    with flight.connect(server.location) as client:
        yield client


def get(client: flight.FlightClient, sql: str | bytes, **headers: str) -> pa.Table:
    """The rows of a ticket."""
    return client.do_get(flight.Ticket(sql), options(**headers)).read_all()


def options(**headers: str) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(headers=[(name.encode(), text.encode()) for name, text in headers.items()])


def refusal(client: flight.FlightClient, sql: str | bytes, **headers: str) -> tuple[type, dict[str, Any]]:
    """The class of the error of a ticket, and the error in it."""
    with pytest.raises(flight.FlightError) as caught:
        get(client, sql, **headers)
    return type(caught.value), json.loads(caught.value.extra_info)


def test_a_ticket_is_sql_and_the_answer_its_rows(flights: flight.FlightClient) -> None:
    """Rows of sealed and of live tables come as typed columns; text beyond ASCII is UTF-8."""
    rows = get(flights, "SELECT 'Zürich' AS town, count(*) AS n FROM iot.readings")

    assert [{"town": "Zürich", "n": 15}] == rows.to_pylist()
    assert pa.int64() == rows.schema.field("n").type


def test_a_header_that_is_given_twice_is_refused(flights: flight.FlightClient) -> None:
    """As over HTTP, whatever the two are. Headers of others may be there more than once."""
    twice = flight.FlightCallOptions(headers=[(b"limit", b"3"), (b"limit", b"5")])
    with pytest.raises(flight.FlightServerError, match="'limit' is given twice"):
        flights.do_get(flight.Ticket("SELECT 1"), twice).read_all()
    others = flight.FlightCallOptions(headers=[(b"x-forwarded-for", b"a"), (b"x-forwarded-for", b"b")])
    assert 1 == flights.do_get(flight.Ticket("SELECT 1"), others).read_all().num_rows


def test_headers_are_the_parameters_of_a_query(flights: flight.FlightClient) -> None:
    """`limit`, `parameters`, `after` and `timeout_ms` mean what they mean over HTTP."""
    assert 3 == get(flights, "SELECT * FROM iot.readings", limit="3").num_rows
    assert [{"y": 5}] == get(flights, "SELECT $x + 1 AS y", parameters='{"x": 4}').to_pylist()
    assert (flight.FlightTimedOutError, "QueryTimeout") == kind(refusal(flights, ENDLESS_COUNT, timeout_ms="50"))
    assert "RequestInvalid" == refusal(flights, "SELECT 1", after="{")[1]["type"]
    assert "RequestInvalid" == refusal(flights, "SELECT 1", timeout_ms="-1")[1]["type"]


def kind(error: tuple[type, dict[str, Any]]) -> tuple[type, str]:
    return error[0], error[1]["type"]


@pytest.mark.parametrize(
    ("ticket", "expected"),
    [
        ("DROP TABLE iot.readings", "NotReadOnly"),
        ("SELECT 1; SELECT 2", "NotReadOnly"),
        ("SELECT * FROM read_parquet('/etc/passwd')", "FunctionRefused"),
        ("SELECT * FROM iot.nothing", "UnknownTable"),
        ("SELECT nothing FROM iot.readings", "QueryInvalid"),
        (" ", "RequestInvalid"),
        (b"\xff\xfe", "RequestInvalid"),
    ],
)
def test_a_ticket_that_is_no_query_is_refused_with_the_typed_error(
    flights: flight.FlightClient, node: FakeNode, ticket: str | bytes, expected: str
) -> None:
    """The error has type, message, action and whether to retry, as on the other surfaces; nothing is left running."""
    status, error = refusal(flights, ticket)

    assert (flight.FlightServerError, expected, False) == (status, error["type"], error["retriable"])
    assert {"type", "message", "action", "retriable"} == error.keys()
    assert error["message"]
    assert 0 == node.engine.statistics.running


def test_a_ticket_of_a_client_of_influxdb_3_is_named(flights: flight.FlightClient) -> None:
    """It is JSON around SQL. The error names what a ticket is, for a descriptor as well."""
    sent = json.dumps({"database": "iot", "sql_query": "SELECT 1", "query_type": "sql"})
    status, error = refusal(flights, sent)
    assert (flight.FlightServerError, "RequestInvalid") == (status, error["type"])
    assert ("JSON" in error["message"], "a ticket is SQL" in error["action"]) == (True, True)
    with pytest.raises(flight.FlightServerError, match="a ticket is SQL"):
        flights.get_flight_info(flight.FlightDescriptor.for_command(sent))


def test_a_node_that_does_not_serve_is_unavailable(flights: flight.FlightClient, node: FakeNode) -> None:
    """NotReady is an error that clients retry elsewhere."""
    node.reasons = ["group n1: behind its log"]

    status, error = refusal(flights, "SELECT count(*) FROM iot.readings")

    assert (flight.FlightUnavailableError, "NotReady", True) == (status, error["type"], error["retriable"])


def test_a_page_of_a_browser_may_not_ask(flights: flight.FlightClient) -> None:
    """A gateway that translates for browsers passes their Origin, which the node refuses."""
    assert "RequestInvalid" == refusal(flights, "SELECT 1", origin="http://elsewhere")[1]["type"]


def test_a_descriptor_gives_schema_and_ticket_and_reads_nothing(flights: flight.FlightClient, node: FakeNode) -> None:
    """Also of SQL that would take minutes; its ticket is the same SQL at the same address."""
    sql = "SELECT name, velocity, rank() OVER (ORDER BY hash(range)) AS r FROM iot.readings, range(100000000000)"
    descriptor = flight.FlightDescriptor.for_command(sql)

    info = flights.get_flight_info(descriptor)

    assert {"name": pa.string(), "velocity": pa.float64(), "r": pa.int64()} == dict(
        zip(info.schema.names, info.schema.types, strict=True)
    )
    assert info.schema == flights.get_schema(descriptor).schema
    (endpoint,) = info.endpoints
    assert (sql.encode(), []) == (endpoint.ticket.ticket, endpoint.locations)
    assert (0, 0) == (node.engine.statistics.files_scanned, node.engine.statistics.live_rows_scanned)
    with pytest.raises(flight.FlightServerError) as caught:
        flights.get_flight_info(flight.FlightDescriptor.for_path("iot", "readings"))
    assert "RequestInvalid" == json.loads(caught.value.extra_info)["type"]


@pytest.mark.parametrize("sql", ["SHOW TABLES", "DESCRIBE iot.readings", "EXPLAIN SELECT 1", "SELECT 1 AS a;"])
def test_the_schema_of_a_descriptor_is_that_of_its_answer(flights: flight.FlightClient, sql: str) -> None:
    """For every kind of statement that reads."""
    info = flights.get_flight_info(flight.FlightDescriptor.for_command(sql))

    assert get(flights, info.endpoints[0].ticket.ticket).schema == info.schema


def test_texts_that_are_encoded_arrive(flights: flight.FlightClient) -> None:
    """Enumerations come as dictionaries, also inside of lists, batch after batch."""
    sql = "SELECT ['low', 'high'][1 + range % 2]::ENUM('low', 'high') AS state, [state] AS states FROM range(100000)"

    rows = get(flights, sql)

    assert {"low": 50_000, "high": 50_000} == {
        each["values"]: each["counts"] for each in rows.column("state").combine_chunks().value_counts().to_pylist()
    }
    assert [["low"], ["high"]] == rows.column("states").slice(99_998).to_pylist()


def test_batches_are_small_enough_for_every_client(flights: flight.FlightClient) -> None:
    """gRPC clients take 4 MiB a message by default, whatever the width of the rows."""
    reader = flights.do_get(flight.Ticket("SELECT repeat('x', 10000) AS wide FROM range(2000)"))
    sizes, rows = [], 0
    for chunk in reader:
        sizes.append(chunk.data.get_total_buffer_size())
        rows += chunk.data.num_rows

    assert 2_000 == rows
    assert max(sizes) <= 2 * MESSAGE_BYTES_MAX


def test_an_older_answer_names_its_moment(flights: flight.FlightClient, node: FakeNode) -> None:
    """The metadata of the schema has what the header of the HTTP answer has."""
    node.reasons, node.source.as_of = ["no Kafka"], Moment(SystemClock().boot_ns())

    schema = get(flights, "SELECT count(*) AS n FROM iot.readings", stale="3600").schema

    assert node.source.as_of.iso().encode() == schema.metadata[AS_OF_KEY]


def test_an_answer_carries_the_id_of_its_query(flights: flight.FlightClient, node: FakeNode) -> None:
    """In the metadata of its schema. The query is listed under it, and ends by it with an error."""
    reader = flights.do_get(flight.Ticket("SELECT i FROM range(100000000) t(i)"))
    query_id = reader.schema.metadata[QUERY_ID_KEY].decode()

    assert [query_id] == [report.id for report in node.engine.reports()]
    node.engine.kill(query_id)

    with pytest.raises(flight.FlightError, match="was killed"):
        reader.read_all()
    eventually(lambda: not node.engine.reports(), "no query runs")


def test_a_client_that_leaves_cancels_its_query(
    flights: flight.FlightClient, server: FlightServer, node: FakeNode
) -> None:
    """While rows are sent, and also while none are there yet."""
    streamed = flights.do_get(flight.Ticket(ENDLESS_ROWS))
    assert streamed.read_chunk().data.num_rows > 0
    assert 1 == node.engine.statistics.running
    streamed.cancel()
    eventually(lambda: node.engine.statistics.running == 0, "the query of a reader that left runs on")

    with pytest.raises(flight.FlightTimedOutError):
        flights.do_get(flight.Ticket(ENDLESS_COUNT), flight.FlightCallOptions(timeout=0.3))

    eventually(lambda: node.engine.statistics.running == 0, "the query of a client that left runs on")
    eventually(lambda: len(server.calls) == 0, "the call of a client that left is open")


def test_a_client_that_stops_reading_holds_nothing_behind_the_time_of_its_query(
    flights: flight.FlightClient, node: FakeNode
) -> None:
    """Permit, memory and files are released; the rows that it has not read yet end with the error."""
    stalled = flights.do_get(flight.Ticket(ENDLESS_ROWS), options(timeout_ms="500"))
    assert stalled.read_chunk().data.num_rows > 0

    eventually(lambda: node.engine.statistics.running == 0, "a client that does not read holds its query")

    with pytest.raises(flight.FlightTimedOutError) as caught:
        stalled.read_all()
    assert "QueryTimeout" == json.loads(caught.value.extra_info)["type"]


def test_a_slow_client_does_not_hold_up_others(flights: flight.FlightClient, server: FlightServer) -> None:
    """One that reads nothing waits alone: another one gets answers beside it."""
    slow = flights.do_get(flight.Ticket(ENDLESS_ROWS))
    slow.read_chunk()
    with flight.connect(server.location) as other:
        for number in range(20):
            assert [{"n": number}] == get(other, f"SELECT {number} AS n").to_pylist()
    assert 1 == len(server.calls)
    slow.cancel()


def test_queries_beyond_the_limit_are_refused_at_once(flights: flight.FlightClient, server: FlightServer) -> None:
    """The limit of queries is that of the node, whichever surface they come by."""
    readers = [flights.do_get(flight.Ticket(ENDLESS_ROWS)) for _ in range(2)]

    status, error = refusal(flights, "SELECT 1")

    assert (flight.FlightUnavailableError, "TooManyQueries") == (status, error["type"])
    for reader in readers:
        reader.cancel()
    eventually(lambda: len(server.calls) == 0, "calls stay open")


def test_stopping_ends_running_calls_with_a_retriable_error(server: FlightServer, node: FakeNode) -> None:
    """A call that computes gets the error of a node that stops; threads and the port are given back."""
    port, failures = server.port, []
    client = flight.connect(server.location)

    def ask() -> None:
        failures.append(refusal(client, ENDLESS_COUNT))

    asking = threading.Thread(target=ask)
    asking.start()
    eventually(lambda: node.engine.statistics.running == 1, "the query does not begin")

    server.stop()

    asking.join(WAIT_S)
    ((status, error),) = failures
    assert (flight.FlightUnavailableError, "QueryCancelled", True) == (status, error["type"], error["retriable"])
    assert (0, 0) == (node.engine.statistics.running, len(server.calls))
    assert not [each.name for each in threading.enumerate() if each.name.startswith("flight")]
    with reserve_address("127.0.0.1", port) as again:
        again.listen()
    client.close()


def test_a_client_that_neither_reads_nor_leaves_does_not_keep_the_node_from_stopping(
    server: FlightServer, node: FakeNode
) -> None:
    """Its connection is cut; gRPC alone would wait for it for ever."""
    client = flight.connect(server.location)
    stalled = client.do_get(flight.Ticket(ENDLESS_ROWS))
    stalled.read_chunk()

    server.stop()

    assert not [each.name for each in threading.enumerate() if each.name.startswith("flight")]
    assert (0, 0) == (node.engine.statistics.running, len(server.calls))
    with pytest.raises(flight.FlightError):
        stalled.read_all()
    client.close()


def test_an_address_in_use_is_an_error_that_names_it(node: FakeNode) -> None:
    """gRPC would take the port of another node silently, or say no more than that it did not start."""
    with reserve_address("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        reserved = reserve_address("127.0.0.1", port)
        taken.listen()

        with pytest.raises(AddressInUse, match=f"127.0.0.1:{port}"):
            FlightServer(node.engine, "127.0.0.1", reserved).start()


class Context:
    """The context of a call that a test ends."""

    def __init__(self) -> None:
        self.left = False

    def is_cancelled(self) -> bool:
        return self.left


def test_open_calls_are_bounded() -> None:
    """A call too many is refused, and one that ends makes room."""
    calls = OpenCalls(calls_max=1)
    first = calls.open(Context())

    with pytest.raises(TooManyQueries):
        calls.open(Context())

    first.close()
    assert 1 == len({calls.open(Context())})


def test_a_client_that_leaves_before_its_query_starts_cancels_it() -> None:
    """The cancellation waits for the query, and reaches it when it starts."""
    calls, context, cancelled = OpenCalls(), Context(), []
    call = calls.open(context)
    context.left = True

    calls.turn()
    call.started(lambda: cancelled.append(True))

    assert [True] == cancelled


def test_the_cause_of_an_end_replaces_what_follows_from_it() -> None:
    """A query that ran into its time keeps that error; one that was cancelled names who ordered it."""
    calls = OpenCalls()
    call = calls.open(Context())
    cause = QueryTimeout.after(5)
    call.cancel(cause)

    assert cause is call.error(QueryCancelled("closed"))
    own = TooManyQueries.because("x")
    assert own is call.error(own)


def test_nothing_is_open_behind_a_stop() -> None:
    """Calls that come while the node stops are refused with an error to retry."""
    calls = OpenCalls()
    calls.start()

    assert calls.stop(0.0, 0.0)

    with pytest.raises(QueryCancelled) as caught:
        calls.open(Context())
    assert caught.value.retriable
