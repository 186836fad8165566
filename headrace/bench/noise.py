"""Incompressible rows for benchmarks of bytes on disk: 10 random float64 fields, 80 bytes a row."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from headrace.workload.checksum import checksums, total

HOSTS = 1_000
FIELDS = 10
ROW_BYTES = 80
STEPS_A_BATCH = 50
STEPS_A_DAY = 3_200
DAY_NS = 86_400_000_000_000
START_NS = 19_675 * DAY_NS
TAGS = ("host",)
FINITE = ~np.uint64(1 << 62)
"""Without this bit of the exponent a double is neither infinite nor NaN."""


@dataclass(frozen=True, slots=True)
class Noise:
    """Rows in order of time, the same for the same size and seed; a slice of a day holds 3.2 M of them."""

    size_bytes: int
    seed: int

    @property
    def rows(self) -> int:
        """How many rows there are."""
        return max(1, self.size_bytes // (ROW_BYTES * HOSTS)) * HOSTS

    def batches(self) -> Iterator[pa.Table]:
        """The rows, 50,000 at once."""
        hosts = pa.array([f"host_{number}" for number in range(HOSTS)])
        for first in range(0, self.rows // HOSTS, STEPS_A_BATCH):
            steps = min(STEPS_A_BATCH, self.rows // HOSTS - first)
            codes = pa.array(np.tile(np.arange(HOSTS, dtype=np.int32), steps))
            times = START_NS + DAY_NS // STEPS_A_DAY * np.arange(first, first + steps, dtype=np.int64)
            # Seeded by the place: any batch can be made again alone, for its checksums.
            bits = np.random.default_rng((self.seed, first)).integers(0, 1 << 64, (FIELDS, steps * HOSTS), np.uint64)
            values = (bits & FINITE).view(np.float64)
            columns = {TAGS[0]: pa.DictionaryArray.from_arrays(codes, hosts), "time": pa.array(np.repeat(times, HOSTS))}
            yield pa.table(columns | {f"value_{number}": pa.array(each) for number, each in enumerate(values)})

    def checksums(self) -> pa.Table:
        """Of all rows."""
        return total([checksums(rows, TAGS) for rows in self.batches()])
