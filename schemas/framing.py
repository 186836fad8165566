"""Avro single-object encoding: the frame of every value of our own topics.

| bytes | what |
|---|---|
| 0–1 | `C3 01` |
| 2–9 | CRC-64-AVRO fingerprint of the writer's schema, little-endian |
| 10– | the value, Avro binary encoding |

A build has every schema that was ever released (`schemas/*.avsc`, older ones under `schemas/released/`), so
no registry is needed. The Kafka header `format` is the oldest format of reader that can read a record: a
higher number than ours stops a data group. Bytes that no build could have written are only counted.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from importlib import resources
from typing import Any

import fastavro
from fastavro.schema import fingerprint

from headrace.schemas.errors import HeadraceError

MAGIC = b"\xc3\x01"
HEADER_BYTES = 10
_HEAD_BYTES_MAX = 512
_REASON_CHARACTERS_MAX = 200
FORMAT = 5
"""The newest format that this build reads.

2: the changes of `table.avsc` with a resolution. 3: the records of `membership_change.avsc`, `load.avsc` and
`group_change.avsc`. 4: those of `synced_load.avsc`. 5: those of them with a number.
"""
# Nodes apply a Load, and do not act on a change of members yet: before they do, no build may append one.
BASE_FORMAT = 1
LOAD_FORMAT = 3
GROUP_CHANGE_FORMAT = 3
SYNCED_LOAD_FORMAT = 4
FENCED_LOAD_FORMAT = 5
FORMAT_HEADER = "format"
FORMAT_DIGITS_MAX = 9


class FrameInvalid(HeadraceError):
    """Bytes that are no single-object frame of a schema of this or any earlier build."""


class SchemaUnknown(FrameInvalid):
    """A frame of a schema that this build does not have: a newer build has written it."""


# Not a FrameInvalid: a replica that skipped such a record would diverge from the members that can read it.
class FormatTooNew(HeadraceError):
    """A record of a later build that this one cannot read: it must not be skipped."""


class Codec:
    """Encodes and decodes the values of one kind of topic. Safe to share between threads."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._schema = fastavro.parse_schema(schema_of(name))
        self._prefix = MAGIC + bytes.fromhex(str(fingerprint(_canonical(name), "CRC-64-AVRO")))
        self._readers = {self._prefix: self._schema, **_released(name)}

    @property
    def prefix(self) -> bytes:
        """The first ten bytes of every value that this build writes."""
        return self._prefix

    def reads(self, prefix: bytes) -> bool:
        """Whether values that begin with these ten bytes are of this kind."""
        return prefix in self._readers

    def encode(self, record: dict[str, Any]) -> bytes:
        """A record as a single-object frame."""
        out = io.BytesIO()
        out.write(self._prefix)
        fastavro.schemaless_writer(out, self._schema, record)
        return out.getvalue()

    def encode_tail(self, record: dict[str, Any], name: str, data: bytes | memoryview) -> bytes:
        """A record whose last field is bytes, which are copied once; `record` has the others."""
        frame = self.encode(record | {name: b""})
        # The empty bytes are their length alone.
        return b"".join((frame[:-1], zigzag_length(len(data)), data))

    def decode_tail(self, value: bytes, name: str) -> dict[str, Any]:
        """As `decode`; the bytes of the last field are a view of the value. Raises FrameInvalid."""
        if value[:HEADER_BYTES] == self._prefix:
            stream = io.BytesIO(value[HEADER_BYTES : HEADER_BYTES + _HEAD_BYTES_MAX])
            # A head that is longer, or damaged, is read as a whole below.
            with suppress(Exception):
                record = fastavro.schemaless_reader(stream, _without_last(self.name), None)
                size, begin = _read_length(value, HEADER_BYTES + stream.tell())
                if isinstance(record, dict) and begin + size == len(value):
                    return {**record, name: memoryview(value)[begin:]}
        return self.decode(value)

    def decode(self, value: bytes) -> dict[str, Any]:
        """The record in a frame; unions come as (name, record). Raises FrameInvalid, SchemaUnknown."""
        schema = self._readers.get(bytes(value[:HEADER_BYTES]))
        if schema is None:
            framed = value[: len(MAGIC)] == MAGIC and len(value) >= HEADER_BYTES
            raise (SchemaUnknown if framed else FrameInvalid)(
                f"a value of topic kind {self.name!r} begins with {bytes(value[:HEADER_BYTES]).hex()!r}, no schema we know"
            )
        # Resolving a schema against itself is slow and changes nothing; an older record is read as one of
        # today's.
        reader_schema = None if schema is self._schema else self._schema
        stream = io.BytesIO(value)
        stream.seek(HEADER_BYTES)
        try:
            record = fastavro.schemaless_reader(stream, schema, reader_schema, return_record_name=True)
        except Exception as error:
            # fastavro raises whatever its parser meets in foreign bytes: EOFError, IndexError,
            # UnicodeDecodeError and others. Not its repr, which may have all the bytes.
            why = f"{type(error).__name__}: {error}"[:_REASON_CHARACTERS_MAX]
            raise FrameInvalid(f"a value of topic kind {self.name!r} does not decode: {why}") from error
        # Trailing bytes are damage, which the Avro decoder does not notice.
        if stream.tell() != len(value):
            raise FrameInvalid(f"a value of topic kind {self.name!r} has {len(value) - stream.tell()} bytes too many")
        if not isinstance(record, dict):
            raise FrameInvalid(f"a value of topic kind {self.name!r} is no record")
        return record


