"""Random numbers that depend on the seed, the table and the host, and on nothing else.

Hosts come in blocks of `BLOCK_HOSTS`; each block of each table has streams of its own, drawn step after step.
So a host's values are the same whatever the number of hosts, the steps drawn at once, or the tables asked
for.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

BLOCK_HOSTS = 16

Floats: TypeAlias = npt.NDArray[np.float64]


class Purpose(IntEnum):
    """What a stream is for. The numbers are part of every data set: they never change."""

    TAGS = 0
    START = 1
    UNIFORM = 2
    NORMAL = 3
    DISORDER_ENTRY = 4
    DISORDER_BATCH = 5


def generator(seed: int, table_id: int, purpose: Purpose, block: int = 0) -> np.random.Generator:
    """The stream of one purpose, for one table and one block of hosts."""
    # PCG64 by name: numpy may give `default_rng` another algorithm, and data sets must stay the same forever.
    sequence = np.random.SeedSequence(entropy=seed, spawn_key=(table_id, int(purpose), block))
    return np.random.Generator(np.random.PCG64(sequence))


def block_count(hosts: int) -> int:
    """How many blocks hold `hosts` hosts; the last one may be partly unused."""
    return -(-hosts // BLOCK_HOSTS)


class BlockStreams:
    """The streams of one purpose and table, one a block; draws are (steps, channels, padded hosts)."""

    def __init__(self, seed: int, table_id: int, purpose: Purpose, hosts: int, channels: int) -> None:
        self._channels = channels
        self._purpose = purpose
        blocks = block_count(hosts) if channels else 0
        self._generators = [generator(seed, table_id, purpose, block) for block in range(blocks)]
        self._padded_hosts = block_count(hosts) * BLOCK_HOSTS

    def draw(self, steps: int) -> Floats:
        """The next `steps` steps: standard normal for `NORMAL`, else uniform in [0, 1)."""
        drawn = np.empty((steps, self._channels, self._padded_hosts))
        shape = (steps, self._channels, BLOCK_HOSTS)
        # Whole blocks even for the last hosts: a host draws the same numbers however many hosts there are.
        for block, stream in enumerate(self._generators):
            values = stream.standard_normal(shape) if self._purpose is Purpose.NORMAL else stream.random(shape)
            drawn[:, :, block * BLOCK_HOSTS : (block + 1) * BLOCK_HOSTS] = values
        return drawn
