"""Flight SQL: statements, prepared ones and their parameters; everything else is refused by its name."""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from headrace.consumers.serve import flight_server
from headrace.consumers.serve.bound_parameters import bound_parameters
from headrace.consumers.serve.flight_sql import TYPE_PREFIX, CommandUnknown, SentQuery, query_of
from headrace.consumers.serve.request_bodies import RequestInvalid
from tests.unit.serve.test_flight import flights, server  # noqa: F401

SQL = "SELECT 'Zürich' AS town, count(*) AS n FROM iot.readings"


def field(number: int, content: bytes) -> bytes:
    """A field of bytes in a protobuf message."""
    size, sizes = len(content), b""
    while size >= 0x80:
        sizes, size = sizes + bytes([size & 0x7F | 0x80]), size >> 7
    return bytes([number << 3 | 2]) + sizes + bytes([size]) + content


def command(name: str, message: bytes) -> bytes:
    """A command as a driver sends it."""
    return field(1, TYPE_PREFIX + name.encode()) + field(2, message)


@pytest.mark.parametrize("sql", [SQL, f"{SQL} -- {'x' * 300}"])
def test_a_statement_is_its_sql(sql: str) -> None:
    """Whatever other fields it has, such as the id of a transaction, and however long it is."""
    for more in (b"", field(2, b"transaction"), b"\x18\x96\x01", b"\x21" + b"8" * 8, b"\x25" + b"4" * 4):
        sent = command("CommandStatementQuery", field(1, sql.encode()) + more)
        assert SentQuery(sql.encode()) == query_of(sent)


def test_sql_itself_is_no_command() -> None:
    """Also if it names one."""
    for sql in (b"SELECT 1", b"", f"SELECT '{TYPE_PREFIX.decode()}'".encode()):
        assert SentQuery(sql) == query_of(sql)


@pytest.mark.parametrize(
    "sent",
    [
        command("CommandGetXdbcTypeInfo", b""),
        field(1, TYPE_PREFIX + b"CommandStatementQuery") + b"\x10\x01",
        command("CommandStatementQuery", b""),
        command("CommandStatementQuery", field(1, SQL.encode()))[:-4],
        command("CommandStatementQuery", b"\x0a\xff"),
        command("CommandStatementQuery", b"\x0b"),
        command("CommandStatementQuery", b"\xff" * 12),
        field(1, TYPE_PREFIX + b"\xff") + field(2, b""),
    ],
)
def test_other_commands_are_refused(sent: bytes) -> None:
    """Other commands, and bytes that are cut or wrong."""
    with pytest.raises(CommandUnknown):
        query_of(sent)


def test_a_driver_gets_the_rows_of_a_statement(flights: flight.FlightClient) -> None:  # noqa: F811
    """Schema and ticket come for the command; the ticket is the SQL, and gives the rows."""
    sent = command("CommandStatementQuery", field(1, SQL.encode()))
    info = flights.get_flight_info(flight.FlightDescriptor.for_command(sent))
    assert ["town", "n"] == info.schema.names
    [endpoint] = info.endpoints
    assert SQL.encode() == endpoint.ticket.ticket
    assert [{"town": "Zürich", "n": 15}] == flights.do_get(endpoint.ticket).read_all().to_pylist()


def prepared(client: flight.FlightClient, sql: str) -> dict[int, bytes]:
    """The answer to a statement that is prepared: handle, and schema of its rows."""
    body = command("ActionCreatePreparedStatementRequest", field(1, sql.encode()))
    [result] = client.do_action(flight.Action("CreatePreparedStatement", body))
    return message(message(result.body.to_pybytes())[2])


def message(content: bytes) -> dict[int, bytes]:
    """The fields of a short message."""
    found: dict[int, bytes] = {}
    while content:
        size, start = content[1], 2
        if size & 0x80:
            size, start = size & 0x7F | content[2] << 7, 3
        found[content[0] >> 3], content = content[start : start + size], content[start + size :]
    return found


