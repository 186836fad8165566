"""Ctrl-C while a command waits for a broker that accepts connections and never answers."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from headrace.terminal import interruption

ROOT = Path(__file__).resolve().parents[4]
# Without help a call of librdkafka returns after 10 s at the earliest; the command itself needs half of one.
END_S = 7
START_S = 60


@pytest.fixture
def mute() -> Iterator[socket.socket]:
    """A listener that answers nothing."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        listening.settimeout(START_S)
        yield listening


@pytest.mark.parametrize(
    "arguments",
    [
        ["seal", "--json"],
        ["write", "x.lp", "--database", "d"],
        ["node", "run", "--id", "n1", "--nodes", "n1", "--data-dir", "n1"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_ctrl_c_ends_a_command_that_waits_for_a_dead_broker(
    mute: socket.socket, tmp_path: Path, arguments: list[str]
) -> None:
    """Exit code 130, one line that names the interruption, and JSON with `--json`."""
    (tmp_path / "x.lp").write_text("t v=1 1767225600000000000\n")
    bootstrap = f"127.0.0.1:{mute.getsockname()[1]}"
    line = [sys.executable, "-m", "headrace", *arguments, "--cluster", "c", "--bootstrap", bootstrap]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        line, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            connected, _ = mute.accept()
            with connected:
                # Its first request: from now on the command waits for an answer.
                connected.settimeout(START_S)
                assert connected.recv(1)
                process.send_signal(signal.SIGINT)
                _, stderr = process.communicate(timeout=END_S)
        finally:
            process.kill()
    assert 130 == process.returncode, stderr
    if "--json" in arguments:
        error = json.loads(stderr)["error"]
        assert ("Interrupted", True) == (error["type"], error["state_unknown"])
    else:
        assert 1 == stderr.splitlines().count("interrupted"), stderr


ENDED = """
import signal, sys, threading, time
from headrace.cli import main

def wait():
    while signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        time.sleep(0.01)
    print("ended", flush=True)
    time.sleep(60)

def build(_arguments):
    def command():
        threading.Thread(target=wait).start()
        sys.exit(3)
    return command

main.build_app = build
main.main()
"""


def test_ctrl_c_ends_a_command_that_has_ended_with_its_own_code() -> None:
    """A thread may still wait, as one of librdkafka does. The work is done, and its exit code must not change."""
    with subprocess.Popen([sys.executable, "-c", ENDED], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
        assert child.stdout is not None
        assert b"ended\n" == child.stdout.readline()
        child.send_signal(signal.SIGINT)
        _, errors = child.communicate(timeout=30)
    assert (3, b"") == (child.returncode, errors)


LOADING = """
import os, signal, sys

class Interrupt:
    def find_spec(self, name, path=None, target=None):
        if name == "typer":
            os.kill(os.getpid(), signal.SIGINT)

sys.meta_path.insert(0, Interrupt())
import runpy
runpy.run_module("headrace", run_name="__main__")
"""


def test_ctrl_c_while_the_command_line_is_loaded_ends_it_in_silence() -> None:
    """That takes a tenth of a second and more. It was a traceback of 30 lines, and the end by a signal."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-c", LOADING, "--help"]
    done = subprocess.run(line, env=environment, capture_output=True, timeout=60, check=False)
    assert (130, b"", b"") == (done.returncode, done.stdout, done.stderr)


INTERRUPTED = """
import os, signal, sys
from headrace.cli import main

class Late:
    def __del__(self, kill=os.kill, process=os.getpid(), number=signal.SIGINT):
        kill(process, number)

def handled():
    try:
        exec("raise KeyboardInterrupt")
    except KeyboardInterrupt:
        sys.exit(130)

def late():
    main.late = Late()
    sys.exit(3)

def twice():
    raise KeyboardInterrupt

main.build_app = lambda _arguments: globals()[sys.argv[1]]
main.main()
"""


@pytest.mark.parametrize(("how", "code"), [("handled", 130), ("twice", 130), ("late", 3)])
def test_ctrl_c_at_any_moment_leaves_an_exit_code_and_no_signal(tmp_path: Path, how: str, code: int) -> None:
    """In code that a library compiles, while the first one is handled, and while Python removes its modules."""
    (tmp_path / "interrupted.py").write_text(INTERRUPTED)
    line = [sys.executable, "-m", "interrupted", how]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    done = subprocess.run(line, env=environment, capture_output=True, timeout=60, check=False)
    assert (code, b"") == (done.returncode, done.stderr)


def test_a_patient_command_keeps_its_patience_when_the_next_one_has_begun(monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread that reads Ctrl-C may be late. It then ended a process whose patient command had long ended."""
    late = list[threading.Thread]()

    class LateThread(threading.Thread):
        """Starts when the test wants it to."""

        def start(self) -> None:
            """See Thread."""
            late.append(self)

    named = SimpleNamespace(**{**vars(threading), "Thread": LateThread})
    monkeypatch.setattr(interruption, "threading", named)

    def patient_command() -> None:
        with interruption.prompt_interruption(lambda: None, 130):
            interruption.be_patient()
            os.kill(os.getpid(), signal.SIGINT)

    # A node that another test has run in this process leaves its own.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            patient_command()
    finally:
        signal.signal(signal.SIGINT, before)
    with interruption.prompt_interruption(lambda: None, 130):
        late[0].run()
    assert ["interruption", "interruption"] == [thread.name for thread in late], "none counts down to the end"
    late[1].run()
