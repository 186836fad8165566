"""The rows of scans in shares: every file and row once, and about as much for each driver."""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path

import pyarrow as pa
import pytest

from headrace.consumers.query.file_shares import ScanShare, shares_of


@pytest.mark.parametrize("seed", range(20))
def test_every_file_and_row_is_in_one_share(seed: int) -> None:
    """Whatever sizes files have, and in how many scans they are; shares without rows are left out."""
    chance = random.Random(seed)
    sizes = {Path(f"{number}.parquet"): chance.randrange(1, 1_000) for number in range(chance.randrange(12))}
    paths, scans = list(sizes), []
    for _ in range(chance.randrange(1, 4)):
        files = [paths.pop() for _ in range(chance.randrange(len(paths) + 1))]
        rows = pa.table({"x": [chance.randrange(9) for _ in range(chance.choice([0, 1, 50]))]})
        scans.append(ScanShare(files, 10 * len(files), rows))
    number = chance.randrange(1, 5)
    found = shares_of(scans, number, sizes.__getitem__)
    assert len(found) <= number
    assert all(any(part.files or part.table.num_rows for part in share) for share in found)
    given = Counter(path for scan in scans for path in scan.files)
    assert given == Counter(path for share in found for part in share for path in part.files)
    values = Counter(value for scan in scans for value in scan.table.column("x").to_pylist())
    tables = [part.table for share in found for part in share if part.table.num_rows]
    assert values == Counter(value for table in tables for value in table.column("x").to_pylist())


def test_shares_are_about_equal() -> None:
    """By the bytes of files, the largest first; and each has the same part of the other rows."""
    sizes = {Path(f"{number}"): size for number, size in enumerate((8, 7, 6, 5, 4))}
    scan = ScanShare(list(sizes), 3_000, pa.table({"x": list(range(10))}))
    found = shares_of([scan], 2, sizes.__getitem__)
    assert [[8, 5, 4], [7, 6]] == [[sizes[path] for part in share for path in part.files] for share in found]
    assert [5, 5] == [sum(part.table.num_rows for part in share) for share in found]
    assert [1_700, 1_300] == [sum(part.file_rows for part in share) for share in found]