def read(client: flight.FlightClient, handle: bytes) -> pa.Table:
    """The rows of a prepared statement."""
    info = client.get_flight_info(for_handle(handle))
    return client.do_get(info.endpoints[0].ticket).read_all()


def for_handle(handle: bytes) -> flight.FlightDescriptor:
    return flight.FlightDescriptor.for_command(command("CommandPreparedStatementQuery", field(1, handle)))


def bound(client: flight.FlightClient, handle: bytes, row: pa.Table) -> bytes:
    """The handle of a prepared statement with the parameters of a row."""
    writer, answers = client.do_put(for_handle(handle), row.schema)
    writer.write_table(row)
    writer.done_writing()
    answer = answers.read()
    writer.close()
    return message(answer.to_pybytes())[1]


def test_a_prepared_statement_gives_its_schema_and_then_its_rows(flights: flight.FlightClient) -> None:  # noqa: F811
    """As often as it is read, until its client closes it. Wrong SQL is refused when it is prepared."""
    made = prepared(flights, SQL)
    assert ["town", "n"] == pa.ipc.read_schema(pa.py_buffer(made[2])).names
    for _ in range(2):
        assert [{"town": "Zürich", "n": 15}] == read(flights, made[1]).to_pylist()
    closing = command("ActionClosePreparedStatementRequest", field(1, made[1]))
    assert [] == list(flights.do_action(flight.Action("ClosePreparedStatement", closing)))
    with pytest.raises(flight.FlightServerError, match="iot.readings"):
        prepared(flights, "SELECT * FROM iot.reading")


def test_a_prepared_statement_gives_the_types_of_its_parameters(flights: flight.FlightClient) -> None:  # noqa: F811
    """The driver for JDBC takes no value without them, and reads only from statements whose rows have columns."""
    made = prepared(
        flights, "SELECT name, velocity FROM iot.readings WHERE velocity > ? AND name <> ? AND time < ? LIMIT ?"
    )
    parameters = pa.ipc.read_schema(pa.py_buffer(made[3]))
    assert [("1", pa.float64()), ("2", pa.string()), ("3", pa.timestamp("ms")), ("4", pa.int64())] == [
        (each.name, each.type) for each in parameters
    ]
    assert ["name", "velocity"] == pa.ipc.read_schema(pa.py_buffer(made[2])).names
    row = pa.table([[-1.0], ["another"], pa.array([1_900_000_000_000], pa.timestamp("ms")), [2]], schema=parameters)
    assert 2 == read(flights, bound(flights, made[1], row)).num_rows
    named = prepared(flights, "SELECT $up AS up FROM iot.readings WHERE name = $host")
    assert {"up", "host"} == set(pa.ipc.read_schema(pa.py_buffer(named[3])).names)
    assert b"" == prepared(flights, "SELECT 1 AS one")[3]
    with pytest.raises(flight.FlightServerError, match="only read"):
        prepared(flights, "DELETE FROM iot.readings WHERE velocity > ?")


def test_parameters_are_bound_by_place_or_by_name(flights: flight.FlightClient) -> None:  # noqa: F811
    """Each `?` by its place, `$name` by the name of a column; a handle may be bound again."""
    handle = prepared(flights, "SELECT ? + 1 AS a, ? AS b")[1]
    assert [{"a": 5, "b": "x"}] == read(flights, bound(flights, handle, pa.table({"0": [4], "1": ["x"]}))).to_pylist()
    handle = bound(flights, handle, pa.table({"0": [5], "1": [None]}))
    assert [{"a": 6, "b": None}] == read(flights, handle).to_pylist()

    named = prepared(flights, "SELECT $when AS moment, $days AS days")[1]
    moment = pa.array([1_767_323_045_000_000_001], pa.timestamp("ns", "Europe/Zurich"))
    row = read(flights, bound(flights, named, pa.table({"when": moment, "days": [[1, None]]})))
    assert 1_767_323_045_000_000_001 == row["moment"].cast(pa.int64())[0].as_py()
    assert [[1, None]] == row["days"].to_pylist()


