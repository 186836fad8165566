"""Commands of Flight SQL: a statement is its SQL, and everything else is refused by its name."""

from __future__ import annotations

import json
from collections.abc import Callable

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from headrace.consumers.serve.flight_sql import TYPE_PREFIX, CommandUnknown, statement_of
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
        assert sql.encode() == statement_of(command("CommandStatementQuery", field(1, sql.encode()) + more))


def test_sql_itself_is_no_command() -> None:
    """Also if it names one."""
    for sql in (b"SELECT 1", b"", f"SELECT '{TYPE_PREFIX.decode()}'".encode()):
        assert sql == statement_of(sql)


@pytest.mark.parametrize(
    "sent",
    [
        command("CommandGetTables", b""),
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
        statement_of(sent)


def test_a_driver_gets_the_rows_of_a_statement(flights: flight.FlightClient) -> None:  # noqa: F811
    """Schema and ticket come for the command; the ticket is the SQL, and gives the rows."""
    sent = command("CommandStatementQuery", field(1, SQL.encode()))
    info = flights.get_flight_info(flight.FlightDescriptor.for_command(sent))
    assert ["town", "n"] == info.schema.names
    [endpoint] = info.endpoints
    assert SQL.encode() == endpoint.ticket.ticket
    assert [{"town": "Zürich", "n": 15}] == flights.do_get(endpoint.ticket).read_all().to_pylist()


def test_another_command_is_a_typed_error(flights: flight.FlightClient) -> None:  # noqa: F811
    """It names the command, and drivers show it."""
    with pytest.raises(flight.FlightError) as caught:
        flights.get_flight_info(flight.FlightDescriptor.for_command(command("CommandGetTables", b"")))
    found = json.loads(caught.value.extra_info)
    assert "RequestInvalid" == found["type"]
    assert "CommandGetTables" in found["message"]


@pytest.mark.parametrize(
    ("call", "named"),
    [
        (
            lambda client: list(client.do_action(flight.Action("CreatePreparedStatement", b""))),
            "CreatePreparedStatement",
        ),
        (lambda client: list(client.list_flights()), "a list of answers"),
        (lambda client: client.do_put(flight.FlightDescriptor.for_path("t"), pa.schema([]))[0].close(), "writing"),
        (lambda client: client.do_exchange(flight.FlightDescriptor.for_path("t"))[1].read_chunk(), "an exchange"),
    ],
    ids=["action", "list", "put", "exchange"],
)
def test_what_flight_has_beside_queries_is_a_typed_error(
    flights: flight.FlightClient,  # noqa: F811
    call: Callable[[flight.FlightClient], object],
    named: str,
) -> None:
    """It names what was asked for, without a traceback; of actions there are none."""
    with pytest.raises(flight.FlightError) as caught:
        call(flights)
    found = json.loads(caught.value.extra_info)
    assert ("RequestInvalid", True, False) == (
        found["type"],
        named in found["message"],
        "Traceback" in str(caught.value),
    )
    assert [] == list(flights.list_actions())
