"""Divides the rows of scans into shares, one for each driver of a fragment.

The files of a scan hold rows that are valid as they are, and its table all others, merged: the scan of a group has
decided that before. So no row of one share changes the meaning of a row of another one, and files go whole to any.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa

from headrace.consumers.query.fragments import Fragment, FragmentScans
from headrace.consumers.query.group_scans import GroupScan
from headrace.consumers.query.scan_figures import ScanFigures
from headrace.consumers.query.table_names import TableKey
from headrace.consumers.query.table_source import Reading


@dataclass
class ScanShare:
    """See GroupScan: a part of the rows of other scans, which must be open as long as this is read."""

    files: Sequence[Path]
    file_rows: int
    table: pa.Table
    figures: ScanFigures = field(default_factory=ScanFigures)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        pass


class OpenedScans:
    """See FragmentSource: the rows of tables by scans that are open already."""

    node = ""

    def __init__(self, scans: Mapping[TableKey, Sequence[GroupScan]]) -> None:
        self._scans = scans

    def scan_fragment(self, fragment: Fragment, reading: Reading) -> FragmentScans:
        """See FragmentSource. They may hold more than the fragment wants, which its conditions leave out."""
        del reading
        return FragmentScans(self._scans[fragment.schema.database, fragment.schema.table], ())


def shares_of(scans: Sequence[GroupScan], number: int, size_of: Callable[[Path], int]) -> list[list[ScanShare]]:
    """The rows of scans as so many shares of about equal size, or fewer; none is empty. `size_of` is in bytes."""
    found: list[list[ScanShare]] = [[] for _ in range(number)]
    files = [(size_of(path), path) for scan in scans for path in scan.files]
    rows = sum(scan.file_rows for scan in scans)
    total = max(1, sum(size for size, _ in files))
    loads = [0] * number
    chosen: list[list[Path]] = [[] for _ in range(number)]
    # The largest first, each to the share with the least so far.
    for size, path in sorted(files, key=lambda pair: (-pair[0], pair[1])):
        place = loads.index(min(loads))
        loads[place] += size
        chosen[place].append(path)
    for place, paths in enumerate(chosen):
        if paths:
            # In the order of their names, which is that of time.
            found[place].append(ScanShare(sorted(paths), rows * loads[place] // total, pa.table({})))
    for scan in scans:
        step = -(-scan.table.num_rows // number)
        for place in range(number if step else 0):
            if part := scan.table.slice(place * step, step):
                found[place].append(ScanShare((), 0, part))
    return [share for share in found if share]
