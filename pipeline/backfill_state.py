"""What earlier runs of a backfill have written: one line of JSON for each file that was begun or finished."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from headrace.connectors.files import DirectoryLock, create_directories, fsync_directory
from headrace.schemas.errors import HeadraceError

STATE_FILE = "files.jsonl"


class StateDamaged(HeadraceError):
    """The file of a backfill's progress has a line that is none of ours."""


@dataclass(frozen=True, slots=True)
class FileState:
    """By what a changed file is recognised without reading it."""

    size: int
    mtime_ns: int


@dataclass(frozen=True, slots=True)
class Known:
    """A file that an earlier run began (`digest` is empty) or finished."""

    state: FileState
    batch: int
    digest: str = ""

    @property
    def done(self) -> bool:
        """Whether all of it was written."""
        return bool(self.digest)


class BackfillState:
    """The progress of one table, in a directory that one process holds. Files of other jobs do not count.

    `key` names the cluster and the job: a cluster that was made again has none of the rows.
    """

    def __init__(self, directory: Path, key: str) -> None:
        """Raises DirectoryHeld, StateDamaged."""
        self.directory = create_directories(directory)
        self._key = key
        self._lock = DirectoryLock(directory, purpose="backfill")
        self._known: dict[str, Known] = {}
        try:
            self._file = os.open(directory / STATE_FILE, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
            fsync_directory(directory)
            os.lseek(self._file, self._read(directory / STATE_FILE), os.SEEK_SET)
        except BaseException:
            self._lock.release()
            raise

    def known(self, path: str) -> Known | None:
        """What is known of a file; None for a new one."""
        return self._known.get(path)

    def note(self, files: Iterable[tuple[str, Known]]) -> None:
        """Record files durably, all or none of them."""
        lines, noted = [], dict(files)
        for path, known in noted.items():
            size, mtime_ns = known.state.size, known.state.mtime_ns
            entry = {"file": path, "key": self._key, "size": size, "mtime_ns": mtime_ns, "batch": known.batch}
            lines.append(json.dumps({**entry, "digest": known.digest}) + "\n")
        data, end = memoryview("".join(lines).encode()), os.lseek(self._file, 0, os.SEEK_CUR)
        try:
            while data:
                data = data[os.write(self._file, data) :]
        except OSError as error:
            # A full disk takes a part of a line. Another thread may write the next one behind it.
            os.ftruncate(self._file, end)
            os.lseek(self._file, end, os.SEEK_SET)
            raise OSError(error.errno, error.strerror, str(self.directory / STATE_FILE)) from error
        os.fsync(self._file)
        self._known.update(noted)

    def close(self) -> None:
        """Release the directory."""
        os.close(self._file)
        self._lock.release()

    def _read(self, path: Path) -> int:
        """Read all lines; returns where the next one goes. A last line without its end was never complete."""
        data = path.read_bytes()
        end = data.rfind(b"\n") + 1
        os.ftruncate(self._file, end)
        for number, line in enumerate(data[:end].splitlines(), 1):
            try:
                entry = json.loads(line)
                known = Known(FileState(entry["size"], entry["mtime_ns"]), entry["batch"], entry["digest"])
                name, key = entry["file"], entry["key"]
            except (ValueError, KeyError, TypeError) as error:
                raise StateDamaged(
                    f"line {number} of {path} is damaged", action="remove the file: writing the files again is safe"
                ) from error
            if key == self._key:
                self._known[name] = known
        return end

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
