"""The routes between receivers and the nodes of their cluster; `consumers.serve.sync_service` answers them.

The body of `SYNC_LOADS_ROUTE` has for each file, one behind the other: the version of the table (uint32, little endian),
the size of its manifest (likewise), and the manifest as it is in its topic.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass

from headrace.schemas.framing import FrameInvalid

SYNC_FILE_ROUTE = "/api/v1/sync/file"
SYNC_LOADS_ROUTE = "/api/v1/sync/loads"
SYNC_STAGING_ROUTE = "/api/v1/sync/staging"
LINK_MISSING_KIND = "LinkMissing"
UPLOAD_SUFFIX = ".upload"
LINKED_SERIES_SUFFIX = ".series.upload"
"""A receiver on the machine of a member links a file into its staging directory: NAME.upload, and NAME.series.upload."""
LOADS_AT_ONCE = 64
LOADS_BYTES_MAX = 8 << 20
"""Manifests of one request; a single one may be larger."""
_HEAD = struct.Struct("<II")


@dataclass(frozen=True, slots=True)
class LoadRequest:
    """A file to load: its manifest, encoded, and the version of the centre's table that has its columns."""

    manifest: bytes
    schema_version: int


def encode_loads(requests: Iterable[LoadRequest]) -> bytes:
    """The body of a request."""
    return b"".join(_HEAD.pack(each.schema_version, len(each.manifest)) + each.manifest for each in requests)


def decode_loads(data: bytes) -> list[LoadRequest]:
    """The inverse of `encode_loads`. Raises FrameInvalid."""
    found, at = list[LoadRequest](), 0
    while at < len(data):
        if at + _HEAD.size > len(data):
            raise FrameInvalid("a request for loads ends in the middle")
        version, size = _HEAD.unpack_from(data, at)
        at += _HEAD.size + size
        if at > len(data):
            raise FrameInvalid("a request for loads ends in the middle")
        found.append(LoadRequest(data[at - size : at], version))
    if len(found) > LOADS_AT_ONCE:
        raise FrameInvalid(f"a request has {len(found)} loads, and may have {LOADS_AT_ONCE}")
    return found
