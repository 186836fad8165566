"""Commands whose standard output is closed, full, or read by nobody."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]
FULL = "standard output cannot be written: No space left on device"


def shell(line: str) -> subprocess.CompletedProcess[str]:
    """A line of bash, in which `headrace` is the command."""
    text = f'headrace() {{ "{sys.executable}" -m headrace "$@"; }}; {line}'
    return subprocess.run(["bash", "-c", text], cwd=ROOT, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.parametrize("closed", [">&-", ">&- 2>&- <&-"])
def test_a_closed_output_discards(closed: str) -> None:
    """As a daemon starts a command: the exit code is that of its work, and there is no traceback."""
    done = shell(f"headrace config show --json {closed}")
    assert (0, "", "") == (done.returncode, done.stdout, done.stderr)


@pytest.mark.parametrize("arguments", ["--version", "config --help", "config show"])
def test_an_output_on_a_full_disk_is_named(arguments: str) -> None:
    """Two lines on stderr: what cannot be written, and that the work may be done."""
    done = shell(f"headrace {arguments} >/dev/full")
    assert (1, f"error: {FULL}") == (done.returncode, done.stderr.splitlines()[0])
    assert ["what to do"] == [line.partition(":")[0] for line in done.stderr.splitlines()[1:]]


def test_an_output_on_a_full_disk_is_an_unknown_state_for_programs() -> None:
    """A command that changes something has done so before it prints."""
    done = shell("headrace config show --json >/dev/full")
    error = json.loads(done.stderr)["error"]
    assert (1, "OutputLost", FULL, True) == (done.returncode, error["type"], error["message"], error["state_unknown"])


def test_a_full_disk_for_all_output_leaves_the_exit_code() -> None:
    """Nobody can read the error then."""
    assert 1 == shell("headrace config show >/dev/full 2>&1").returncode


@pytest.mark.parametrize("arguments", ["--help", "config show"])
def test_a_reader_that_leaves_ends_the_command_quietly(arguments: str) -> None:
    """`headrace … | head -1` prints no error, and has the exit code of a closed pipe: 1 comes with `error:`."""
    done = shell(f"headrace {arguments} | true; exit ${{PIPESTATUS[0]}}")
    assert (141, "") == (done.returncode, done.stderr)


@pytest.mark.parametrize("arguments", ["query --nope", "query --nope --json", "config show --nope"])
def test_a_wrong_option_keeps_its_code_where_nobody_can_read_about_it(arguments: str) -> None:
    """Standard error is on a full disk."""
    assert 2 == shell(f"headrace {arguments} 2>/dev/full").returncode


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_line_of_standard_error_is_there_as_soon_as_it_ends(unbuffered: str) -> None:
    """What a shell prints while it waits for the next statement, also where Python is to buffer nothing."""
    code = "import os, sys; streams.open_standard_streams(); sys.stderr.write('cancelled\\n'); os._exit(0)"
    line = [sys.executable, "-c", f"from headrace.terminal import standard_streams as streams; {code}"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": unbuffered}
    assert b"cancelled\n" == subprocess.run(line, env=environment, capture_output=True, check=False).stderr
