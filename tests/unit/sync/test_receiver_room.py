"""The room of a receiver: how much may wait there, and what is given up so that others are read."""

from __future__ import annotations

import threading
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from headrace.consumers.sync.file_loader import FileJob
from headrace.consumers.sync.partition_files import OpenFile, PartitionFiles
from headrace.consumers.sync.receiver_room import is_full, loading, may_return, surplus
from headrace.consumers.sync.settings import SyncSettings
from headrace.consumers.sync.shares import Share
from headrace.schemas.sync_records import SyncFile, SyncManifest
from tests.sync_sender import sealed_file

BODY = sealed_file({"a": [(1, 1.0)]}, version=3).body


class Room:
    """Shares with whole files."""

    def __init__(self, **settings: Any) -> None:
        self.settings = SyncSettings(**settings)
        self.shares = [Share(number, ("m", number), ("c", number), PartitionFiles(30.0)) for number in range(2)]

    def add(self, share: int, group: str, number: int, kilobytes: int = 1, *, held: bool = True) -> None:
        """A whole file for a group comes, later than those before."""
        body, found = replace(BODY, table=group), self.shares[share]
        manifest = SyncManifest("u", "s", "", 1, number, 1, body)
        file = OpenFile(manifest, number, heard_s=float(number))
        incoming: Any = SimpleNamespace(size_bytes=kilobytes * 1_000, discard=lambda: None)
        job = FileJob(manifest, None, lambda: None, threading.Event(), threading.Event())
        if held:
            job.held.set()
        found.files.files[file.key], found.incoming[file.key], found.jobs[file.key] = file, incoming, job

    def give_up(self) -> list[int]:
        """The numbers of what is given up."""
        found = list(surplus(self.shares, self.settings, group_of))
        for share, file in found:
            share.give_up(file)
        return [file.manifest.number for _, file in found]

    def may_return(self, group: str) -> bool:
        """Whether a file for a group may come again."""
        return may_return(replace(BODY, table=group), self.shares, self.settings, group_of)


def group_of(body: SyncFile) -> str:
    """Each table has a group of its own."""
    return body.table


def test_the_newest_files_of_the_group_with_most_are_given_up() -> None:
    """Those that wait for one group take no place from a file that waits for another, or is loaded."""
    room = Room(files_max=2, held_max=3)
    for number in (5, 1, 3, 2, 4):
        room.add(number % 2, "full", number)
    room.add(1, "slow", 6)
    room.add(1, "good", 7, held=False)
    assert [5, 4, 3] == room.give_up()
    assert [] == room.give_up()
    assert (4, False) == (loading(room.shares), is_full(room.shares, room.settings))
    room.add(1, "good", 8, held=False)
    assert is_full(room.shares, room.settings)


def test_files_that_wait_have_half_of_the_bytes() -> None:
    """The group with the most bytes gives way: the other half is for files that are loaded."""
    room = Room(staging_mb_max=1)
    room.add(0, "slow", 1, 100)
    room.add(0, "slow", 2, 100)
    room.add(0, "full", 3, 350)
    assert [3] == room.give_up()
    room.add(1, "good", 4, 700, held=False)
    assert [] == room.give_up()
    assert not is_full(room.shares, room.settings)
    room.add(1, "good", 5, 100, held=False)
    assert is_full(room.shares, room.settings)


def test_what_was_given_up_returns_once_its_group_has_half_of_the_room() -> None:
    """At the limit it would be sent again for nothing, once for each file that is decided. Of a group that takes files
    again, those that were given up return while another one is still full."""
    room = Room(held_max=4)
    for number in range(1, 5):
        room.add(0, "full", number)
    assert (False, True) == (room.may_return("full"), room.may_return("slow"))
    for number in (1, 2):
        room.shares[0].forget(room.shares[0].files.files["u", number])
    assert room.may_return("full")
