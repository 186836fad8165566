"""Segment files of one store: their names, durable writes, pins of readers, and removal.

A segment is `{database}/{table}/{slice}-{bucket}/{era}-{first}-{last}.parquet`, relative to the segments of
its group. The era has 6 digits and the versions have 15, so of two files in one directory the later name has
the higher ranks. A file of a sync sender has `_{order}` behind its version (see
headrace.consumers.store.synced). A file that was rewritten over the same ranks ends in `-{generation}`; the
catalogue never names both. Characters of database and table names that a file system, a glob or Spark would
interpret are percent-encoded.
"""

from __future__ import annotations

import errno
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

import pyarrow as pa
import xxhash

from headrace.connectors.files import PARTIAL_SUFFIX, fsync_directory, fsync_file, sync_together
from headrace.consumers.store.store_errors import StoreError, StoreFull, StoreRetired, StoreUnwritable

SEGMENT_SUFFIX = ".parquet"
COMPONENT_BYTES_MAX = 200
"""File systems allow 255 bytes; the rest is room for suffixes."""
DIGEST_CHUNK_BYTES = 1 << 20
PATH_COMPONENTS_KEPT_MAX = 1_024
_INDEX = "index"
"""The name that readers of the index hold; no segment has it."""
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_UNREADABLE = (errno.EIO, errno.ENOENT, errno.EUCLEAN, errno.EBADMSG)


@dataclass(frozen=True, slots=True, order=True)
class SegmentName:
    """The location of a segment's rows and the ranks that it holds; versions are both included."""

    database: str
    table: str
    slice_number: int
    bucket: int
    era: int
    first_version: int
    last_version: int
    order: str = ""
    generation: int = 0

    @property
    def directory(self) -> str:
        """Directory of the segment, relative to the segments of its group."""
        return f"{path_component(self.database)}/{path_component(self.table)}/{self.slice_number}-{self.bucket}"

    @property
    def relative(self) -> str:
        """Path of the segment, relative to the segments of its group; this is its name in the catalogue."""
        generation = f"-{self.generation}" if self.generation else ""
        ranks = f"{self.era:06}-{self.first_version:015}-{self.last_version:015}"
        # The underscore is above the dot of the suffix: a file with an order is above one of its version without.
        order = f"_{self.order}" if self.order else ""
        return f"{self.directory}/{ranks}{order}{generation}{SEGMENT_SUFFIX}"


