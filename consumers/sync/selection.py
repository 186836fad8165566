"""Which files and deletes of a listing are to be sent, and how far a group is decided. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import xxhash

from headrace.consumers.sync.file_states import FileRecord
from headrace.consumers.sync.listing import ListedFile, Listing
from headrace.consumers.sync.send_settings import CHUNK_BYTES, DELETES_BYTES_MAX, DELETES_PER_MANIFEST
from headrace.consumers.sync.sender_state import GroupRecord
from headrace.schemas.sync_records import SyncDelete, SyncFile

_Location = tuple[str, str, int, int]


def undecided_files(listing: Listing, known: Mapping[str, FileRecord], group: GroupRecord) -> list[ListedFile]:
    """The files of a listing that the centre has not decided about, lowest first."""
    # A node that was away lists what was decided long ago, and is forgotten here.
    return [each for each in listing.files if each.version > group.progress and not _decided(each, known)]


def unsent_deletes(listing: Listing, group: GroupRecord) -> list[tuple[SyncDelete, ...]]:
    """The deletes that the centre has not accepted, in their order, in parts of one manifest."""
    newer = [each for each in listing.deletes if each.version > group.deletes_accepted]
    sent = tuple(each for each in newer if each.version <= group.deletes_sent)
    if sent and group.deletes_body == deletes_digest(sent):
        # An earlier start was sending these: once more under their number, so that they are applied once.
        return [sent, *unsent_deletes(listing, replace(group, deletes_accepted=group.deletes_sent, deletes_body=""))]
    parts, size = list[list[SyncDelete]](), 0
    for each in newer:
        # One delete may name thousands of values of a tag.
        size_bytes = len(repr(each).encode())
        if not parts or len(parts[-1]) == DELETES_PER_MANIFEST or size + size_bytes > DELETES_BYTES_MAX:
            parts.append([])
            size = 0
        parts[-1].append(each)
        size += size_bytes
    return [tuple(part) for part in parts]


def deletes_digest(deletes: Sequence[SyncDelete]) -> str:
    """A digest of deletes that are sent under one number."""
    return xxhash.xxh3_64_hexdigest(repr(deletes).encode())


def decided_up_to(listing: Listing, known: Mapping[str, FileRecord], group: GroupRecord) -> int:
    """The version up to which all files and deletes of a group are decided, as far as a listing shows it."""
    if listing.after > group.progress:
        # What came below it is not listed.
        return group.progress
    files = (each.version for each in undecided_files(listing, known, group))
    deletes = (each.version for each in listing.deletes if each.version > group.deletes_accepted)
    return max(group.progress, min([*files, *deletes, listing.through + 1]) - 1)


def file_body(listed: ListedFile, md5: bytes, settled: str) -> SyncFile:
    """The body of a file's manifest; see `SettledOrders` for `settled`."""
    body = listed.body
    size = body.segment_bytes + body.series_bytes
    return replace(body, segment_md5=md5, chunk_bytes=CHUNK_BYTES, chunks=-(-size // CHUNK_BYTES), settled=settled)


def body_digest(body: SyncFile) -> str:
    """A digest of all that a manifest has of its file: what was sent under another body cannot be continued."""
    # What the sender has settled changes while it sends, and says nothing about the file.
    return xxhash.xxh3_64_hexdigest(repr(replace(body, settled="")).encode())


class SettledOrders:
    """The undecided files of a group in one round, by location: each question costs the same, however many there are.

    Within a round a decided file stays decided.
    """

    def __init__(self, files: Iterable[ListedFile]) -> None:
        self._places: dict[_Location, deque[ListedFile]] = {}
        for each in sorted(files, key=lambda each: each.body.first_version):
            self._places.setdefault(_location(each), deque()).append(each)

    def settled(self, listed: ListedFile, known: Mapping[str, FileRecord], rejected: Collection[str]) -> str:
        """The highest order up to which no file of a location is undecided; empty where nobody can know.

        The file itself is undecided. `rejected`: directories with a rejected file.
        """
        # A rejected file of the location may come after all, when an operator sends it again.
        if not listed.settles or directory_of(listed.body.file) in rejected:
            return ""
        waiting = self._places[_location(listed)]
        while known[waiting[0].body.file].decided:
            waiting.popleft()
        lowest = waiting[0].body
        # No file begins before version 1, so none is below the first either.
        return f"{lowest.era:06}-{lowest.first_version - 1:015}"


def _location(listed: ListedFile) -> _Location:
    body = listed.body
    return body.database, body.table, body.slice_number, body.bucket


def directory_of(file: str) -> str:
    """What the names of the files of one location have in common."""
    return file.rpartition("/")[0]


def _decided(listed: ListedFile, known: Mapping[str, FileRecord]) -> bool:
    record = known.get(listed.body.file)
    return record is not None and record.decided and record.digest == listed.body.content_digest.hex()


def merged_order(files: Iterable[tuple[str, ListedFile]]) -> list[tuple[str, ListedFile]]:
    """The files of several groups, each group's lowest first, the groups in turn."""
    by_group: dict[str, list[ListedFile]] = {}
    for group, each in files:
        by_group.setdefault(group, []).append(each)
    return list(_in_turn(by_group))


def _in_turn(by_group: Mapping[str, Sequence[ListedFile]]) -> Iterator[tuple[str, ListedFile]]:
    for place in range(max(map(len, by_group.values()), default=0)):
        for group, files in by_group.items():
            if place < len(files):
                yield group, files[place]
