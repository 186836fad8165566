"""The statement in a command of Flight SQL, as drivers for ADBC and JDBC send it. Pure.

A command is a protobuf message in an `Any`: the name of its type, and its bytes. Of a statement the first field is the
SQL. Everything else, such as prepared statements and lists of tables, is refused by its name.
"""

from __future__ import annotations

from collections.abc import Iterator

TYPE_PREFIX = b"type.googleapis.com/arrow.flight.protocol.sql."
STATEMENT = "CommandStatementQuery"
_TYPE_FIELD, _VALUE_FIELD, _QUERY_FIELD = 1, 2, 1
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_FIXED_SIZES = {_FIXED64: 8, _FIXED32: 4}
_VARINT_BITS_MAX = 64


class CommandUnknown(ValueError):
    """A command of Flight SQL that is no statement; its text is the name of the command."""


def statement_of(command: bytes) -> bytes:
    """The SQL of a command of Flight SQL; other bytes are SQL themselves. Raises CommandUnknown."""
    # The first field, its size in one byte, and the name: no SQL begins so.
    if command[:1] != b"\x0a" or not command[2:].startswith(TYPE_PREFIX):
        return command
    try:
        fields = dict(_fields(command))
        name = fields[_TYPE_FIELD].removeprefix(TYPE_PREFIX).decode()
        if name == STATEMENT:
            return dict(_fields(fields[_VALUE_FIELD]))[_QUERY_FIELD]
    except (KeyError, IndexError, ValueError) as error:
        raise CommandUnknown("a command that cannot be read") from error
    raise CommandUnknown(name)


def _fields(message: bytes) -> Iterator[tuple[int, bytes]]:
    """The fields of a message that have bytes, by number."""
    place = 0
    while place < len(message):
        key, place = _varint(message, place)
        kind = key & 7
        if kind == _VARINT:
            _, place = _varint(message, place)
            continue
        size = _FIXED_SIZES.get(kind, -1)
        if kind == _BYTES:
            size, place = _varint(message, place)
        if size < 0 or place + size > len(message):
            raise ValueError("a field of an unknown kind, or beyond the end")
        if kind == _BYTES:
            yield key >> 3, message[place : place + size]
        place += size


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