class SegmentFiles:
    """Owns every file below `root`, named by its path relative to it. Thread-safe.

    A removed file that a reader has pinned stays on disk until its last pin is released. After a crash it is
    an orphan, which opening removes.
    """

    def __init__(self, root: Path) -> None:
        """`root` exists."""
        self.root = root
        self._lock = threading.Lock()
        # Held by whoever takes a name, or unlinks a file that was pinned; before the other lock.
        self._naming = threading.Lock()
        self._pins: Counter[str] = Counter()
        self._obsolete: set[str] = set()
        # The directories whose names are durable.
        self._durable: set[str] = set()
        self._retired = False

    def path(self, name: str) -> Path:
        """Absolute path of a file."""
        return self.root / name

    def write(self, name: str, data: pa.Buffer) -> None:
        """Creates or replaces a file. Its bytes are durable on return, its name after `sync_directories`.

        Raises StoreFull or StoreUnwritable.
        """
        self.stage(name, data)
        try:
            self.finish([name])
        except BaseException:
            self.discard([name])
            raise

    def stage(self, name: str, data: pa.Buffer) -> None:
        """Writes the bytes of a file, which are durable and have their name after `finish`.

        Raises StoreFull or StoreUnwritable, and then leaves nothing.
        """
        partial = self._partial(name)
        self._take(name)
        with translate_errors(self.path(name)):
            partial.parent.mkdir(parents=True, exist_ok=True)
            try:
                _write(partial, data)
            except BaseException:
                partial.unlink(missing_ok=True)
                raise

    def finish(self, names: Sequence[str]) -> None:
        """Makes staged files durable and gives them their names, which are durable after `sync_directories`.

        Raises StoreFull or StoreUnwritable: `discard` what is not finished then, and stage it again.
        """
        # Bytes before the name: a crash must not leave the final name on a file with missing pages. Opening trusts the
        # size of a file and does not read it. All at once: file systems write down many files with one commit of
        # their journal, for which every other writer of that disk waits.
        sync_together(self._sync, names)
        for name in names:
            with translate_errors(self.path(name)):
                os.rename(self._partial(name), self.path(name))

    def _sync(self, name: str) -> None:
        with translate_errors(self.path(name)):
            fsync_file(self._partial(name))

    def discard(self, names: Iterable[str]) -> None:
        """Removes staged files. After a failed sync they must be written again: their pages count as clean."""
        for name in names:
            self._partial(name).unlink(missing_ok=True)

    def _partial(self, name: str) -> Path:
        target = self.path(name)
        return target.with_name(target.name + PARTIAL_SUFFIX)

    def prepare(self, name: str) -> None:
        """Makes the directory of a file that may come. Raises StoreFull or StoreUnwritable."""
        target = self.path(name)
        with translate_errors(target):
            target.parent.mkdir(parents=True, exist_ok=True)

    def link(self, name: str, source: Path, *, synced: bool = False) -> None:
        """Links a file of the same file system under a name that no reader knows.

        Its bytes are durable on return, its name after `sync_directories`. `synced`: the caller has made the bytes
        durable. Raises StoreFull or StoreUnwritable.
        """
        target = self.path(name)
        self._take(name)
        with translate_errors(target):
            # Bytes before the name, as in `write`: whoever staged the file may not have synced it.
            if not synced:
                fsync_file(source)
            # The directory mostly exists, and a load links hundreds of files: it is made when the link fails.
            try:
                os.link(source, target)
            except FileNotFoundError:
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(source, target)
            except FileExistsError:
                self._replace(name, source)

    def _replace(self, name: str, source: Path) -> None:
        """Link a file under the name of an earlier attempt, which failed behind the link."""
        # Its commit may be durable all the same: so at no time is there no file of that name.
        if not self.path(name).samefile(source):
            partial = self._partial(name)
            partial.unlink(missing_ok=True)
            os.link(source, partial)
            os.rename(partial, self.path(name))

    def _take(self, name: str) -> None:
        # A slot that comes back brings the file that a reader has pinned since before it left. Its end must not unlink
        # the name, which is no longer that of a removed file.
        with self._naming, self._lock:
            self._obsolete.discard(name)

    def sync_directories(self, names: Iterable[str]) -> None:
        """Makes the names of files, and of the directories above them up to the root, durable."""
        # Once for all files of a seal, since most share a few directories. The call must come before the
        # index commit: the catalogue must never name a file that a crash can lose.
        changed = {os.path.dirname(name) for name in names}
        named = set[str]()
        for directory in changed:
            # A directory is created once and stays: its own name was durable when it was synced before. What is above
            # it is known then, up to the root, whose name is empty.
            while directory and directory not in self._durable and directory not in named:
                named.add(directory)
                directory = os.path.dirname(directory)
        with translate_errors(self.root):
            directories = sorted(changed | {os.path.dirname(each) for each in named}, reverse=True)
            sync_together(lambda directory: fsync_directory(self.path(directory)), directories)
        self._durable |= named

    def pin(self, names: Iterable[str]) -> None:
        """Keeps files on disk until as many `release` calls. Raises StoreRetired after `retire`."""
        with self._lock:
            if self._retired:
                raise StoreRetired(f"{self.root.name} has left this node", action="ask another node", retriable=True)
            self._pins.update(names)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the store open meanwhile, as a pin does, for a reader of its index. Raises StoreRetired."""
        self.pin((_INDEX,))
        try:
            yield
        finally:
            self.release((_INDEX,))

    def retire(self) -> bool:
        """Whether no reader has a pin; none gets one from then on."""
        # In one step: a reader that comes between the two would lose its files while it reads them.
        with self._lock:
            self._retired = self._retired or not any(pins > 0 for pins in self._pins.values())
            return self._retired

    def pinned(self) -> frozenset[str]:
        """The names of all files that a reader has pinned."""
        with self._lock:
            return frozenset(name for name, pins in self._pins.items() if pins > 0)

    def release(self, names: Iterable[str]) -> None:
        """Releases pins; unlinks the files that were removed while pinned."""
        with self._lock:
            self._pins.subtract(names)
            unpinned = [name for name in names if self._pins[name] <= 0]
            for name in unpinned:
                del self._pins[name]
            removable = self._obsolete.intersection(unpinned)
        if not removable:
            return
        with self._naming:
            with self._lock:
                # Looked at again: a name may have been taken, or a reader may have come, meanwhile.
                removable = {name for name in removable & self._obsolete if not self._pins[name]}
                self._obsolete -= removable
            # Outside the lock of readers, who must not wait for the file system.
            self._unlink(removable)

    def remove(self, names: Iterable[str]) -> None:
        """Unlinks files that the catalogue no longer names, now or when their last pin is released."""
        with self._lock:
            pinned = {name for name in names if self._pins[name] > 0}
            self._obsolete |= pinned
            unpinned = set(names) - pinned
        self._unlink(unpinned)

    def is_obsolete(self, name: str) -> bool:
        """Whether a file that a reader has pinned was removed."""
        with self._lock:
            return name in self._obsolete

    def purge_obsolete(self) -> None:
        """Unlinks every removed file, pinned or not: for closing, when no reader is left."""
        with self._lock:
            removable, self._obsolete = self._obsolete, set()
        self._unlink(removable)

    def digest(self, name: str, on_bytes: Callable[[int], None]) -> str:
        """xxh3-128 of a file's bytes in hex; empty when the disk cannot read them."""
        return file_digest(self.path(name), on_bytes)

    def list_files(self) -> Iterator[tuple[str, int]]:
        """Name and size in bytes of every file below the root."""
        for directory, _, names in os.walk(self.root):
            for name in names:
                path = Path(directory, name)
                yield str(path.relative_to(self.root)), path.stat().st_size

    def _unlink(self, names: Iterable[str]) -> None:
        for name in names:
            # A file that cannot be unlinked now (the disk became
            # read-only) is an orphan; the next opening removes it.
            try:
                self.path(name).unlink(missing_ok=True)
            except OSError:
                continue


