"""The lists of Flight SQL: what tools show as a tree of databases, tables and columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from headrace.consumers.serve.flight_catalog import LIST_COMMANDS, PATTERN_CHARACTERS_MAX, listed
from headrace.consumers.serve.flight_sql import LIST_BYTES_MAX, CommandUnknown, SentList, list_of
from headrace.consumers.serve.request_bodies import RequestInvalid
from headrace.schemas.tables import FieldType, TableSchema
from tests.unit.serve.test_flight import flights, server  # noqa: F401
from tests.unit.serve.test_flight_sql import command, field

TABLES = (
    TableSchema("iot", "readings", 1, ("host",), (("load", FieldType.FLOAT64), ("up", FieldType.BOOL))),
    TableSchema("iot", "trucks_a", 1, (), (("note", FieldType.STRING),)),
    TableSchema("plant", "readings", 1, ("line", "pump"), (("n", FieldType.INT64),)),
)
NULL_ORDERING, SERVER_NAME, READ_ONLY, KEYWORDS, COLUMN_NAME_LENGTH = 507, 0, 3, 508, 543


def asked(name: str, message: bytes = b"") -> pa.Table:
    """The list that a command gives over TABLES."""
    sent = list_of(command(name, message), LIST_COMMANDS)
    assert sent is not None
    return listed(sent, TABLES)


def names(message: bytes) -> list[tuple[str, str]]:
    """The tables that CommandGetTables finds."""
    rows = asked("CommandGetTables", message).to_pylist()
    assert all((None, "TABLE") == (row["catalog_name"], row["table_type"]) for row in rows)
    return [(row["db_schema_name"], row["table_name"]) for row in rows]


@pytest.mark.parametrize(
    ("message", "found"),
    [
        (b"", ["iot.readings", "iot.trucks_a", "plant.readings"]),
        (field(1, b""), ["iot.readings", "iot.trucks_a", "plant.readings"]),
        (field(1, b"another"), []),
        (field(2, b"iot"), ["iot.readings", "iot.trucks_a"]),
        (field(2, b"_ot") + field(3, b"%ad%"), ["iot.readings"]),
        (field(3, b"trucks\\_a"), ["iot.trucks_a"]),
        (field(3, b"trucks\\__"), ["iot.trucks_a"]),
        (field(3, b"truck\\_a"), []),
        (field(3, b"[r]eadings"), []),
        (field(3, b"*"), []),
        (field(3, b"reading"), []),
        (field(3, b"\xff"), []),
        (field(4, b"VIEW"), []),
        (field(4, b"VIEW") + field(4, b"TABLE") + field(3, b"t%"), ["iot.trucks_a"]),
    ],
)
def test_tables_are_found_by_patterns_of_like(message: bytes, found: list[str]) -> None:
    """Of no catalog, of any database and table that fit, where a backslash makes a sign mean itself."""
    assert found == [f"{database}.{table}" for database, table in names(message)]


def test_a_list_of_tables_has_their_columns_when_asked_for() -> None:
    """As `SELECT *` gives them: tags, time, fields; only the time is in every row."""
    plain = asked("CommandGetTables", field(2, b"plant") + b"\x28\x00")
    assert ["catalog_name", "db_schema_name", "table_name", "table_type"] == plain.column_names
    [row] = asked("CommandGetTables", field(2, b"plant") + b"\x28\x01").to_pylist()
    columns = pa.ipc.read_schema(pa.py_buffer(row["table_schema"]))
    time = pa.field("time", pa.timestamp("ns"), nullable=False)
    wanted = [pa.field("line", pa.string()), pa.field("pump", pa.string()), time, pa.field("n", pa.int64())]
    assert wanted == list(columns)


def test_databases_are_the_schemas_of_drivers() -> None:
    """There are no catalogs, and one type of table."""
    assert 0 == asked("CommandGetCatalogs").num_rows
    assert ["iot", "plant"] == asked("CommandGetDbSchemas").column("db_schema_name").to_pylist()
    assert ["plant"] == asked("CommandGetDbSchemas", field(2, b"pl%")).column("db_schema_name").to_pylist()
    assert [] == asked("CommandGetDbSchemas", field(1, b"another")).column("db_schema_name").to_pylist()
    assert ["TABLE"] == asked("CommandGetTableTypes").column("table_type").to_pylist()


def test_tags_and_time_are_the_key_of_a_table() -> None:
    """A row with the same ones replaces another. No table refers to another one."""
    found = asked("CommandGetPrimaryKeys", field(2, b"plant") + field(3, b"readings")).to_pylist()
    assert [("line", 1), ("pump", 2), ("time", 3)] == [(row["column_name"], row["key_sequence"]) for row in found]
    both = asked("CommandGetPrimaryKeys", field(3, b"readings")).to_pylist()
    assert 5 == len(both)
    assert 0 == asked("CommandGetPrimaryKeys", field(2, b"pl%") + field(3, b"readings")).num_rows
    for name in ("CommandGetExportedKeys", "CommandGetImportedKeys", "CommandGetCrossReference"):
        keys = asked(name, field(3, b"readings"))
        assert (0, 13) == (keys.num_rows, keys.num_columns)


def information(message: bytes) -> dict[int, Any]:
    """What a node says of itself, by the number of the protocol."""
    return {row["info_name"]: row["value"] for row in asked("CommandGetSqlInfo", message).to_pylist()}


def test_a_node_says_what_it_is_and_can_do() -> None:
    """All of it, or what is asked for, packed or one by one; what it does not know is left out."""
    everything = information(b"")
    assert ("Headrace", True, 3, []) == tuple(
        everything[each] for each in (SERVER_NAME, READ_ONLY, NULL_ORDERING, KEYWORDS)
    )
    assert {*range(500, 577)} <= everything.keys()
    packed = information(field(1, b"\x00\x03\xfb\x03\xff\x7f"))
    assert {SERVER_NAME: "Headrace", READ_ONLY: True, NULL_ORDERING: 3} == packed
    assert packed == information(b"\x08\x00\x08\x03\x08\xfb\x03")
    table = asked("CommandGetSqlInfo", field(1, b"\x9f\x04"))
    assert [200] == [row["value"] for row in table.to_pylist() if row["info_name"] == COLUMN_NAME_LENGTH]
    table.validate(full=True)


def test_a_pattern_has_a_limit() -> None:
    """The time that a pattern takes grows with it."""
    with pytest.raises(RequestInvalid, match="pattern"):
        asked("CommandGetTables", field(3, b"%" * (PATTERN_CHARACTERS_MAX + 1)))
    assert [] == names(field(3, b"%a" * (PATTERN_CHARACTERS_MAX // 2)))
    with pytest.raises(CommandUnknown, match="65536 bytes"):
        asked("CommandGetSqlInfo", field(1, b"\0" * LIST_BYTES_MAX))


def test_what_is_no_list_is_left_to_others() -> None:
    """SQL, statements, and unknown commands; broken ones are refused."""
    for sent in (b"SELECT 1", b"", command("CommandStatementQuery", b""), command("CommandGetXdbcTypeInfo", b"")):
        assert list_of(sent, LIST_COMMANDS) is None
    for broken in (command("CommandGetTables", b"\x0a\xff"), command("CommandGetTables", b"\xff" * 12)):
        with pytest.raises(CommandUnknown):
            list_of(broken, LIST_COMMANDS)
    assert SentList("CommandGetTables", ((5, 1),)) == list_of(command("CommandGetTables", b"\x28\x01"), LIST_COMMANDS)


def test_a_driver_reads_a_list_like_an_answer(flights: flight.FlightClient) -> None:  # noqa: F811
    """The schema before, and the rows by the ticket; a broken filter is the driver's error."""
    sent = command("CommandGetTables", field(2, b"iot") + b"\x28\x01")
    info = flights.get_flight_info(flight.FlightDescriptor.for_command(sent))
    found = flights.do_get(info.endpoints[0].ticket).read_all()
    assert (info.schema, ["readings"]) == (found.schema, found.column("table_name").to_pylist())
    assert found.schema == flights.get_schema(flight.FlightDescriptor.for_command(sent)).schema
    columns = pa.ipc.read_schema(pa.py_buffer(found.column("table_schema")[0].as_py()))
    assert flights.do_get(flight.Ticket("SELECT * FROM iot.readings")).read_all().schema.names == columns.names
    with pytest.raises(flight.FlightServerError, match="shorter"):
        flights.do_get(flight.Ticket(command("CommandGetTables", field(3, b"%" * 2_000))))
    for broken in (command("CommandGetTables", b"\x0a\xff"), command("CommandGetSqlInfo", field(1, b"\xff"))):
        with pytest.raises(pa.ArrowNotImplementedError, match="cannot be read"):
            flights.do_get(flight.Ticket(broken))
