"""Directories that others read over a network for a while: each ends when it is released, or was not used for long."""

from __future__ import annotations

import math
import os
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

CHUNK_BYTES = 1 << 20
"""Each chunk costs a switch between event loop and thread, so it is larger than a read of the receiver."""
Content = TypeVar("Content")


@dataclass(slots=True)
class _Entry(Generic[Content]):
    content: Content
    used_s: float


class ExpiringDirectories(Generic[Content]):
    """Owns `root`, with a directory for each name. Safe for any thread."""

    def __init__(self, root: Path, count_max: int, idle_timeout_s: float) -> None:
        """Deletes those of an earlier process: whoever read them begins again."""
        self.root = root
        shutil.rmtree(root, ignore_errors=True)
        self._count_max = count_max
        self._idle_timeout_s = idle_timeout_s
        self._lock = threading.Lock()
        self._entries: dict[str, _Entry[Content]] = {}

    def begin(self, content: Content) -> str | None:
        """The name of a new one, which its caller makes; None when there are as many as may be."""
        self.expire()
        with self._lock:
            # Making one takes long, so it happens outside the lock. Its entry is added first, or several callers could
            # pass the limit together.
            if len(self._entries) >= self._count_max:
                return None
            name = uuid.uuid4().hex
            # Nobody reads it yet, so it is not idle, however long a busy machine takes.
            self._entries[name] = _Entry(content, math.inf)
        return name

    def finish(self, name: str, content: Content) -> None:
        """It is made, and has this content; from now on it may expire."""
        with self._lock:
            self._entries[name] = _Entry(content, time.monotonic())

    def items(self) -> list[tuple[str, Content]]:
        """Every name with its content."""
        with self._lock:
            return [(name, entry.content) for name, entry in self._entries.items()]

    def use(self, name: str) -> Content | None:
        """The content of one that somebody still needs; None if there is none of that name."""
        with self._lock:
            entry = self._entries.get(name)
            if entry is None:
                return None
            entry.used_s = max(entry.used_s, time.monotonic())
            return entry.content

    def read(self, name: str, path: str, offset: int, size: int) -> Iterator[bytes]:
        """The bytes of a file from an offset up to `size`. `path` is one that the caller knows to be in it."""
        descriptor = os.open(self.root / name / path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            while offset < size and (chunk := os.pread(descriptor, min(CHUNK_BYTES, size - offset), offset)):
                # A file of many gigabytes takes longer than the idle time, so each chunk counts as use.
                self.use(name)
                yield chunk
                offset += len(chunk)
        finally:
            os.close(descriptor)

    def release(self, name: str) -> None:
        """Delete one, if it exists."""
        with self._lock:
            known = self._entries.pop(name, None)
        if known is not None:
            shutil.rmtree(self.root / name, ignore_errors=True)

    def expire(self) -> None:
        """Delete those that were not used for a while: their readers are gone."""
        now_s = time.monotonic()
        with self._lock:
            idle = [name for name, entry in self._entries.items() if now_s - entry.used_s > self._idle_timeout_s]
        for name in idle:
            self.release(name)
