"""What Ctrl-C does while a session is opened."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from headrace.connectors.kafka.jars import JarSet
from headrace.pipeline import session


@pytest.fixture
def interrupts() -> Iterator[list[int]]:
    """The interrupts that reach the program, and a thread beside the main one, which may get the signal."""
    received: list[int] = []
    done = threading.Event()
    beside = threading.Thread(target=done.wait, daemon=True)
    beside.start()
    before = signal.signal(signal.SIGINT, lambda number, _frame: received.append(number))
    yield received
    signal.signal(signal.SIGINT, before)
    done.set()
    beside.join(10)


def test_an_interrupt_while_pyspark_starts_is_the_programs_own(
    interrupts: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """PySpark's handler calls the JVM in the middle of another call, which is an error of the command with a traceback."""
    own = signal.getsignal(signal.SIGINT)

    class Builder:
        def appName(self, _name: str) -> Builder:  # noqa: N802
            return self

        def config(self, _key: str, _value: str) -> Builder:
            return self

        def getOrCreate(self) -> None:  # noqa: N802
            # As in the constructor of a SparkContext, by its own view of the module.
            theirs = SparkContext.__init__.__globals__["signal"]
            theirs.signal(theirs.SIGINT, lambda _number, _frame: pytest.fail("PySpark has the interrupt"))
            for thread in threading.enumerate():
                if thread is not threading.main_thread() and thread.ident is not None:
                    signal.pthread_kill(thread.ident, signal.SIGINT)
                    break
            while not interrupts:
                threading.Event().wait(0.01)
            raise InterruptedError

    monkeypatch.setattr(session, "_launch", lambda *_arguments: None)
    monkeypatch.setattr(SparkSession, "builder", Builder())
    with suppress(InterruptedError):
        session.open_session("x")
    assert ([signal.SIGINT], own) == (interrupts, signal.getsignal(signal.SIGINT))
    assert SparkContext.__init__.__globals__["signal"] is signal


def test_an_interrupt_while_the_jvm_starts_leaves_no_process(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The JVM finds no place for its address then, never comes to wait for its end, and kept the checkpoint locked."""
    started: list[subprocess.Popen[bytes]] = []

    def launch(conf: SparkConf, child: dict[str, object]) -> None:
        options = conf.get("spark.driver.extraJavaOptions")
        command = [sys.executable, "-c", "import time; time.sleep(60)", str(options)]
        started.append(subprocess.Popen(command, **child))  # type: ignore[call-overload]
        raise KeyboardInterrupt

    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, "")
    monkeypatch.setattr(session, "launch_gateway", launch)
    monkeypatch.setattr(session, "resolve_jars", lambda **_options: JarSet(tmp_path, {"spark": ()}))
    beside = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    with pytest.raises(KeyboardInterrupt):
        session._launch("x", tmp_path / "spark.log", {}, (), None)
    assert not psutil.pid_exists(started[0].pid)
    started[0].wait(20)
    assert beside.poll() is None
    beside.communicate(b"\n", 20)


@pytest.mark.parametrize("ending", [None, KeyboardInterrupt], ids=["its end", "an interrupt"])
def test_the_folder_of_a_session_goes_with_its_jvm(
    monkeypatch: pytest.MonkeyPatch, ending: type[BaseException] | None
) -> None:
    """A command that Ctrl-C has ended leaves the process without what Python does at its exit: the folder stayed."""
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL)
    gateway = SimpleNamespace(proc=process, shutdown=lambda: None)
    monkeypatch.setattr(SparkContext, "_gateway", gateway)
    monkeypatch.setattr(session, "_scratch", [])
    folder = Path(session._scratch_directory())
    assert folder.is_dir()
    opened: Any = SimpleNamespace(stop=lambda: None)
    with suppress(KeyboardInterrupt), session.end_session(opened):
        if ending is not None:
            raise ending
    assert process.stdin is not None
    process.stdin.close()
    process.wait(20)
    assert not folder.exists()
    # Another session of this process has one of its own.
    assert folder != Path(session._scratch_directory())
    session._remove_scratch()
