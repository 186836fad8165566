"""Hands a group's files to a member that recovers: a snapshot, its listing, and the bytes of its files from any offset.

A snapshot is hard links in `{data}/snapshots/{id}`, so it costs no space but what compaction would have freed. It goes when the receiver releases
it, when nobody has read of it for a while, and when the node starts.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from connectors.files import create_directories
from consumers.replication.state import GroupState
from consumers.replication.transfer import PARTS, SNAPSHOTS, Snapshot, SnapshotFile, digest_of
from consumers.store import SegmentEntry
from schemas.errors import HeadraceError

SNAPSHOTS_MAX = 8
IDLE_S = 60.0
TRIES = 5
PIECE_BYTES = 1 << 20
"""Each piece costs a turn of the event loop and of a thread, so it is larger than what the receiver reads at once."""


class SnapshotRefused(HeadraceError):
    """A snapshot that cannot be made now: the group is not in sync here, has sealed nothing, or too many are out."""


class SnapshotUnknown(HeadraceError):
    """A snapshot, or a file of one, that is not here (any more)."""


class Snapshotted(Protocol):
    """A store as a snapshot is made of it."""

    @property
    def state(self) -> bytes | None:
        """What the newest committed seal said of the group."""
        ...

    def snapshot(self, directory: Path) -> list[SegmentEntry]:
        """See Store.snapshot."""
        ...


@dataclass(slots=True)
class _Shelved:
    snapshot: Snapshot
    sizes: dict[str, int]
    used_s: float


class SnapshotShelf:
    """The snapshots that are out. Owns `{data}/snapshots`; any thread."""

    def __init__(self, data_directory: Path, *, idle_s: float = IDLE_S) -> None:
        """Removes what an earlier process left."""
        self.directory = data_directory / SNAPSHOTS
        shutil.rmtree(self.directory, ignore_errors=True)
        self._idle_s = idle_s
        self._lock = threading.Lock()
        self._shelved: dict[str, _Shelved] = {}

    def make(self, group: str, topic_id: str, era: int, store: Snapshotted) -> Snapshot:
        """A new snapshot of a group's store. Raises SnapshotRefused, StoreError."""
        self.expire()
        with self._lock:
            # A snapshot in the making counts already: it is made outside the lock.
            if len(self._shelved) >= SNAPSHOTS_MAX:
                raise SnapshotRefused(f"{SNAPSHOTS_MAX} snapshots are out already", retriable=True)
            name = uuid.uuid4().hex
            self._shelved[name] = _Shelved(Snapshot(name, group, topic_id, 0, 0, era, "", ()), {}, time.monotonic())
        try:
            made = self._write(name, group, topic_id, era, store)
        except BaseException:
            self.release(name)
            raise
        with self._lock:
            self._shelved[name] = _Shelved(made, {file.path: file.size_bytes for file in made.files}, time.monotonic())
        return made

    def _write(self, name: str, group: str, topic_id: str, era: int, store: Snapshotted) -> Snapshot:
        create_directories(self.directory)
        for _ in range(TRIES):
            before = store.state
            if before is None:
                raise SnapshotRefused(f"group {group} has sealed nothing yet", action="follow its log", retriable=True)
            entries = store.snapshot(self.directory / name)
            # A seal that committed in between may or may not be in the copy; equal states say that none did.
            if store.state == before:
                state = GroupState.from_bytes(before)
                files = (*_segment_files(self.directory / name, entries), *_index_files(self.directory / name))
                return Snapshot(name, group, topic_id, state.version, state.offset, era, state.chain.hex(), files)
            shutil.rmtree(self.directory / name)
        raise SnapshotRefused(f"group {group} seals too often for a snapshot", retriable=True)

    def open(self, name: str, path: str, offset: int) -> tuple[int, Iterator[bytes]]:
        """(how many bytes follow, the bytes) of a file from an offset. Raises SnapshotUnknown."""
        with self._lock:
            shelved = self._shelved.get(name)
            size = shelved.sizes.get(path) if shelved is not None else None
        if shelved is None or size is None or not 0 <= offset <= size:
            raise SnapshotUnknown(f"there is no byte {offset} of file {path!r} in a snapshot {name!r}")
        located = self.directory / name / path
        if not located.exists():
            raise SnapshotUnknown(f"file {path!r} of snapshot {name!r} is gone")
        return size - offset, _pieces(located, offset, size, shelved)

    def release(self, name: str) -> None:
        """Delete a snapshot; one that is not there is fine."""
        with self._lock:
            known = self._shelved.pop(name, None)
        if known is not None:
            shutil.rmtree(self.directory / name, ignore_errors=True)

    def expire(self) -> None:
        """Delete what nobody has used for a while."""
        now = time.monotonic()
        with self._lock:
            idle = [name for name, shelved in self._shelved.items() if now - shelved.used_s > self._idle_s]
        for name in idle:
            self.release(name)


