"""The disk of one node: the file layer of the write-ahead log, and what the model store has committed."""

from __future__ import annotations

import errno
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from headrace.connectors.files import Buffer
from headrace.consumers.replication.group_state import GroupState
from tests.sim.world import Crash
from tests.unit.wal.disk import Inode, SimulatedDisk


@lru_cache(maxsize=1_024)
def sealed_state(state: bytes | None) -> GroupState:
    """The group state in an index, of which nothing may be changed."""
    return GroupState.from_bytes(state) if state else GroupState()


@dataclass(slots=True)
class SealedRows:
    """What the index and the segments of a group hold: all of it changes in one synced batch."""

    state: bytes | None = None
    frontier: int = 0
    segments: dict[str, dict[int, int]] = field(default_factory=dict)
    rotten: set[str] = field(default_factory=set)
    tampered: bool = False
    # The newest Drop or merge that left rows out: files may be ahead of their state by it.
    ahead_version: int = 0

    def copy(self) -> SealedRows:
        """The same segments; what is in one never changes."""
        return SealedRows(
            self.state, self.frontier, dict(self.segments), set(self.rotten), self.tampered, self.ahead_version
        )


class SimDisk(SimulatedDisk):
    """Files in memory that a kill keeps and a power loss cuts; `step` is called at every operation.

    `full`: no byte can be added; `full_after` is how many writes from now on still can. `sealed`, `copy` and
    `identity` are the store, a verified copy that waits for its swap, and the document of the directory.
    """

    def __init__(self, step: Callable[[str], None]) -> None:
        super().__init__()
        self.step_hook = step
        self.full = False
        self.full_after: int | None = None
        self.sealed = SealedRows()
        self.copy_committed: SealedRows | None = None
        self.identity: dict[str, Any] | None = None
        self.wiped_ms = -1_000_000

    def restarted(self, *, power_loss: bool, any_sectors: bool = False) -> SimDisk:
        """What the next start of the process finds."""
        left = self.crash(any_sectors=any_sectors) if power_loss else self.kill()
        after = SimDisk(self.step_hook)
        after.random = self.random
        after.names_seen, after.names_durable = left.names_seen, left.names_durable
        after.names_pending = left.names_pending
        after.full, after.full_after, after.wiped_ms = self.full, self.full_after, self.wiped_ms
        after.sealed, after.copy_committed, after.identity = self.sealed, self.copy_committed, self.identity
        return after

    def restarted_image(self) -> SimDisk:
        """What the next start of the process would find, without ending it."""
        image = SimDisk(lambda _name: None)
        for name, inode in self.names_seen.items():
            image.names_seen[name] = Inode(bytearray(inode.seen), bytearray(inode.seen))
        image.names_durable = dict(image.names_seen)
        image.sealed = self.sealed
        return image

    def power_loss_image(self) -> SimDisk:
        """What a power loss at this moment would certainly leave, without losing it."""
        image = SimDisk(lambda _name: None)
        for name, inode in self.names_durable.items():
            image.names_seen[name] = Inode(bytearray(inode.durable), bytearray(inode.durable))
        image.names_durable = dict(image.names_seen)
        image.sealed = self.sealed
        return image

    def take_space(self) -> None:
        """One more write. Raises OSError on a full disk."""
        if self.full_after is not None:
            self.full_after -= 1
            if self.full_after < 0:
                self.full, self.full_after = True, None
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")

    def _count(self, operation: str) -> None:
        self.step_hook(operation)
        # The process was killed inside this step: its successor has the disk.
        if self.crashed:
            raise Crash
        super()._count(operation)

    def write(self, descriptor: int, buffers: Sequence[Buffer], offset: int) -> int:
        """See FileLayer."""
        self.take_space()
        return super().write(descriptor, buffers, offset)

    def create(self, path: Path) -> int:
        """See FileLayer."""
        self.take_space()
        return super().create(path)

    def reserve(self, descriptor: int, offset: int, length: int) -> None:
        """See FileLayer; nothing is reserved, or each journal would be a megabyte of zeros."""
