"""Flight SQL as drivers for ADBC and JDBC send it: statements, plain and prepared, and requests for lists. Pure.

A command is a protobuf message in an `Any`: the name of its type, and its bytes. Of a statement the first field is the
SQL. Lists, such as that of tables, have filters (`flight_catalog.py`). Everything else is refused by its name.

A node keeps nothing of a prepared statement: its handle is its SQL and its parameters. To bind parameters gives the
client another handle.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

TYPE_PREFIX = b"type.googleapis.com/arrow.flight.protocol.sql."
STATEMENT = "CommandStatementQuery"
PREPARED_STATEMENT = "CommandPreparedStatementQuery"
CREATE_PREPARED, CLOSE_PREPARED = "CreatePreparedStatement", "ClosePreparedStatement"
"""The actions that are offered."""
LIST_BYTES_MAX = 64 * 1024
"""What asks for a list is read number by number, in the way of all other threads."""
_HANDLE_END = b"\0"
"""Between SQL and parameters. JSON escapes it, so the last one of a handle is it."""
_TYPE_FIELD, _VALUE_FIELD, _QUERY_FIELD, _HANDLE_FIELD, _SCHEMA_FIELD, _PARAMETERS_FIELD = 1, 2, 1, 1, 2, 3
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BITS_MAX = 64


class CommandUnknown(ValueError):
    """A command of Flight SQL that is no statement; its text is the name of the command."""


class SentList(NamedTuple):
    """A command that asks for a list: its name, and its fields in order, which are bytes or numbers."""

    name: str
    fields: tuple[tuple[int, bytes | int], ...] = ()

    def texts(self, number: int) -> list[str]:
        """The texts of a field. What is not UTF-8 is equal to no name."""
        return [
            value.decode(errors="replace") for at, value in self.fields if at == number and isinstance(value, bytes)
        ]

    def text(self, number: int) -> str | None:
        """The last text of a field, None without one."""
        return next(reversed(self.texts(number)), None)

    def numbers(self, number: int) -> list[int]:
        """The numbers of a field, packed into bytes or one by one. Raises CommandUnknown."""
        found: list[int] = []
        try:
            for at, value in self.fields:
                if at == number:
                    found += [value] if isinstance(value, int) else _varints(value)
        except (IndexError, ValueError) as error:
            raise CommandUnknown("a command that cannot be read") from error
        return found


class SentQuery(NamedTuple):
    """The query of a command: SQL, and the JSON of the parameters that were bound to it, or nothing."""

    sql: bytes
    parameters: bytes = b""


def query_of(command: bytes) -> SentQuery:
    """The query of a command of Flight SQL; other bytes are SQL themselves. Raises CommandUnknown."""
    if not _is_command(command):
        return SentQuery(command)
    name, first = _message(command)
    if name == STATEMENT:
        return SentQuery(first)
    if name == PREPARED_STATEMENT:
        sql, _, parameters = first.rpartition(_HANDLE_END)
        return SentQuery(sql, parameters)
    raise CommandUnknown(name)


def list_of(command: bytes, names: Collection[str]) -> SentList | None:
    """The list that a command of Flight SQL asks for, if it is one of `names`. Raises CommandUnknown."""
    if not _is_command(command):
        return None
    try:
        outer = dict(_fields(command))
        name = _name(outer)
        body = outer.get(_VALUE_FIELD, b"")
        if name not in names or not isinstance(body, bytes):
            return None
        if len(body) > LIST_BYTES_MAX:
            raise CommandUnknown(f"{name} with filters of more than {LIST_BYTES_MAX} bytes")
        return SentList(name, tuple(_fields(body)))
    except CommandUnknown:
        raise
    except (KeyError, IndexError, ValueError) as error:
        raise CommandUnknown("a command that cannot be read") from error


def sql_to_prepare(body: bytes) -> bytes:
    """The SQL in the body of CREATE_PREPARED. Raises CommandUnknown."""
    return _message(body)[1]


def created_statement(sql: bytes, schema: bytes, parameters: bytes) -> bytes:
    """The answer to CREATE_PREPARED; the schemas of rows and parameters are IPC messages, or nothing."""
    fields = _field(_SCHEMA_FIELD, schema) + _field(_PARAMETERS_FIELD, parameters)
    message = handle_message(SentQuery(sql)) + fields
    name = TYPE_PREFIX + b"ActionCreatePreparedStatementResult"
    return _field(_TYPE_FIELD, name) + _field(_VALUE_FIELD, message)


def handle_message(query: SentQuery) -> bytes:
    """A message whose only field is the handle of a query: the answer to bound parameters."""
    return _field(_HANDLE_FIELD, query.sql + _HANDLE_END + query.parameters)


def is_prepared(command: bytes) -> bool:
    """Whether a command names a prepared statement that is to be read."""
    return command[2:].startswith(TYPE_PREFIX + PREPARED_STATEMENT.encode())


def _is_command(command: bytes) -> bool:
    # The first field, its size in one byte, and the name: no SQL begins so.
    return command[:1] == b"\x0a" and command[2:].startswith(TYPE_PREFIX)


def _message(command: bytes) -> tuple[str, bytes]:
    """The name of a command, and its first field. Raises CommandUnknown."""
    try:
        fields = dict(_fields(command))
        name = _name(fields)
        if name not in (STATEMENT, PREPARED_STATEMENT, f"Action{CREATE_PREPARED}Request"):
            return name, b""
        return name, _bytes(dict(_fields(_bytes(fields[_VALUE_FIELD])))[_QUERY_FIELD])
    except (KeyError, IndexError, ValueError) as error:
        raise CommandUnknown("a command that cannot be read") from error


def _name(fields: Mapping[int, bytes | int]) -> str:
    return _bytes(fields[_TYPE_FIELD]).removeprefix(TYPE_PREFIX).decode()


def _bytes(value: bytes | int) -> bytes:
    if isinstance(value, int):
        raise ValueError("a number in the place of bytes")
    return value


def _field(number: int, content: bytes) -> bytes:
    size, rest = b"", len(content)
    while rest >= 0x80:
        size, rest = size + bytes([rest & 0x7F | 0x80]), rest >> 7
    return bytes([number << 3 | _BYTES]) + size + bytes([rest]) + content


def _fields(message: bytes) -> Iterator[tuple[int, bytes | int]]:
    """The fields of a message that have bytes, or a number of any length, by their own number."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == _VARINT:
            value, place = _varint(message, place)
            yield key >> 3, value
            continue
        size = _FIXED_SIZES.get(kind, -1)
        if kind == _BYTES:
            size, place = _varint(message, place)
        if size < 0 or place + size > len(message):
            raise ValueError("a field of an unknown kind, or beyond the end")
        if kind == _BYTES:
            yield key >> 3, message[place : place + size]
        place += size


def _varints(packed: bytes) -> Iterator[int]:
    place = 0
    while place < len(packed):
        value, place = _varint(packed, place)
        yield value


def _varint(message: bytes, place: int) -> tuple[int, int]:
    value = shift = 0
    while shift < _VARINT_BITS_MAX:
        byte = message[place]
        place += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place
        shift += 7
    raise ValueError("a number without an end")
