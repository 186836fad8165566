"""The run of all tests: which failures are tried again, alone, and what a worker that ends leaves to others."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from tools.test_run import FAILURES_MAX

ROOT = Path(__file__).resolve().parents[3]

TESTS = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("number", range({count}))
def test_it(number):
    seen = Path(__file__).with_name(f"seen-{{number}}")
    first = not seen.exists()
    seen.touch()
    assert not first and not {broken}
"""

SKIPS = """
from pathlib import Path
import pytest

def test_it():
    seen = Path(__file__).with_name("seen")
    if seen.exists():
        pytest.skip("nothing to see")
    seen.touch()
    assert False
"""

STARTS = """
import subprocess, time
from pathlib import Path
import pytest

@pytest.fixture
def started():
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield process
    process.kill()
    process.wait()
    Path(__file__).with_name("stopped").touch()

def test_it(started):
    pid = Path(__file__).with_name("pid")
    pid.with_suffix(".new").write_text(str(started.pid))
    pid.with_suffix(".new").rename(pid)
    time.sleep(60)
"""

ENDS = """
import os, signal

def test_it():
    {body}
"""


@pytest.mark.parametrize(
    ("count", "broken", "code", "runs"),
    [(2, False, 0, 2), (1, True, 1, 2), (FAILURES_MAX + 1, False, 1, 1)],
    ids=["unstable", "broken", "many"],
)
def test_a_few_failures_are_tried_again_alone(tmp_path: Path, count: int, broken: bool, code: int, runs: int) -> None:
    """What passes then is named; what fails again, or is one of many, fails the run."""
    (tmp_path / "test_given.py").write_text(TESTS.format(count=count, broken=broken))
    command = [sys.executable, str(ROOT / "tools" / "test_run.py"), "-q", "--rootdir", str(tmp_path), "test_given.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert code == done.returncode, done.stdout
    assert runs == len([line for line in done.stdout.splitlines() if " failed in " in line or " passed in " in line])
    assert ("UNSTABLE" in done.stdout) == (code == 0)
    assert (f"test_it[{count - 1}]" in done.stdout.rpartition("UNSTABLE")[2]) == (runs == 2 or code == 1)


def test_a_test_that_is_skipped_alone_has_not_passed(tmp_path: Path) -> None:
    """Who skips where something is missing must not hide that it failed."""
    (tmp_path / "test_given.py").write_text(SKIPS)
    command = [sys.executable, str(ROOT / "tools" / "test_run.py"), "-q", "--rootdir", str(tmp_path), "test_given.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert 1 == done.returncode, done.stdout
    assert "NOT PASSED" in done.stdout
    assert "test_given::test_it" in done.stdout.rpartition("NOT PASSED")[2]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_what_tests_have_started(tmp_path: Path, number: signal.Signals) -> None:
    """Also one that reaches the first process alone, as from a supervisor: brokers and nodes ran on."""
    (tmp_path / "test_given.py").write_text(STARTS)
    command = [sys.executable, str(ROOT / "tools" / "test_run.py"), "-q", "--rootdir", str(tmp_path), "test_given.py"]
    running = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not (tmp_path / "pid").exists():
            time.sleep(0.05)
            assert running.poll() is None
        running.send_signal(number)
        assert 2 == running.wait()
        assert (tmp_path / "stopped").exists()
        assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))
    finally:
        running.kill()


def test_make_signals_the_run_and_no_shell() -> None:
    """A shell between them ends by itself, and the run of all tests never gets the signal."""
    text = (ROOT / "Makefile").read_text()
    [line] = [line for line in text.splitlines() if "tools/test_run.py" in line]
    assert line.startswith("\texec $(PYTHON_KEEPING) ")
    # An assignment before the program's name is for a shell alone.
    assert "\nPYTHON_KEEPING := env " in text


def test_a_worker_that_ends_fails_one_test_and_no_other(tmp_path: Path) -> None:
    """Others run what was left for it. A run in which a signal ended a worker waited until it was killed."""
    (tmp_path / "tests").mkdir()
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "tests")
    for number in range(9):
        body = "os.kill(os.getpid(), signal.SIGKILL)" if number == 5 else "pass"
        (tmp_path / "tests" / f"test_{number}.py").write_text(ENDS.format(body=body))
    options = ["-n", "2", "--dist", "loadscope", "--no-loadscope-reorder", "-p", "no:randomly", "-q", "-rf"]
    command = [sys.executable, "-m", "pytest", *options, "--rootdir", str(tmp_path), "tests"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120
    )
    assert "1 failed, 8 passed" in done.stdout, done.stdout
    assert "crashed while running 'tests/test_5.py::test_it'" in done.stdout
