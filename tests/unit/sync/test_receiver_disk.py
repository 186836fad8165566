"""The full disk of a receiver: noted once, and looked at until there is space."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from headrace.connectors.log.port import LogUnavailable
from headrace.consumers.sync import receiver_disk
from headrace.consumers.sync.incoming import ReceiverDiskFull
from headrace.consumers.sync.receiver_disk import ReceiverDisk
from headrace.consumers.sync.view_database import ViewDiskFull, ViewUnwritable
from headrace.schemas.errors import HeadraceError
from tests.manual_clock import ManualClock
from tests.unit.sync.test_receiver import FILE, Scene
from tests.unit.sync.test_receiver import scene as scene


class ShortFile:
    """A file that takes half of what is written."""

    def __init__(self, **_options: object) -> None:
        """Whatever its options are."""

    def write(self, data: bytes) -> int:
        """Half of it."""
        return len(data) // 2

    def __enter__(self) -> ShortFile:
        return self

    def __exit__(self, *_error: object) -> None:
        """Nothing to close."""


@pytest.mark.parametrize("error", [ReceiverDiskFull("incoming is full"), ViewDiskFull("owners: No space left")])
def test_a_full_disk_is_logged_once_until_there_is_space(tmp_path: Path, error: HeadraceError) -> None:
    """Chunks and views wait for the same disk: each failure counts, and the log has its begin and its end."""
    clock: Any = ManualClock()
    disk = ReceiverDisk(tmp_path, 1.0, clock)
    with capture_logs() as lines:
        assert [True] * 3 == [disk.note(error) for _ in range(3)]
        disk.look()
        assert (3, error.message) == (disk.times_full, disk.fault)
        clock.now_s += 1.0
        disk.look()
        disk.look()
    assert "" == disk.fault
    assert [] == list(tmp_path.iterdir())
    expected = ["receiving waits for space on the disk", "there is space on the disk: receiving continues"]
    assert expected == [each["event"] for each in lines]


def test_a_disk_that_takes_half_of_it_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write to a disk that becomes full in the middle is short, and no error."""
    disk = ReceiverDisk(tmp_path, 0.0)
    disk.note(ReceiverDiskFull("incoming is full"))
    monkeypatch.setattr(receiver_disk, "TemporaryFile", ShortFile)
    disk.look()
    assert "incoming is full" == disk.fault


def test_a_disk_that_takes_no_file_is_full(tmp_path: Path) -> None:
    """Nothing can be made there, whatever the reason is."""
    disk = ReceiverDisk(tmp_path / "away", 0.0)
    disk.note(ReceiverDiskFull("incoming is full"))
    disk.look()
    assert "incoming is full" == disk.fault


@pytest.mark.parametrize("error", [ViewUnwritable("owners: permission denied"), LogUnavailable("no broker")])
def test_other_errors_are_none_of_the_disk(tmp_path: Path, error: HeadraceError) -> None:
    """Space would not end them: whoever met them logs them."""
    disk = ReceiverDisk(tmp_path, 0.0)
    assert not disk.note(error)
    assert (0, "") == (disk.times_full, disk.fault)


def test_files_in_their_middle_have_no_descriptor(scene: Scene) -> None:
    """A hundred senders have 1,600 of them, and a process mostly 1,024 descriptors: it would end, at each start again."""
    before = len(os.listdir("/proc/self/fd"))
    for number in range(1, 40):
        scene.manifest(replace(FILE.body, file=f"{FILE.body.file}{number}"), number)
        scene.chunks(FILE, number, left_out=frozenset({FILE.body.chunks - 1}))
    scene.turn_until(lambda: scene.receiver.figures.chunks == 39 * (FILE.body.chunks - 1), "the chunks are there")
    # The view of verdicts may have opened some.
    assert len(os.listdir("/proc/self/fd")) < before + 30
