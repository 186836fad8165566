"""Repair lists what it would drop, drops it only with `drop`, and leaves a log that opens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli.wal import register
from headrace.consumers.wal import BytesSerde, LogDamaged, Put, WriteAheadLog
from headrace.consumers.wal.repair import DAMAGED, TORN, WHOLE, repair

LARGE = bytes(range(256)) * 40


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A log of six transactions in two partitions, the first two in a snapshot, the fourth synced."""
    log = WriteAheadLog(tmp_path, BytesSerde(), 2, preallocate_bytes=0, sync_interval_ms=None)
    log.recover()
    log.update([Put((b"a", LARGE))], partition=0)
    log.update([Put((b"b", b"2"))], partition=1)
    log.checkpoint()
    for index in range(4):
        log.update([Put((b"%d" % index, b"x" * 30))], sync=index == 1, partition=index % 2)
    log.close()
    return tmp_path


def keys_of(directory: Path) -> list[bytes]:
    """Keys after a recovery, all values read."""
    log = WriteAheadLog(directory, BytesSerde(), 2)
    state = dict(log.recover())
    log.update([Put((b"after", b"1"))], sync=True)
    log.close()
    return sorted(state)


def contents(directory: Path) -> dict[str, bytes]:
    """Every file but the lock."""
    return {path.name: path.read_bytes() for path in directory.iterdir() if path.name != "lock"}


def flip(path: Path, offset: int) -> None:
    """Changes one byte."""
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def journal(directory: Path, number: int) -> Path:
    """The journal with this number."""
    return next(directory.glob(f"journal-{number:010d}-*"))


def test_an_undamaged_log_has_nothing_to_drop(directory: Path) -> None:
    """Examining changes nothing, also with --drop."""
    before = contents(directory)
    for drop in (False, True):
        report = repair(directory, drop=drop)
        assert (WHOLE, (), False, 6, 6) == (
            report.state,
            report.would_drop,
            report.dropped,
            report.last_transaction,
            report.records,
        )
    assert before == contents(directory)


def test_a_torn_tail_is_left_to_recovery(directory: Path) -> None:
    """Transactions that were never known durable are reported, and the next recovery truncates them."""
    path = journal(directory, 4)
    path.write_bytes(path.read_bytes()[:-3])
    before = contents(directory)
    report = repair(directory, drop=True)
    assert (TORN, False, 5) == (report.state, report.dropped, report.last_transaction)
    assert before == contents(directory)
    assert [b"0", b"1", b"2", b"a", b"b"] == keys_of(directory)


def test_damage_is_dropped_only_with_drop(directory: Path) -> None:
    """The longest readable prefix stays; the rest is reported first and then dropped."""
    flip(journal(directory, 3), 70)
    before = contents(directory)
    with pytest.raises(LogDamaged, match="headrace wal repair"):
        keys_of(directory)
    report = repair(directory)
    assert (DAMAGED, False, 2, 6) == (report.state, report.dropped, report.last_transaction, report.newest_transaction)
    assert "transactions 3 to 6" == report.would_drop[0]
    assert before == contents(directory)
    assert repair(directory, drop=True).dropped
    assert [b"a", b"b"] == keys_of(directory)
    assert WHOLE == repair(directory).state


def test_a_repair_gives_no_number_again(directory: Path) -> None:
    """Neither that of a dropped transaction, which a caller may hold as unknown, nor that of a journal."""
    flip(journal(directory, 3), 70)
    newest = repair(directory, drop=True).newest_transaction
    log = WriteAheadLog(directory, BytesSerde(), 2, sync_interval_ms=None)
    log.recover()
    assert newest + 1 == log.update([Put((b"after", b"1"))])
    log.checkpoint()
    log.close()
    flip(journal(directory, 1), 5_000)
    assert repair(directory, drop=True).dropped
    keys_of(directory)
    assert [6] == [int(path.name.split("-")[1]) for path in directory.glob("journal-*")]


def test_a_missing_journal_is_dropped(directory: Path) -> None:
    """Its transactions and all later ones are dropped."""
    journal(directory, 4).unlink()
    report = repair(directory, drop=True)
    assert any("is missing" in line for line in report.would_drop)
    assert [b"0", b"a", b"b"] == keys_of(directory)


@pytest.mark.parametrize("missing", [False, True])
def test_unreadable_large_values_are_dropped(directory: Path, missing: bool) -> None:
    """A record whose value is damaged, or whose journal is missing, is named by key; all others stay."""
    if missing:
        journal(directory, 1).unlink()
    else:
        flip(journal(directory, 1), 5_000)
    report = repair(directory, drop=True)
    assert any("b'a'" in line for line in report.would_drop)
    assert [b"0", b"1", b"2", b"3", b"b"] == keys_of(directory)


@pytest.mark.parametrize("name", ["snapshot", "manifest"])
def test_without_manifest_or_snapshot_only_a_copy_helps(directory: Path, name: str) -> None:
    """No prefix can be determined, so nothing is dropped, also with `drop`."""
    flip(directory / name, 20)
    before = contents(directory)
    with pytest.raises(LogDamaged, match=name):
        repair(directory, drop=True)
    assert before == contents(directory)


def run(*arguments: str) -> Any:
    """Run the command line with only this noun."""
    app = typer.Typer()
    register(app)
    return CliRunner().invoke(app, ["wal", "repair", *arguments])


def test_the_command_shows_and_drops(directory: Path) -> None:
    """Exit code 1 while there is damage, 0 once it is dropped; one JSON object with --json."""
    assert 0 == run(str(directory)).exit_code
    flip(journal(directory, 3), 70)
    shown = run(str(directory), "--json")
    assert 1 == shown.exit_code
    document = json.loads(shown.stdout)
    assert (DAMAGED, False, "transactions 3 to 6") == (
        document["state"],
        document["dropped"],
        document["would_drop"][0],
    )
    dropped = run(str(directory), "--drop")
    assert 0 == dropped.exit_code
    assert "transactions 3 to 6" in dropped.stdout
    assert 0 == run(str(directory)).exit_code


def test_the_command_refuses_what_is_no_log(tmp_path: Path) -> None:
    """A directory without a log is an error and stays as it is."""
    result = run(str(tmp_path))
    assert 1 == result.exit_code
    assert "there is no log here" in result.output
    assert [] == list(tmp_path.iterdir())
