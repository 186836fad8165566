"""Files of senders at a member: taken from a receiver, verified and durable before a record names them.

A file is in the staging directory of its group under the names that a load looks for, with a marker `{digest}.sync`. The
marker says that a load may still come, also after a restart: what has one is not swept away until it is too old.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import xxhash

from headrace.connectors.files import create_directories, fsync_directory, fsync_file
from headrace.consumers.migration.cut_source import CutRefused
from headrace.consumers.query.query_errors import SlotNotHeld
from headrace.consumers.replication.group import Group
from headrace.consumers.replication.group_health import Use
from headrace.consumers.store import SeriesFile, staged_names
from headrace.consumers.store.segment import METADATA_PREFIX, Runs
from headrace.consumers.store.segment_files import translate_errors
from headrace.consumers.sync.load import LoadOutcome, outcome_here
from headrace.consumers.sync.member_routes import LINKED_SERIES_SUFFIX, UPLOAD_SUFFIX
from headrace.consumers.sync.settings import SyncSettings
from headrace.schemas.errors import HeadraceError
from headrace.schemas.group_changes import GroupKey

MARKER_SUFFIX = ".sync"
READ_BYTES = 1 << 20
LOOK_S = 10.0
"""Between two looks at what is staged for one group."""
_LINK = re.compile(r"[0-9a-f]{1,64}")


class UploadsFull(HeadraceError):
    """The node takes no more files now."""


class UploadInvalid(HeadraceError):
    """Bytes that are not those of the file that was announced."""


class LinkMissing(HeadraceError):
    """A file that a receiver has linked into a directory which is not this one."""


@dataclass(frozen=True, slots=True)
class UploadRequest:
    """A file that a receiver sends: its group and slot, and what its bytes must be. Digests are xxh3-128 in hex.

    `identity` is that of its load, empty from a receiver of a build before.
    """

    group: GroupKey
    slot: int
    content_digest: str
    rows: int
    min_time_ns: int
    max_time_ns: int
    segment_bytes: int
    segment_digest: str
    series_bytes: int
    series_digest: str
    identity: bytes = b""

    @property
    def size_bytes(self) -> int:
        """Bytes of both parts."""
        return self.segment_bytes + self.series_bytes


class Uploads:
    """Owns the marked files of the staging directories. Safe to share between threads."""

    def __init__(self, node: str, groups: Mapping[str, Group], settings: SyncSettings) -> None:
        self._node = node
        self._groups = groups
        self.settings = settings
        self._lock = threading.Lock()
        self.placing = threading.Lock()
        """Held while a file gets its marker and its names, and while a look compares both."""
        self._open: dict[int, UploadRequest] = {}
        self._number = 0
        self._staged: dict[str, tuple[float, int]] = {}
        self.taken = 0
        self.refused = 0

    @property
    def open_uploads(self) -> int:
        """Files that are being taken."""
        return len(self._open)

    @property
    def staged_bytes(self) -> int:
        """Bytes of files that are being taken, or wait for their load."""
        present = {each.key for each in list(self._groups.values())}
        with self._lock:
            # The directory of a group that has left has gone with it.
            self._staged = {key: found for key, found in self._staged.items() if key in present}
            opened = sum(each.size_bytes for each in self._open.values())
            return opened + sum(size for _, size in self._staged.values())

    def group(self, key: GroupKey, slot: int) -> Group:
        """The group that holds a slot here. Raises SlotNotHeld, CutRefused."""
        group = next((each for each in list(self._groups.values()) if each.birth_key == key), None)
        if group is None or slot in group.applied.changes.given:
            raise SlotNotHeld.of(key.group, self._node)
        if group.health.refuses(Use.QUORUM):
            raise CutRefused(f"group {group.name} has wrong data here", action="ask another member")
        return group

    def staging_directory(self, key: GroupKey) -> Path:
        """Where receivers on this machine may link files of a group, made if it is missing. Raises SlotNotHeld."""
        group = next((each for each in list(self._groups.values()) if each.birth_key == key), None)
        if group is None:
            raise SlotNotHeld.of(key.group, self._node)
        return create_directories(group.store.staging_directory)

    def begin(self, request: UploadRequest, linked: str = "") -> Upload | None:
        """Take a file, that of a link if it has a name; None if it is here, or was loaded before.

        Raises SlotNotHeld, CutRefused, UploadsFull, LinkMissing, StoreFull, StoreUnwritable.
        """
        group = self.group(request.group, request.slot)
        if self.is_staged(group, request.content_digest, request.segment_digest) or _was_loaded(group, request):
            return None
        if self._lacks_room(group, request.size_bytes):
            # Loads have attached some of it since the newest looks.
            self._look_again(group)
            self._look_at_others()
        lacks_room, used = self._lacks_room(group, request.size_bytes), self.staged_bytes
        with self._lock:
            if len(self._open) >= self.settings.uploads_max or lacks_room:
                self.refused += 1
                raise UploadsFull(
                    f"{len(self._open)} uploads are open at {self._node}, and files of {used} bytes wait for their load",
                    action="try again in a moment",
                    retriable=True,
                )
            self._number += 1
            number = self._number
            self._open[number] = request
        try:
            return Upload(self, number, request, group, linked)
        except BaseException:
            self.end(number)
            raise

    def _lacks_room(self, group: Group, size_bytes: int) -> bool:
        """Whether a file is too much for the node, or for the part of the limit that each group has.

        Files of a group whose leader has a full disk wait at the others, and must not keep out those of other groups.
        """
        limit, used = self.settings.upload_mb_max * 1_000_000, self.staged_bytes
        with self._lock:
            mine = sum(each.size_bytes for each in self._open.values() if each.group == group.birth_key)
            mine += self._staged.get(group.key, (0.0, 0))[1]
        # One file is taken however large it is, if nothing else waits: else it would never be.
        parts = (used, limit), (mine, limit // max(1, len(self._groups)))
        return any(before and before + size_bytes > most for before, most in parts)

    def is_staged(self, group: Group, content_digest: str, segment_digest: str) -> bool:
        """Whether the very file is staged, verified and durable."""
        segment, series = (group.store.staging_directory / name for name in staged_names(content_digest))
        try:
            return segment.exists() and SeriesFile.from_bytes(series.read_bytes()).file_digest == segment_digest
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def end(self, number: int) -> None:
        """An upload has ended."""
        with self._lock:
            self._open.pop(number, None)

    def note_taken(self, group: Group, size_bytes: int) -> None:
        """A file was staged."""
        self.taken += 1
        with self._lock:
            look_at_s, before = self._staged.get(group.key, (0.0, 0))
            self._staged[group.key] = look_at_s, before + size_bytes

    def keeps(self, group: Group) -> bool:
        """Whether files are staged that a load may still name; others are removed here when they are too old."""
        with self._lock:
            if any(each.group == group.birth_key for each in self._open.values()):
                return True
            look_at_s, size = self._staged.get(group.key, (0.0, 0))
            if time.monotonic() < look_at_s:
                return size > 0
        return self._look_again(group) > 0

    def _look_at_others(self) -> None:
        """Look where a look is due: nobody asks for a while whether the files of a group that awaits some are kept."""
        now_s = time.monotonic()
        for group in list(self._groups.values()):
            with self._lock:
                due = self._staged.get(group.key, (now_s, 0))[0] < now_s
            if due:
                self._look_again(group)

    def _look_again(self, group: Group) -> int:
        size = self._look(group.store.staging_directory)
        with self._lock:
            self._staged[group.key] = time.monotonic() + LOOK_S, size
        return size

    def _look(self, staging: Path) -> int:
        """Bytes of the marked files of a directory, without those that are too old or were loaded."""
        total, oldest_s = 0, time.time() - self.settings.staged_age_s
        try:
            names = sorted(os.listdir(staging))
        except OSError:
            return 0
        for name in names:
            path = staging / name
            try:
                if name.endswith(UPLOAD_SUFFIX) and path.stat().st_mtime < oldest_s:
                    path.unlink()
                if not name.endswith(MARKER_SUFFIX):
                    continue
                parts = [staging / each for each in staged_names(name.removesuffix(MARKER_SUFFIX))]
                with self.placing:
                    if not all(each.exists() for each in parts):
                        # Its load has attached it.
                        path.unlink()
                    elif path.stat().st_mtime < oldest_s:
                        for each in (path, *parts):
                            each.unlink(missing_ok=True)
                    else:
                        total += sum(each.stat().st_size for each in parts)
            except OSError:
                continue
        return total


def _was_loaded(group: Group, request: UploadRequest) -> bool:
    """Whether a file that comes again is in the catalogue, or was: nothing would take it out of the staging directory."""
    if outcome_here(request.identity, group) is not LoadOutcome.APPLIED:
        return False
    return not group.store.awaits(request.content_digest)


class Upload:
    """One file that is being taken: `write` all its bytes unless it is linked, `finish`, and `abort` in every case."""

    def __init__(self, uploads: Uploads, number: int, request: UploadRequest, group: Group, linked: str = "") -> None:
        """Raises LinkMissing, StoreFull or StoreUnwritable."""
        self._uploads = uploads
        self._number = number
        self._request = request
        self._group = group
        self._staging = group.store.staging_directory
        self._written = 0
        self._digests = xxhash.xxh3_128(), xxhash.xxh3_128()
        self._series = bytearray()
        self._linked = bool(linked)
        name = linked or f"{request.content_digest}.{number}"
        self._path = self._staging / f"{name}{UPLOAD_SUFFIX}"
        self._series_path = self._staging / f"{name}{LINKED_SERIES_SUFFIX}"
        if linked and not (_LINK.fullmatch(linked) and self._path.is_file() and self._series_path.is_file()):
            raise LinkMissing(f"{self._staging} has no file {linked}", action="send its bytes")
        with translate_errors(self._path):
            create_directories(self._staging)
            self._data = None if linked else self._path.open("wb")

    def write(self, data: bytes) -> None:
        """The next bytes: those of the segment, then those of its series.

        Raises UploadInvalid, StoreFull, StoreUnwritable.
        """
        request = self._request
        split = max(0, min(len(data), request.segment_bytes - self._written))
        self._written += len(data)
        if self._written > request.size_bytes:
            raise UploadInvalid(f"more than {request.size_bytes} bytes were sent")
        head, tail = memoryview(data)[:split], memoryview(data)[split:]
        self._digests[0].update(head)
        self._digests[1].update(tail)
        self._series += tail
        assert self._data is not None, "a linked file is not written"
        with translate_errors(self._path):
            self._data.write(head)

    def finish(self) -> None:
        """Verify, and make durable. Raises UploadInvalid, StoreFull, StoreUnwritable."""
        request = self._request
        if self._linked:
            self._read_linked()
        found = [each.hexdigest() for each in self._digests]
        if self._written != request.size_bytes or found != [request.segment_digest, request.series_digest]:
            raise UploadInvalid("the bytes are not those of the digests", retriable=True)
        with translate_errors(self._path):
            if self._data is not None:
                self._data.flush()
            self._check_content()
            if _was_loaded(self._group, request):
                # Meanwhile: this member has fetched it from another one.
                return
            fsync_file(self._path)
            segment, series = (self._staging / name for name in staged_names(request.content_digest))
            marker = self._staging / (request.content_digest + MARKER_SUFFIX)
            if not self._linked:
                self._series_path.write_bytes(self._series)
            fsync_file(self._series_path)
            with self._uploads.placing:
                # First: without it the staged file would be swept away. Alone, it would be taken for that of a loaded one.
                marker.touch()
                os.rename(self._series_path, series)
                # Last: with its segment the staged file is complete.
                os.rename(self._path, segment)
            fsync_directory(self._staging)
        self._group.store.note_verified(request.content_digest)
        self._uploads.note_taken(self._group, request.size_bytes)

    def abort(self) -> None:
        """End it: what is not finished is removed."""
        try:
            # Closing writes what is buffered, which a full disk refuses once more: it counts no more.
            with suppress(OSError):
                if self._data is not None:
                    self._data.close()
            self._path.unlink(missing_ok=True)
            self._series_path.unlink(missing_ok=True)
        finally:
            self._uploads.end(self._number)

    def _read_linked(self) -> None:
        """Hash what was linked: what counts are the bytes that are here."""
        buffer = memoryview(bytearray(READ_BYTES))
        with translate_errors(self._path):
            self._series += self._series_path.read_bytes()
            with self._path.open("rb") as data:
                while size := data.readinto(buffer):
                    self._digests[0].update(buffer[:size])
                    self._written += size
        self._digests[1].update(self._series)
        self._written += len(self._series)

    def _check_content(self) -> None:
        request = self._request
        try:
            series = SeriesFile.from_bytes(bytes(self._series))
            runs = Runs.from_bytes(series.runs)
            times = (int(runs.first_ns.min()), int(runs.last_ns.max()), int(runs.lengths.sum()))
            footer = pq.read_metadata(self._path)
            written = (footer.metadata or {}).get(f"{METADATA_PREFIX}content_digest".encode(), b"").decode()
        except (pa.ArrowException, OSError, ValueError, KeyError, TypeError) as error:
            raise UploadInvalid(f"the file is no segment: {error!r}") from error
        same_rows = (
            times == (request.min_time_ns, request.max_time_ns, request.rows) and footer.num_rows == request.rows
        )
        same = {series.content_digest, written} == {
            request.content_digest
        } and series.file_digest == request.segment_digest
        if not same_rows or not same:
            raise UploadInvalid("the file is another one than was announced")
