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

from headrace.connectors.files import create_directories
from headrace.schemas.errors import HeadraceError

PLACE = b"p"
WRITE_BUFFER_BYTES = 8 << 20
OPEN_FILES_MAX = 64


class ViewUnwritable(HeadraceError):
    """A view that cannot be opened or written."""


class ViewDatabase:
    """Owns `directory`. `next` is the offset behind the records that were taken. One thread at a time."""

    def __init__(self, directory: Path, topic_id: str) -> None:
        """Raises ViewUnwritable."""
        self._directory = create_directories(directory)
        self._topic_id = topic_id
        self._open()
        value = self._database.get(PLACE)
        place = {} if value is None else json.loads(value)
        if value is not None and place["topic_id"] != topic_id:
            self._database.close()
            shutil.rmtree(directory)
            create_directories(directory)
            self._open()
            place = {}
        self.next = int(place.get("next", 0))

    def get(self, keys: Sequence[bytes]) -> list[bytes | None]:
        """The values of keys."""
        # One call for all: each call holds the interpreter lock.
        found: list[bytes | None] = self._database.get(list(keys)) if keys else []  # type: ignore[assignment]
        return found

    def items(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        """What has keys that begin with a prefix, without it, in order."""
        items: Iterator[tuple[bytes, bytes]] = self._database.items(from_key=prefix)  # type: ignore[assignment]
        for key, value in items:
            if not key.startswith(prefix):
                return
            yield key[len(prefix) :], value

    def put(self, values: Mapping[bytes, bytes], following: int) -> None:
        """Set values; the next record is at `following`. Raises ViewUnwritable."""
        batch = WriteBatch(raw_mode=True)
        for key, value in values.items():
            batch.put(key, value)
        batch.put(PLACE, json.dumps({"topic_id": self._topic_id, "next": following}).encode())
        try:
            self._database.write(batch)
        # rocksdict raises a bare Exception for every condition, and refuses every write after a failed one.
        except Exception as error:
            with contextlib.suppress(Exception):
                self._database.close()
            self._open()
            raise ViewUnwritable(
                f"{self._directory} cannot be written: {error}", action="check the disk", retriable=True
            ) from error
        self.next = following

    def close(self) -> None:
        """Release the directory."""
        self._database.close()

    def _open(self) -> None:
        options = Options(raw_mode=True)
        options.create_if_missing(True)
        options.set_write_buffer_size(WRITE_BUFFER_BYTES)
        options.set_max_open_files(OPEN_FILES_MAX)
        options.set_max_background_jobs(1)
        options.set_keep_log_file_num(2)
        options.set_stats_dump_period_sec(0)
        try:
            self._database = Rdict(str(self._directory), options)
        except Exception as error:
            if "Corruption" not in str(error):
                raise ViewUnwritable(f"{self._directory} cannot be opened: {error}", action="check the disk") from error
            # Everything in it is in the topic.
            shutil.rmtree(self._directory)
            create_directories(self._directory)
            self._database = Rdict(str(self._directory), options)
