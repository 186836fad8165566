"""A view of a topic in a RocksDB: rebuilt when it is missing, damaged, or of another topic.

The effect of records and the offset behind them (key `p`: JSON {"topic_id", "next"}) are one write. It is not synced: a
crash takes the newest writes back, with their offset, and those records are read again.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from rocksdict import Options, Rdict, WriteBatch

from headrace.connectors.files import create_directories, has_no_space
from headrace.schemas.errors import HeadraceError

PLACE = b"p"
WRITE_BUFFER_BYTES = 8 << 20
OPEN_FILES_MAX = 64


class ViewUnwritable(HeadraceError):
    """A view that cannot be opened or written."""


class ViewDiskFull(ViewUnwritable):
    """A view whose disk has no space left; the same work is done again once there is some."""


class ViewDatabase:
    """Owns `directory`. One thread at a time."""

    def __init__(self, directory: Path, topic_id: str) -> None:
        """Raises ViewUnwritable."""
        self._directory = create_directories(directory)
        self._topic_id = topic_id
        self._open: Rdict | None = None
        """None behind a failed write, until the next use."""
        self._next = 0
        self._opened()

    @property
    def next(self) -> int:
        """The offset behind the records that were taken. Raises ViewUnwritable behind a failed write."""
        self._opened()
        return self._next

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of keys. Raises ViewUnwritable behind a failed write."""
        # One call for all: each call holds the interpreter lock.
        found: list[bytes | None] = self._opened().get(list(keys)) if keys else []  # type: ignore[assignment]
        return found

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """What has keys that begin with a prefix, without it, in order. Raises ViewUnwritable behind a failed write."""
        items: Iterator[tuple[bytes, bytes]] = self._opened().items(from_key=prefix)  # type: ignore[assignment]
        for key, value in items:
            if not key.startswith(prefix):
                return
            yield key[len(prefix) :], value

    def put(self, values: Mapping[bytes, bytes], following: int) -> None:
        """Set values; the next record is at `following`. Raises ViewUnwritable: read again from `next` then."""
        batch = WriteBatch(raw_mode=True)
        for key, value in values.items():
            batch.put(key, value)
        batch.put(PLACE, json.dumps({"topic_id": self._topic_id, "next": following}).encode())
        database = self._opened()
        try:
            database.write(batch)
        # rocksdict raises a bare Exception for every condition, and refuses every write after a failed one.
        except Exception as error:
            self._open = None
            with contextlib.suppress(Exception):
                database.close()
            raise _unwritable(f"{self._directory} cannot be written", error) from error
        self._next = following

    def close(self) -> None:
        """Release the directory."""
        if self._open is not None:
            self._open.close()

    def _opened(self) -> Rdict:
        """The database, opened if need be. Raises ViewUnwritable."""
        if self._open is None:
            database = self._database()
            value = database.get(PLACE)
            if value is not None and json.loads(value)["topic_id"] != self._topic_id:
                database.close()
                self._clear()
                database, value = self._database(), None
            # Its newest writes may be gone with the one that failed.
            self._next = 0 if value is None else int(json.loads(value)["next"])
            self._open = database
        return self._open

    def _clear(self) -> None:
        # Everything in it is in the topic.
        shutil.rmtree(self._directory)
        create_directories(self._directory)

    def _database(self) -> Rdict:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(WRITE_BUFFER_BYTES)
        options.set_max_open_files(OPEN_FILES_MAX)
        options.set_max_background_jobs(1)
        options.set_keep_log_file_num(2)
        options.set_stats_dump_period_sec(0)
        try:
            return Rdict(str(self._directory), options)
        except Exception as error:
            if "Corruption" not in str(error):
                raise _unwritable(f"{self._directory} cannot be opened", error) from error
            self._clear()
            return Rdict(str(self._directory), options)


def _unwritable(what: str, error: Exception) -> ViewUnwritable:
    # rocksdict raises a bare Exception for every condition; only its text distinguishes them.
    message = f"{what}: {error}"
    if has_no_space(message):
        return ViewDiskFull(message, action="free disk space: the receiver waits for it", retriable=True)
    return ViewUnwritable(message, action="check the disk", retriable=True)