def zigzag_length(size: int) -> bytes:
    """The length of bytes or a count of items in Avro: a zigzag number of 7 bits a byte."""
    left, found = size << 1, bytearray()
    while left > 0x7F:
        found.append(left & 0x7F | 0x80)
        left >>= 7
    found.append(left)
    return bytes(found)


def _read_length(value: bytes, at: int) -> tuple[int, int]:
    """(length of bytes at a place, where they begin). Raises IndexError behind the end."""
    found = shift = 0
    while value[at] & 0x80:
        found |= (value[at] & 0x7F) << shift
        at, shift = at + 1, shift + 7
    return (found | value[at] << shift) >> 1, at + 1


@cache
def _without_last(name: str) -> Any:
    """The schema of a kind without its last field."""
    schema = schema_of(name)
    return fastavro.parse_schema({**schema, "fields": schema["fields"][:-1]})


def check_format(headers: tuple[tuple[str, bytes], ...], topic: str = "", offset: int = 0) -> None:
    """Raises FormatTooNew if a record's `format` header is above the format of this build; it names topic and offset."""
    for _, value in kept_headers(headers):
        if int(value) > FORMAT:
            what = f"the record at offset {offset} of topic {topic}" if topic else "a record"
            raise FormatTooNew(
                f"{what} has format {int(value)}; this build reads up to {FORMAT}", action="upgrade this node"
            )


def kept_headers(headers: Iterable[tuple[str, bytes]]) -> tuple[tuple[str, bytes], ...]:
    """The headers that a replica reads: the highest `format`, of bounded size. Any other, of any size, is dropped."""
    # Other producers, and what traces them, may add headers of any number and size: they must not fill the
    # journal, and cost no record its effect.
    numbers = [value for name, value in headers if name == FORMAT_HEADER and value.isdigit()]
    if not numbers:
        return ()
    # A number is compared by its digits: Python refuses to convert thousands of them.
    highest = max((value.lstrip(b"0") for value in numbers), key=lambda digits: (len(digits), digits))
    return ((FORMAT_HEADER, highest[:FORMAT_DIGITS_MAX] or b"0"),)


def format_headers(needed: int = BASE_FORMAT) -> list[tuple[str, bytes]]:
    """The headers of a record we write; `needed` is the oldest format of reader that understands it."""
    return [(FORMAT_HEADER, str(needed).encode())]


# Parsing the schemas takes milliseconds; a codec has no state between calls.
codec: Callable[[str], Codec] = cache(Codec)


def schema_of(name: str) -> dict[str, Any]:
    """The schema of a kind, as it is written."""
    found: dict[str, Any] = json.loads(_text(f"{name}.avsc"))
    return found


def _text(file_name: str) -> str:
    return resources.files(__package__).joinpath(file_name).read_text("utf-8")


def _canonical(name: str) -> str:
    return fastavro.schema.to_parsing_canonical_form(schema_of(name))


def _released(name: str) -> dict[bytes, Any]:
    folder = resources.files(__package__).joinpath("released")
    found: dict[bytes, Any] = {}
    for entry in folder.iterdir() if folder.is_dir() else ():
        if entry.name.startswith(f"{name}.") and entry.name.endswith(".avsc"):
            text = entry.read_text("utf-8")
            canonical = fastavro.schema.to_parsing_canonical_form(json.loads(text))
            found[MAGIC + bytes.fromhex(str(fingerprint(canonical, "CRC-64-AVRO")))] = fastavro.parse_schema(
                json.loads(text)
            )
    return found
