"""A writing process is killed at every named step of update, checkpoint and recovery; nothing acknowledged is
lost.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headrace.consumers.wal import BytesSerde, WriteAheadLog
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
    "checkpoint: journals rolled",
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
    """Run a worker until it dies; returns (whether it was killed, the last acknowledged transaction, 0 for
    none).
    """
    command = [sys.executable, "-m", "tests.e2e.wal_worker", str(directory), step, str(nth), str(seed)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, check=False, timeout=120)
    assert done.returncode in (0, -signal.SIGKILL), done.stderr.decode()
    acknowledged = done.stdout.split()
    return done.returncode != 0, int(acknowledged[-1]) if acknowledged else 0


def recover_twice(directory: Path) -> int:
    """Recover, compare with the model, recover again to the same state; returns the last transaction."""
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
    """Kill `kills` workers on one directory, at each step in turn, and check after each."""
    rng = random.Random(seed)
    done, last = 0, 0
    runs = 0
    while done < kills:
        step = STEPS[runs % len(STEPS)]
        runs += 1
        nth = 1 if step.startswith("recovery") else rng.randint(1, 3)
        killed, acknowledged = kill_at(directory, step, nth, rng.randrange(1 << 30))
        done += killed
        before, last = max(last, acknowledged), recover_twice(directory)
        assert before <= last <= before + 1
        assert runs < 2 * kills + len(STEPS), "the steps are no longer reached"


def kill_threads(directory: Path, after_lines: int) -> dict[int, int]:
    """Kill a process of six writing threads after a number of acknowledgements; returns each caller's last
    one.
    """
    command = [sys.executable, "-m", "tests.e2e.wal_worker", str(directory), "threads", "6"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    acknowledged: dict[int, int] = {}
    with subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE) as worker:
        assert worker.stdout is not None
        for number, line in enumerate(worker.stdout):
            if number == after_lines:
                worker.kill()
            caller, count = map(int, line.split())
            acknowledged[caller] = max(acknowledged.get(caller, 0), count)
    return acknowledged


@pytest.mark.slow
def test_nothing_acknowledged_to_many_callers_is_lost_by_kill_9(tmp_path: Path) -> None:
    """Six threads share syncs, and checkpoints run by themselves; after each kill every caller recovers its
    last count or a newer one.
    """
    for after_lines in (50, 1_000, 2_500):
        acknowledged = kill_threads(tmp_path / "log", after_lines)
        assert len(acknowledged) >= 2
        log = WriteAheadLog(tmp_path / "log", BytesSerde(), PARTITIONS)
        state = log.recover()
        for caller, count in acknowledged.items():
            recovered = int(state[b"caller-%d" % caller][1].split(b":")[0])
            assert count <= recovered <= count + 1
        log.close()


def test_every_named_step_is_killed_at() -> None:
    """The list of steps is that of the code, except two that need a torn tail or a failed sync; the simulated
    disk has those.
    """
    named = set()
    for path in (REPOSITORY / "consumers" / "wal").glob("*.py"):
        named |= set(re.findall(r'step\(f?"([^"]+)"\)', path.read_text()))
    replaced = {
        f"{name}{step.removeprefix('{path.name}')}"
        for name in ("manifest", "snapshot")
        for step in named
        if "{" in step
    }
    expected = {step for step in named if "{" not in step} | replaced
    assert expected - {"recovery: journal truncated", "checkpoint: state rebuilt"} == set(STEPS)


@pytest.mark.slow(11)
def test_nothing_acknowledged_is_lost_by_kill_9(tmp_path: Path) -> None:
    """Forty kills, at every named step at least twice: acknowledged updates, synced or not, are recovered,
    twice with the same result.
    """
    kill_repeatedly(tmp_path / "log", 40, seed=1)


@pytest.mark.soak
@pytest.mark.timeout(3_600)
def test_nothing_acknowledged_is_lost_by_five_hundred_kills(tmp_path: Path) -> None:
    """The soak test of the same."""
    kill_repeatedly(tmp_path / "log", 500, seed=2)
