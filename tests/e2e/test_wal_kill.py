"""A process that writes to the log is killed at every named step of update, checkpoint and recovery; nothing it acknowledged is lost."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from consumers.wal import BytesSerde, WriteAheadLog
from tests.e2e.wal_worker import PARTITIONS, state_after

STEPS = [
    "journal: header written",
    "journal: header synced",
    "journal: name synced",
    "manifest: partial written",
    "manifest: partial synced",
    "manifest: renamed",
    "manifest: durable",
    "update: frames written",
    "update: group written",
    "update: journals synced",
    "checkpoint: journals ended",
    "checkpoint: journals synced",
    "snapshot: partial written",
    "snapshot: partial synced",
    "snapshot: renamed",
    "snapshot: durable",
    "checkpoint: journal deleted",
    "recovery: replayed",
    "recovery: journals synced",
]
REPOSITORY = Path(__file__).parents[2]


def kill_at(directory: Path, step: str, nth: int, seed: int) -> tuple[bool, int]:
    """Runs a worker until it dies; returns (whether it was killed, the last transaction it acknowledged, 0 for none)."""
    command = [sys.executable, "-m", "tests.e2e.wal_worker", str(directory), step, str(nth), str(seed)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, check=False, timeout=120)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    acknowledged = done.stdout.split()
    return done.returncode != 0, int(acknowledged[-1]) if acknowledged else 0


def recover_twice(directory: Path) -> int:
    """Recovers, compares with the model, recovers again and finds the same; returns the last transaction."""
    log = WriteAheadLog(directory, BytesSerde(), PARTITIONS, checkpoint_age_ms=None, sync_interval_ms=None)
    state = dict(log.recover())
    last = log.last_transaction
    assert state == state_after(last)
    log.close()
    sizes = {path.name: path.stat().st_size for path in directory.iterdir()}
    again = WriteAheadLog(directory, BytesSerde(), PARTITIONS, checkpoint_age_ms=None, sync_interval_ms=None)
    assert state == dict(again.recover())
    assert last == again.last_transaction
    again.close()
    assert sizes == {path.name: path.stat().st_size for path in directory.iterdir()}
    assert not [name for name in sizes if name.endswith(".partial")]
    return last


def kill_repeatedly(directory: Path, kills: int, seed: int) -> None:
    """Kills `kills` workers on one directory, each step in turn, and checks after each."""
    chance = random.Random(seed)
    done, last = 0, 0
    runs = 0
    while done < kills:
        step = STEPS[runs % len(STEPS)]
        runs += 1
        nth = 1 if step.startswith("recovery") else chance.randint(1, 3)
        killed, acknowledged = kill_at(directory, step, nth, chance.randrange(1 << 30))
        done += killed
        before, last = max(last, acknowledged), recover_twice(directory)
        assert before <= last <= before + 1
        assert runs < 2 * kills + len(STEPS), "the steps are no longer reached"


def test_nothing_acknowledged_is_lost_by_kill_9(tmp_path: Path) -> None:
    """Forty kills, at every named step at least twice: what was acknowledged, synced or not, is recovered, twice alike."""
    kill_repeatedly(tmp_path / "log", 40, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_nothing_acknowledged_is_lost_by_kill_9_long(tmp_path: Path) -> None:
    """Five hundred kills."""
    kill_repeatedly(tmp_path / "log", 500, seed=2)
