"""Whether a receiver reads more, and which files it gives up so that it does.

A file that has waited for long waits for its group, such as one whose leader has a full disk. Such files must not keep
the room of others, however many they become: those of other groups, and of other senders, are read meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from headrace.consumers.sync.partition_files import OpenFile
from headrace.consumers.sync.settings import SyncSettings
from headrace.consumers.sync.shares import Share
from headrace.schemas.errors import HeadraceError
from headrace.schemas.sync_records import SyncFile

HELD_BYTES_SHARE = 2
"""Files that have waited for long have one part of so many of `staging_mb_max`."""
RETURN_SHARE = 2
"""Those that were given up may come again once their group has so small a part of that room."""
GroupOf = Callable[[SyncFile], str]
"""The group that holds the slot of a file."""


class TooManyWait(HeadraceError):
    """A file that was given up, and has no room yet: its group does not take those that came before it."""

    @classmethod
    def now(cls) -> TooManyWait:
        """The error of a file."""
        return cls("more files wait for their groups than a receiver keeps", action="see headrace status for the group")


@dataclass(frozen=True, slots=True)
class _Held:
    share: Share
    file: OpenFile
    body: SyncFile
    size_bytes: int


def loading(shares: Iterable[Share]) -> int:
    """Whole files that have no verdict yet."""
    return sum(len(share.jobs) for share in shares)


def staged_bytes(shares: Iterable[Share]) -> int:
    """Bytes of files on the disk, also of those in their middle."""
    return sum(share.staged_bytes for share in shares)


def is_full(shares: Iterable[Share], settings: SyncSettings) -> bool:
    """Whether no chunk is taken before a file is decided."""
    every = list(shares)
    count = loading(every)
    others = count - sum(each.held for each in every)
    return others >= settings.files_max or (count > 0 and staged_bytes(every) >= settings.staging_mb_max * 1_000_000)


def surplus(shares: Iterable[Share], settings: SyncSettings, group_of: GroupOf) -> Iterator[tuple[Share, OpenFile]]:
    """The files to give up: of the group that has most of those that have waited for long, its newest ones.

    The first ones stay. Members have them already, so they are loaded as soon as their group takes files again.
    """
    every = sorted(_held(shares), key=lambda each: each.file.heard_s)
    count, size_bytes = _totals(every)
    if not _is_over(count, size_bytes, settings):
        return
    by_group: dict[str, list[_Held]] = {}
    for each in every:
        by_group.setdefault(group_of(each.body), []).append(each)
    while _is_over(count, size_bytes, settings):
        measure = 0 if count > settings.held_max else 1
        given_up = max(by_group.values(), key=lambda held: _totals(held)[measure]).pop()
        count, size_bytes = count - 1, size_bytes - given_up.size_bytes
        yield given_up.share, given_up.file


def may_return(body: SyncFile, shares: Iterable[Share], settings: SyncSettings, group_of: GroupOf) -> bool:
    """Whether a file that was given up may come again: else it would be sent once more to be given up again."""
    group = group_of(body)
    count, size_bytes = _totals(each for each in _held(shares) if group_of(each.body) == group)
    return not _is_over(count * RETURN_SHARE, size_bytes * RETURN_SHARE, settings)


def _is_over(count: int, size_bytes: int, settings: SyncSettings) -> bool:
    limit = settings.staging_mb_max * 1_000_000 // HELD_BYTES_SHARE
    return count > settings.held_max or size_bytes > limit


def _held(shares: Iterable[Share]) -> Iterator[_Held]:
    for share in shares:
        for key, job in share.jobs.items():
            body = job.manifest.body
            if job.held.is_set() and isinstance(body, SyncFile):
                yield _Held(share, share.files.files[key], body, share.incoming[key].size_bytes)


def _totals(held: Iterable[_Held]) -> tuple[int, int]:
    sizes = [each.size_bytes for each in held]
    return len(sizes), sum(sizes)
