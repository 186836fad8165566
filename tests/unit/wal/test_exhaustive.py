"""A small log, truncated and with a flipped bit at every byte of every file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.consumers.wal import BytesSerde, Delete, LogDamaged, Put, WriteAheadLog
from headrace.consumers.wal.frames import decode_journal_header
from headrace.consumers.wal.repair import DAMAGED, repair
from tests.unit.wal.disk import SimulatedDisk

DIRECTORY = Path("/log")
CRC_BYTES = 4
LARGE = bytes(range(250)) * 17
UNSYNCED = pytest.param(False, marks=pytest.mark.soak)
"""As long as the one with syncs, whose outcomes are of more kinds."""


def open_log(disk: SimulatedDisk, partitions: int = 2) -> WriteAheadLog:
    """A log without background work."""
    return WriteAheadLog(
        DIRECTORY,
        BytesSerde(),
        partitions,
        sync_interval_ms=None,
        checkpoint_bytes=None,
        checkpoint_age_ms=None,
        preallocate_bytes=64,
        files=disk,
    )


def write_history(disk: SimulatedDisk, sync: bool, checkpoint: bool = False) -> tuple[list[dict[Any, Any]], int]:
    """Seven transactions in two partitions.

    Returns (states after 0, 1, … transactions, number recorded as durable).
    """
    states: list[dict[Any, Any]] = [{}]
    log = open_log(disk)
    log.recover()
    history: list[list[Any]] = [
        [Put((b"a", b"1"))],
        [Put((b"b", b"22")), Put((b"c", b"333"))],
        [Put((b"a", LARGE))],
        [Delete(b"b")],
        [Put((b"d", b""))],
        [Put((b"a", b"4")), Delete(b"c")],
        [Put((b"e", b"5"))],
    ]
    for index, records in enumerate(history):
        after = dict(states[-1])
        for record in records:
            if isinstance(record, Put):
                after[record.record[0]] = record.record
            else:
                after.pop(record.key, None)
        states.append(after)
        if checkpoint and index == 4:
            log.checkpoint()
        # One synced transaction in the middle: the frames after it record that.
        log.update(records, sync=sync and index == 3, partition=index % 2)
    return states, 4 if sync else 0


def recover_copy(disk: SimulatedDisk) -> dict[Any, Any]:
    """Recovers twice and checks that the second finds the same and changes nothing."""
    first = dict(open_log(disk).recover())
    sizes = disk.sizes()
    log = open_log(disk)
    assert first == dict(log.recover())
    assert sizes == disk.sizes()
    assert log.report is not None
    assert () == log.report.dropped
    return first


def check(disk: SimulatedDisk, states: list[dict[Any, Any]], durable: int) -> str:
    """The outcome is a prefix, or an error that names a file and an offset.

    Durable transactions are never dropped silently.
    """
    try:
        state = recover_copy(disk)
    except LogDamaged as damage:
        return "damage" if damage.file.parent == DIRECTORY and damage.offset >= 0 else "nowhere"
    assert state in states[durable:]
    return "whole" if state == states[-1] else "prefix"


def files_of(disk: SimulatedDisk, start: str) -> list[str]:
    """Names of the files with this prefix."""
    return [name for name in disk.sizes() if name.startswith(start)]


def header_end_of(disk: SimulatedDisk, name: str) -> int:
    """Where the header of a journal ends. It was durable before the first frame, so no crash takes it."""
    decoded = decode_journal_header(bytes(disk.content(name)))
    assert decoded is not None
    return decoded[1]


@pytest.mark.parametrize("partitions", [1, 2])
@pytest.mark.parametrize("damage", ["empty", "zeros", "no header"])
def test_an_emptied_journal_is_damage(partitions: int, damage: str) -> None:
    """A journal without its header is an error that names it: what it had is unknown, and never counts as nothing."""
    disk = SimulatedDisk()
    log = open_log(disk, partitions)
    log.recover()
    for number in range(8):
        log.update([Put((b"k%d" % number, b"v"))], sync=True, partition=number % partitions)
    name = files_of(disk, "journal")[-1]
    end = {"empty": 0, "zeros": len(disk.content(name)), "no header": header_end_of(disk, name)}[damage]
    disk.content(name)[:end] = bytes(end)
    if damage == "empty":
        del disk.content(name)[:]
    for _ in range(2):
        with pytest.raises(LogDamaged) as caught:
            open_log(disk, partitions).recover()
        assert name == caught.value.file.name
    assert repair(DIRECTORY, files=disk).state == DAMAGED
    assert repair(DIRECTORY, drop=True, files=disk).dropped
    open_log(disk, partitions).recover()


@pytest.mark.slow(8)
@pytest.mark.parametrize("sync", [UNSYNCED, True])
def test_journals_cut_at_every_byte(sync: bool) -> None:
    """A journal that ends early gives a prefix, unless another frame records the missing transactions as durable."""
    disk = SimulatedDisk()
    states, durable = write_history(disk, sync)
    outcomes, headless = set[str](), set[str]()
    for name in files_of(disk, "journal"):
        header_end = header_end_of(disk, name)
        for end in range(len(disk.content(name))):
            copy = disk.copy()
            del copy.content(name)[end:]
            (outcomes if end >= header_end else headless).add(check(copy, states, durable))
    assert outcomes == ({"whole", "prefix", "damage"} if sync else {"whole", "prefix"})
    assert {"damage"} == headless


@pytest.mark.slow(14)
@pytest.mark.parametrize("sync", [UNSYNCED, True])
def test_journals_zeroed_from_every_byte(sync: bool) -> None:
    """A journal that ends in zeros is treated like one that ends early."""
    disk = SimulatedDisk()
    states, durable = write_history(disk, sync)
    outcomes, headless = set[str](), set[str]()
    for name in files_of(disk, "journal"):
        size, header_end = len(disk.content(name)), header_end_of(disk, name)
        for end in range(size):
            copy = disk.copy()
            copy.content(name)[end:] = bytes(size - end)
            # The CRC that ends the header may end in zeros itself.
            (outcomes if end >= header_end else headless).add(check(copy, states, durable))
            if end == header_end - CRC_BYTES:
                assert {"damage"} == headless
    assert outcomes == ({"whole", "prefix", "damage"} if sync else {"whole", "prefix"})


@pytest.mark.slow(10)
@pytest.mark.parametrize(
    ("sync", "checkpoint"), [pytest.param(False, False, marks=pytest.mark.soak), (True, False), (True, True)]
)
def test_journals_flipped_at_every_byte(sync: bool, checkpoint: bool) -> None:
    """A flipped bit never changes a recovered record: the outcome is a prefix or damage, and damage where it was durable."""
    disk = SimulatedDisk()
    states, durable = write_history(disk, sync, checkpoint)
    outcomes = set()
    for name in files_of(disk, "journal"):
        for position in range(len(disk.content(name))):
            copy = disk.copy()
            copy.content(name)[position] ^= 1 << position % 8
            outcomes.add(check_flipped(copy, states, durable))
    assert "prefix" in outcomes
    assert outcomes <= {"whole", "prefix", "damage"}
    assert not sync or "damage" in outcomes


def check_flipped(disk: SimulatedDisk, states: list[dict[Any, Any]], durable: int) -> str:
    """As `check`; a value that the snapshot refers to is checked when it is read."""
    try:
        return check(disk, states, durable)
    except LogDamaged as damage:
        return "damage" if "value" in damage.reason else "elsewhere"


@pytest.mark.parametrize("name", ["snapshot", "manifest"])
def test_snapshot_and_manifest_cut_or_flipped_at_every_byte(name: str) -> None:
    """They are replaced atomically, so any wrong byte in them is damage, with file and offset."""
    disk = SimulatedDisk()
    write_history(disk, sync=True, checkpoint=True)
    for position in range(len(disk.content(name))):
        flipped, cut = disk.copy(), disk.copy()
        flipped.content(name)[position] ^= 1 << position % 8
        del cut.content(name)[position:]
        for damaged in (flipped, cut):
            with pytest.raises(LogDamaged) as caught:
                open_log(damaged).recover()
            assert name == caught.value.file.name


@pytest.mark.parametrize("start", ["journal", "snapshot", "manifest"])
def test_each_missing_file_is_an_error(start: str) -> None:
    """A file that the log needs and does not find is an error that names it."""
    disk = SimulatedDisk()
    write_history(disk, sync=True, checkpoint=True)
    for name in files_of(disk, start):
        copy = disk.copy()
        copy.unlink(DIRECTORY / name)
        with pytest.raises(LogDamaged) as caught:
            open_log(copy).recover()
        assert name == caught.value.file.name


def test_later_transactions_are_cut_in_all_partitions() -> None:
    """When a transaction is lost from one partition, later ones are cut from the others' files too, and the report lists them."""
    disk = SimulatedDisk()
    states, _ = write_history(disk, sync=False)
    first, second = sorted(files_of(disk, "journal"))
    sizes = disk.sizes()
    del disk.content(second)[70:]
    log = open_log(disk)
    assert states[1] == dict(log.recover())
    assert disk.sizes()[first] < sizes[first]
    assert log.report is not None
    assert 2 == len(log.report.dropped)
    assert any("3 transactions (3 to 7)" in line for line in log.report.dropped)
    assert 2 == log.update([Put((b"z", b"9"))], sync=True, partition=1)
    assert states[1] | {b"z": (b"z", b"9")} == dict(open_log(disk).recover())
