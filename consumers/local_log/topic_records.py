"""How topics and their records are kept in the write-ahead log: keys, and values as bytes.

A topic has a number, which is part of the keys of its records, so that a name may be used again. Its description is
one record of its own.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from headrace.connectors.log.closing import SIZE_SETTING
from headrace.connectors.log.port import Headers, Record, RecordTooLarge, TopicSettingsRefused
from headrace.consumers.wal.serde import Pair

_RECORD_KEY = struct.Struct(">cIQ")
_TOPIC_KEY = struct.Struct(">cI")
_RECORD_KIND, _TOPIC_KIND = b"r", b"t"
_HEAD = struct.Struct("<qiH")
"""Time of the append in ms, length of the key (-1: none), number of headers."""
_HEADER = struct.Struct("<HI")
_NO_KEY = -1
HEADERS_MAX = HEADER_NAME_BYTES_MAX = (1 << 16) - 1
RETENTION_SETTING = "retention.ms"
_NUMBERS = {RETENTION_SETTING: -1, SIZE_SETTING: 0}
"""Settings that the log computes with, and the least value of each."""
_NUMBER = re.compile(r"-?[0-9]{1,18}")


@dataclass(slots=True)
class TopicDescription:
    """A topic: its id, its settings, and the first offset that it holds.

    `deleted`: nobody sees it any more, and its records are being removed.
    """

    number: int
    name: str
    topic_id: str
    begin: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    deleted: bool = False

    @property
    def key(self) -> bytes:
        """Its key in the write-ahead log."""
        return _TOPIC_KEY.pack(_TOPIC_KIND, self.number)

    def record_key(self, offset: int) -> bytes:
        """The key of one of its records."""
        return _RECORD_KEY.pack(_RECORD_KIND, self.number, offset)

    def encoded(self) -> Pair:
        """The description for the write-ahead log."""
        return self.key, json.dumps(asdict(self)).encode()


def decode_topic(value: bytes) -> TopicDescription:
    """The inverse of `TopicDescription.encoded`."""
    found: dict[str, Any] = json.loads(value)
    return TopicDescription(**found)


def check_settings(topic: str, settings: Mapping[str, str]) -> None:
    """Refuse settings that no record could be compared with later. Raises TopicSettingsRefused."""
    for name, least in _NUMBERS.items():
        value = settings.get(name)
        if value is not None and not (_NUMBER.fullmatch(value) and int(value) >= least):
            raise TopicSettingsRefused(
                f"topic {topic} cannot have {name}={value}", action=f"give a whole number from {least} on, without unit"
            )


def check_headers(topic: str, headers: Headers) -> None:
    """Refuse headers whose number or names have no room in a stored record. Raises RecordTooLarge."""
    longest = max((len(name.encode()) for name, _ in headers), default=0)
    if len(headers) > HEADERS_MAX or longest > HEADER_NAME_BYTES_MAX:
        raise RecordTooLarge(
            f"a record for topic {topic} has {len(headers)} headers, the longest name with {longest} bytes",
            action=f"{HEADERS_MAX} headers and {HEADER_NAME_BYTES_MAX} bytes of a name are the most",
        )


def record_position(key: bytes) -> tuple[int, int] | None:
    """(number of the topic, offset) of a record's key; None for the key of a topic."""
    if key[:1] != _RECORD_KIND:
        return None
    _kind, number, offset = _RECORD_KEY.unpack(key)
    return number, offset


def encode_record(
    topic: TopicDescription, offset: int, timestamp_ms: int, key: bytes | None, value: bytes, headers: Headers
) -> Pair:
    """A record for the write-ahead log; its value is not copied."""
    head = [_HEAD.pack(timestamp_ms, _NO_KEY if key is None else len(key), len(headers)), key or b""]
    for name, content in headers:
        encoded = name.encode()
        head += [_HEADER.pack(len(encoded), len(content)), encoded, content]
    return topic.record_key(offset), (b"".join(head), value)


def decode_record(topic: str, offset: int, stored: bytes) -> Record:
    """The inverse of `encode_record`. Raises `struct.error` or `UnicodeDecodeError` for foreign bytes."""
    timestamp_ms, key_length, header_count = _HEAD.unpack_from(stored)
    position = _HEAD.size
    key = None
    if key_length != _NO_KEY:
        key = stored[position : position + key_length]
        position += key_length
    headers: list[tuple[str, bytes]] = []
    for _ in range(header_count):
        name_length, content_length = _HEADER.unpack_from(stored, position)
        position += _HEADER.size
        content_start = position + name_length
        name = stored[position:content_start].decode()
        position = content_start + content_length
        headers.append((name, stored[content_start:position]))
    return Record(topic, offset, timestamp_ms, key, stored[position:], tuple(headers), leader_epoch=0)


def append_time_ms(stored: bytes) -> int:
    """When a stored record was appended, in ms since 1970."""
    return int(_HEAD.unpack_from(stored)[0])
