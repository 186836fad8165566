"""Several small files of moved slots in one answer of a node. Pure.

The files of a cut that were sealed last have some ten KB each: a request for each costs more than its bytes. An answer
has, for each file, a header of fixed size, its series and its segment. Files that it lacks are asked for alone.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate

from headrace.consumers.store import SegmentEntry
from headrace.schemas.errors import HeadraceError

FILES_MAX = 64
SMALL_BYTES_MAX = 256 << 10
"""A larger file is asked for alone, and continued at its byte after a failure."""
SEGMENT_BYTES_MAX = 4 << 20
"""Bytes of all segments that are asked for together."""
BUNDLE_BYTES_MAX = 16 << 20
"""Bytes of an answer: a segment may have much larger series. It leaves out what does not fit."""
_HEADER = struct.Struct(">16s16sII")
"""Content digest, digest of the series, bytes of the series, bytes of the segment."""


class BundleInvalid(HeadraceError):
    """Files in one answer that no node writes."""


def bundle_of(entries: Sequence[SegmentEntry]) -> int:
    """How many of some small files are asked for together, the first ones; at least 1."""
    sizes = accumulate(entry.size_bytes for entry in entries[:FILES_MAX])
    return max(1, sum(size_bytes <= SEGMENT_BYTES_MAX for size_bytes in sizes))


def encode_bundle(files: Iterable[tuple[str, str, bytes, bytes]]) -> bytes:
    """An answer of (content digest, digest of the series, series, segment) of each file; digests in hex."""
    parts, size_bytes = list[bytes](), 0
    for digest, series_digest, series, segment in files:
        size_bytes += _HEADER.size + len(series) + len(segment)
        if size_bytes > BUNDLE_BYTES_MAX:
            break
        digests = bytes.fromhex(digest), bytes.fromhex(series_digest)
        parts += (_HEADER.pack(*digests, len(series), len(segment)), series, segment)
    return b"".join(parts)


def decode_bundle(data: bytes) -> Iterator[tuple[str, str, bytes, memoryview]]:
    """The inverse of `encode_bundle`. Raises BundleInvalid."""
    view, at = memoryview(data), 0
    while at < len(data):
        if len(data) - at < _HEADER.size:
            raise BundleInvalid(f"a header ends at byte {len(data)}")
        digest, series_digest, series_bytes, segment_bytes = _HEADER.unpack_from(data, at)
        series_at = at + _HEADER.size
        segment_at = series_at + series_bytes
        at = segment_at + segment_bytes
        if at > len(data):
            raise BundleInvalid(f"file {digest.hex()} ends at byte {at} of {len(data)}")
        yield digest.hex(), series_digest.hex(), data[series_at:segment_at], view[segment_at:at]
