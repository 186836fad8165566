"""Values of the topics `sync.manifest`, `sync.chunk`, `sync.verdict` and `sync.owner`; docs/internals/sync.md has the rules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

import xxhash

from headrace.schemas.framing import codec
from headrace.schemas.messages import CarriedDelete

_NAMESPACE = "headrace.v1."


class Verdict(StrEnum):
    """What the centre has decided about a file, or about the deletes of a round."""

    ACCEPTED = "ACCEPTED"
    REJECTED = "REJECTED"
    RETRY = "RETRY"
    RESEND = "RESEND"


@dataclass(frozen=True, slots=True)
class SyncFile:
    """One sealed file of a sender; `sync_manifest.avsc` explains the fields. `fields` are (name, type)."""

    file: str
    stores: tuple[str, ...]
    database: str
    table: str
    slice_ns: int
    buckets: int
    slice_number: int
    bucket: int
    era: int
    first_version: int
    last_version: int
    generation: int
    order: str
    rows: int
    min_time_ns: int
    max_time_ns: int
    tags: tuple[str, ...]
    fields: tuple[tuple[str, str], ...]
    resolution: str
    content_digest: bytes
    segment_bytes: int
    segment_digest: bytes
    segment_md5: bytes
    series_bytes: int
    series_digest: bytes
    chunk_bytes: int
    chunks: int
    deletes: tuple[CarriedDelete, ...] = ()
    settled: str = ""


@dataclass(frozen=True, slots=True)
class SyncDelete:
    """One user delete of a sender, with its rank there."""

    era: int
    version: int
    database: str
    table: str
    tags: Mapping[str, tuple[str, ...]]
    start_ns: int | None
    end_ns: int | None


@dataclass(frozen=True, slots=True)
class SyncDeletes:
    """User deletes of one group (`group/birth`) of a sender, in its order."""

    group: str
    deletes: tuple[SyncDelete, ...]


@dataclass(frozen=True, slots=True)
class SyncManifest:
    """What a sender is about to send; `sync_manifest.avsc` explains the fields."""

    sender: str
    store: str
    name: str
    session: int
    number: int
    format: int
    body: SyncFile | SyncDeletes


@dataclass(frozen=True, slots=True)
class SyncChunk:
    """One part of the bytes of a manifest's file."""

    sender: str
    session: int
    number: int
    chunk: int
    data: bytes | memoryview


class ChunkDamaged(ValueError):
    """A chunk whose bytes are not those of its digest."""


@dataclass(frozen=True, slots=True)
class SyncVerdict:
    """The centre's answer to a manifest; `sync_verdict.avsc` explains the fields."""

    sender: str
    number: int
    file: str
    content_digest: bytes
    state: Verdict
    chunk: int = 0
    kind: str = ""
    message: str = ""


@dataclass(frozen=True, slots=True)
class OwnerEnrolment:
    """Binds a sender's UUID to its store: the first one of a UUID counts."""

    sender: str
    store: str
    name: str


@dataclass(frozen=True, slots=True)
class OwnerClaim:
    """All devices of one file; `devices` are series keys as an Arrow IPC stream."""

    sender: str
    store: str
    file: str
    database: str
    devices: bytes


@dataclass(frozen=True, slots=True)
class OwnerMove:
    """Hands devices to another sender, by an operator."""

    sender: str
    database: str
    devices: bytes


OwnerRecord = OwnerEnrolment | OwnerClaim | OwnerMove
_OWNERS: Mapping[str, type[OwnerRecord]] = {
    _NAMESPACE + each.__name__: each for each in (OwnerEnrolment, OwnerClaim, OwnerMove)
}


def encode_manifest(manifest: SyncManifest) -> bytes:
    """A manifest as the value of a record of `{c}.sync.manifest`."""
    body = asdict(manifest.body)
    body["deletes"] = [each | {"tags": dict(each["tags"])} for each in body["deletes"]]
    if isinstance(manifest.body, SyncFile):
        body["fields"] = [{"name": name, "type": kind} for name, kind in manifest.body.fields]
    values = {name: getattr(manifest, name) for name in ("sender", "store", "name", "session", "number", "format")}
    return codec("sync_manifest").encode(values | {"body": (_NAMESPACE + type(manifest.body).__name__, body)})


def decode_manifest(value: bytes) -> SyncManifest:
    """The manifest in a record's value. Raises FrameInvalid."""
    record = codec("sync_manifest").decode(value)
    name, body = record.pop("body")
    if name == _NAMESPACE + "SyncFile":
        return SyncManifest(**record, body=_file(body))
    deletes = tuple(SyncDelete(**{**each, "tags": _tags(each)}) for each in body["deletes"])
    return SyncManifest(**record, body=SyncDeletes(body["group"], deletes))


def encode_chunk(chunk: SyncChunk) -> bytes:
    """A chunk as the value of a record of `{c}.sync.chunk`."""
    head = {
        "sender": chunk.sender,
        "session": chunk.session,
        "number": chunk.number,
        "chunk": chunk.chunk,
        "digest": xxhash.xxh3_64_digest(chunk.data),
    }
    return codec("sync_chunk").encode_tail(head, "bytes", chunk.data)


def decode_chunk(value: bytes) -> SyncChunk:
    """The chunk in a record's value, whose bytes may be a view of it. Raises FrameInvalid or ChunkDamaged."""
    record = codec("sync_chunk").decode_tail(value, "bytes")
    chunk = SyncChunk(record["sender"], record["session"], record["number"], record["chunk"], record["bytes"])
    if xxhash.xxh3_64_digest(chunk.data) != record["digest"]:
        raise ChunkDamaged(f"chunk {chunk.chunk} of manifest {chunk.number} of {chunk.sender} is damaged")
    return chunk


def encode_verdict(verdict: SyncVerdict) -> bytes:
    """A verdict as the value of a record of `{c}.sync.verdict`."""
    return codec("sync_verdict").encode(asdict(verdict) | {"state": verdict.state.value})


def decode_verdict(value: bytes) -> SyncVerdict:
    """The verdict in a record's value. Raises FrameInvalid."""
    record = codec("sync_verdict").decode(value)
    return SyncVerdict(**record | {"state": Verdict(record["state"])})


def verdict_key(sender: str, file: str) -> bytes:
    """The key of a verdict: the newest one of a file stays when the topic is compacted."""
    return f"{sender}/{file}".encode()


def encode_owner(body: OwnerRecord) -> bytes:
    """The value of a record of `{c}.sync.owner`."""
    return codec("sync_owner").encode({"body": (_NAMESPACE + type(body).__name__, asdict(body))})


def decode_owner(value: bytes) -> OwnerRecord:
    """The body of a record of `{c}.sync.owner`. Raises FrameInvalid."""
    name, body = codec("sync_owner").decode(value)["body"]
    return _OWNERS[name](**body)


def _file(body: dict[str, Any]) -> SyncFile:
    fields = tuple((each["name"], each["type"]) for each in body["fields"])
    deletes = tuple(
        CarriedDelete(
            each["era"], each["version"], tuple(sorted(_tags(each).items())), each["start_ns"], each["end_ns"]
        )
        for each in body["deletes"]
    )
    names = ("stores", "tags")
    return SyncFile(**body | {name: tuple(body[name]) for name in names} | {"fields": fields, "deletes": deletes})


def _tags(record: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    return {name: tuple(values) for name, values in sorted(record["tags"].items())}