def file_digest(path: Path, on_bytes: Callable[[int], None] = lambda _size: None) -> str:
    """xxh3-128 of a file's bytes in hex; empty when the disk cannot read them."""
    digest = xxhash.xxh3_128()
    try:
        with path.open("rb") as data:
            while chunk := data.read(DIGEST_CHUNK_BYTES):
                digest.update(chunk)
                on_bytes(len(chunk))
    except OSError as error:
        # A bad sector or a missing file is what the scrubber
        # looks for: a wrong digest, not an operating error.
        if error.errno in _UNREADABLE:
            return ""
        raise store_error(error, path) from error
    return digest.hexdigest()


# A seal names thousands of files of a few tables.
@lru_cache(PATH_COMPONENTS_KEPT_MAX)
def path_component(name: str) -> str:
    """`name` as one path component: unique, of limited length, without glob or hidden-file characters."""
    encoded = "".join(character if ord(character) > 0x7F else _encode_ascii(character) for character in name)
    # Spark and Hive skip files and directories that begin with a dot or an underscore.
    if encoded[:1] in "._":
        encoded = f"%{ord(encoded[0]):02X}{encoded[1:]}"
    if len(encoded.encode()) <= COMPONENT_BYTES_MAX:
        return encoded
    head = encoded.encode()[:150].decode(errors="ignore")
    return f"{head}~{xxhash.xxh3_128_hexdigest(name.encode())}"


@contextmanager
def translate_errors(path: Path) -> Iterator[None]:
    """Raises StoreFull or StoreUnwritable that names `path` in place of an OSError."""
    try:
        yield
    except OSError as error:
        raise store_error(error, path) from error


def store_error(error: OSError, path: Path) -> StoreError:
    """The store's exception for an operating system error."""
    if error.errno in _DISK_FULL:
        return StoreFull(f"{path} cannot be written: {error.strerror}")
    return StoreUnwritable(
        f"{path} cannot be written: {error}", action="check the disk and the permissions of the data directory"
    )


def _write(path: Path, data: pa.Buffer) -> None:
    # Truncated: what a crash has left under this name is no beginning of this file.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
    finally:
        os.close(descriptor)


def _encode_ascii(character: str) -> str:
    # `~` separates the hash of a shortened name, so it must not occur in an encoded one.
    return f"%{ord(character):02X}" if character == "~" else quote(character, safe="")
