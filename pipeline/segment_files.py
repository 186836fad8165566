"""Which segment files of a table are read, and which of them may hold a row twice. Pure, from names and footers.

Nothing here reads a node's index. So the files decide by what is in their names: ranks, and by that what a merge has
replaced.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

_NAME = re.compile(r"(\d{6,})-(\d{15,})-(\d{15,})(_[^-.]+)?(?:-(\d+))?\.parquet", re.ASCII)
_DIRECTORY = re.compile(r"(-?\d+)-(\d+)", re.ASCII)


@dataclass(frozen=True, slots=True)
class FoundFile:
    """A file by its path: where its rows are, and the ranks that it holds."""

    path: str
    place: str
    era: int
    first: int
    last: int
    order: str = ""
    generation: int = 0

    def replaces(self, other: FoundFile) -> bool:
        """Whether a merge, or a rewrite over the same ranks, has put the rows of `other` into this file."""
        if self.place != other.place or self.era != other.era:
            return False
        if (self.first, self.last) == (other.first, other.last):
            return self.order == other.order and self.generation > other.generation
        return self.first <= other.first and other.last <= self.last


@dataclass(frozen=True, slots=True)
class Footer:
    """What a file's footer has: the times of its rows, and the columns that its readers see."""

    min_time: int
    max_time: int
    tags: tuple[str, ...]
    fields: tuple[tuple[str, str], ...]
    schema_version: int


def found_file(path: str) -> FoundFile | None:
    """A path as a segment; None for another file."""
    directory, _, name = path.rpartition("/")
    match, place = _NAME.fullmatch(name), directory.rpartition("/")[2]
    if match is None or _DIRECTORY.fullmatch(place) is None:
        return None
    era, first, last, order, generation = match.groups()
    return FoundFile(path, place, int(era), int(first), int(last), order or "", int(generation or 0))


def live_files(files: Iterable[FoundFile]) -> list[FoundFile]:
    """The files without those that another one replaces, which stay on disk for as long as a reader has them."""
    by_place: dict[str, list[FoundFile]] = defaultdict(list)
    for each in files:
        by_place[each.place].append(each)
    live: list[FoundFile] = []
    for some in by_place.values():
        # Wide ones first: what replaces a file is before it, and a replaced one replaces nothing that is left.
        kept: list[FoundFile] = []
        for each in sorted(some, key=lambda one: (one.era, one.first, -one.last, -one.generation)):
            if not any(other.replaces(each) for other in kept):
                kept.append(each)
        live += kept
    return live


def newest_copies(copies: Mapping[str, Mapping[str, list[FoundFile]]]) -> list[FoundFile]:
    """Of the copies of each group, `{group: {directory: files}}`, the one with the newest row."""
    chosen: list[FoundFile] = []
    for by_directory in copies.values():
        newest = max(by_directory, key=lambda name: (max((one.era, one.last) for one in by_directory[name]), name))
        chosen += by_directory[newest]
    return chosen


def overlapping(files: Mapping[FoundFile, Footer]) -> set[FoundFile]:
    """The files that share a stretch of time with another one of their slice and bucket: rows of them may be twice."""
    by_place: dict[str, list[FoundFile]] = defaultdict(list)
    for each in files:
        by_place[each.place].append(each)
    found: set[FoundFile] = set()
    for some in by_place.values():
        some.sort(key=lambda one: files[one].min_time)
        reaching = some[0]
        for each in some[1:]:
            if files[each].min_time <= files[reaching].max_time:
                found |= {each, reaching}
            if files[each].max_time > files[reaching].max_time:
                reaching = each
    return found