@pytest.mark.parametrize(
    ("row", "named"),
    [
        (pa.table({"0": [b"x"]}), "'1' is of type binary"),
        (pa.table({"0": [1, 2]}), "more than one row"),
        (pa.table({"0": pa.array([b"\xff"]).view(pa.string())}), "not UTF-8"),
        (pa.table({"0": ["x" * 2_000_000]}), "larger than"),
        (pa.table({"0": ["\n" * 600_000]}), "larger than"),
    ],
    ids=["type", "rows", "text", "size", "escaped"],
)
def test_parameters_that_no_query_has_are_refused(
    flights: flight.FlightClient,  # noqa: F811
    row: pa.Table,
    named: str,
) -> None:
    """With a typed error, when they are bound."""
    handle = prepared(flights, "SELECT ? AS a")[1]
    with pytest.raises(flight.FlightServerError, match=named):
        bound(flights, handle, row)


def test_messages_without_a_row_bind_nothing_and_are_bounded() -> None:
    """A client may send metadata alone, and batches without rows for ever."""
    row, empty = pa.record_batch({"0": [7]}), pa.record_batch({"0": pa.array([], pa.int64())})
    assert b'{"1": 7}' == bound_parameters([None, empty, row, empty])
    assert b"" == bound_parameters([empty, None])
    with pytest.raises(RequestInvalid, match="batches of parameters"):
        bound_parameters(repeat(empty))


def test_those_who_bind_leave_room_for_queries(
    flights: flight.FlightClient,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A client that binds and sends nothing would hold its call for ever."""
    handle = prepared(flights, "SELECT ? AS a")[1]
    monkeypatch.setattr(flight_server, "FLIGHT_BINDINGS_MAX", 0)
    with pytest.raises(flight.FlightUnavailableError, match="0 calls of Arrow Flight are open"):
        bound(flights, handle, pa.table({"0": [1]}))
    assert [{"a": 1}] == read(flights, prepared(flights, "SELECT 1 AS a")[1]).to_pylist()


def test_a_statement_whose_parameters_are_not_bound_is_refused(flights: flight.FlightClient) -> None:  # noqa: F811
    """When it is read: before that the values may still come."""
    for sql in ("SELECT ? AS a", "SELECT $a AS a"):
        with pytest.raises(flight.FlightServerError, match="parameter"):
            read(flights, prepared(flights, sql)[1])


def test_another_command_is_not_implemented(flights: flight.FlightClient) -> None:  # noqa: F811
    """Drivers do without such a command; they show its name."""
    with pytest.raises(pa.ArrowNotImplementedError, match="CommandGetXdbcTypeInfo is not offered"):
        flights.get_flight_info(flight.FlightDescriptor.for_command(command("CommandGetXdbcTypeInfo", b"")))


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (lambda client: list(client.do_action(flight.Action("BeginTransaction", b""))), "BeginTransaction"),
        (lambda client: list(client.list_flights()), "a list of answers"),
        (lambda client: client.do_put(flight.FlightDescriptor.for_path("t"), pa.schema([]))[0].close(), "writing"),
        (lambda client: client.do_exchange(flight.FlightDescriptor.for_path("t"))[1].read_chunk(), "an exchange"),
    ],
    ids=["action", "list", "put", "exchange"],
)
def test_what_a_node_does_not_offer_is_not_implemented(
    flights: flight.FlightClient,  # noqa: F811
    call: Callable[[flight.FlightClient], object],
    named: str,
) -> None:
    """The status is what drivers look at. The message names what was asked for, without a traceback."""
    with pytest.raises(pa.ArrowNotImplementedError) as caught:
        call(flights)
    assert (True, False) == (named in str(caught.value), "Traceback" in str(caught.value))


def test_a_driver_sees_the_actions_that_are_offered(flights: flight.FlightClient) -> None:  # noqa: F811
    """Those of prepared statements. A body without SQL is refused."""
    assert ["CreatePreparedStatement", "ClosePreparedStatement"] == [each.type for each in flights.list_actions()]
    with pytest.raises(flight.FlightServerError, match="no SQL"):
        list(flights.do_action(flight.Action("CreatePreparedStatement", b"\xff")))