class Snapshotting(Protocol):
    """A node as these routes need it."""

    @property
    def shelf(self) -> SnapshotShelf:
        """Its snapshots."""
        ...

    def make_snapshot(self, group_name: str) -> Snapshot:
        """A snapshot of a group that is in sync here. Raises SnapshotRefused."""
        ...


def snapshot_routes(node: Snapshotting) -> list[Route]:
    """`POST /api/v1/snapshots?group=G`, `GET /api/v1/snapshots/{id}/file?path=P&offset=N`, `DELETE /api/v1/snapshots/{id}`."""

    async def make(request: Request) -> Response:
        group = request.query_params.get("group", "")
        return await _answer(lambda: JSONResponse(node.make_snapshot(group).document()))

    async def file(request: Request) -> Response:
        name, path = request.path_params["id"], request.query_params.get("path", "")
        offset = request.query_params.get("offset", "0")
        if not (offset.isascii() and offset.isdigit() and len(offset) < 19):
            return _refusal("UsageInvalid", "offset is not a whole number", "", 400)
        return await _answer(lambda: _file_response(node.shelf, name, path, int(offset)))

    async def release(request: Request) -> Response:
        await asyncio.to_thread(node.shelf.release, request.path_params["id"])
        return Response(status_code=204)

    return [
        Route("/api/v1/snapshots", make, methods=["POST"]),
        Route("/api/v1/snapshots/{id}/file", file, methods=["GET"]),
        Route("/api/v1/snapshots/{id}", release, methods=["DELETE"]),
    ]


async def _answer(call: Callable[[], Response]) -> Response:
    try:
        return await asyncio.to_thread(call)
    except SnapshotUnknown as error:
        return _refusal("SnapshotUnknown", error.message, error.action, 404)
    except HeadraceError as error:
        return _refusal(type(error).__name__, error.message, error.action, 409)


def _refusal(kind: str, message: str, action: str, status: int) -> Response:
    described: dict[str, Any] = {"kind": kind, "message": message, "action": action}
    return JSONResponse({"error": described}, status)


def _file_response(shelf: SnapshotShelf, name: str, path: str, offset: int) -> Response:
    length, pieces = shelf.open(name, path, offset)
    headers = {"content-length": str(length)}
    return StreamingResponse(pieces, media_type="application/octet-stream", headers=headers)


def _pieces(path: Path, offset: int, size: int, shelved: _Shelved) -> Iterator[bytes]:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        while offset < size and (piece := os.pread(descriptor, min(PIECE_BYTES, size - offset), offset)):
            shelved.used_s = time.monotonic()
            yield piece
            offset += len(piece)
    finally:
        os.close(descriptor)


def _segment_files(root: Path, entries: list[SegmentEntry]) -> Iterator[SnapshotFile]:
    """Digests are the catalogue's: a file that has changed on this disk since it was sealed must not pass."""
    segments = root / PARTS[0]
    group = next(segments.iterdir()).name
    for entry in entries:
        yield SnapshotFile(f"{PARTS[0]}/{group}/{entry.name}", entry.size_bytes, entry.file_digest)


def _index_files(root: Path) -> Iterator[SnapshotFile]:
    """The index was written just now, and RocksDB checks its own blocks."""
    for parent, _, names in os.walk(root / PARTS[1]):
        for name in sorted(names):
            path = Path(parent, name)
            yield SnapshotFile(str(path.relative_to(root)), path.stat().st_size, digest_of(path))
