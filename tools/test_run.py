"""Run pytest; then, if few tests failed, run those again with nothing beside them.

Tests of clusters wait for real processes while three other workers load the machine. A machine that stands
still for some seconds (as a shared one does) fails whatever is waiting then. Such a test passes alone, and is
named here. What is broken fails alone too: simulations and property tests have fixed seeds. A test that is
skipped then has not passed.

As in Kafka's own build (`maxTestRetries`, `maxTestRetryFailures`), more than a few failures are never tried
again.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from xml.etree import ElementTree

FAILED = 1
INTERRUPTED = 2
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
FAILURES_MAX = 10
RULE = "=" * 100


def main(arguments: list[str]) -> int:
    """The exit code: pytest's own, or that of the second run of the tests that failed."""
    cache, pytest = Path(tempfile.mkdtemp(prefix="headrace-test-run-")), Pytest()
    try:
        code = pytest.run(cache, arguments)
        failed = failed_in(cache)
        if code != FAILED or not 0 < len(failed) <= FAILURES_MAX or pytest.interrupted:
            return code
        announce(f"Run again, one after the other, with nothing beside them ({machine()}):", failed)
        report = cache / "again.xml"
        code = pytest.run(cache, ["-n", "0", f"--junitxml={report}", *failed])
        if code == 0 and (skipped := skipped_in(report)):
            announce("NOT PASSED: failed beside other tests (see above), skipped alone:", skipped)
            return FAILED
        if code == 0:
            announce("UNSTABLE: failed beside other tests (see above), passed alone:", failed)
        return code
    finally:
        shutil.rmtree(cache, ignore_errors=True)


class Pytest:
    """One run after the other. A signal to this process ends the run as Ctrl-C does: it stops what tests have started."""

    def __init__(self) -> None:
        self.interrupted = False
        self._running: subprocess.Popen[bytes] | None = None
        for number in ENDING:
            signal.signal(number, self._interrupt)

    def run(self, cache: Path, arguments: Sequence[str]) -> int:
        """Run pytest with a cache directory of this run; its exit code."""
        command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments]
        # A group of its own: a terminal's Ctrl-C would reach it twice, and the second one ends its clean-up.
        running = self._running = subprocess.Popen(command, stdin=subprocess.DEVNULL, process_group=0)
        if self.interrupted:
            self._interrupt()
        code = running.wait()
        self._running = None
        return code or (INTERRUPTED if self.interrupted else 0)

    def _interrupt(self, *_: object) -> None:
        self.interrupted = True
        if self._running is not None:
            with suppress(ProcessLookupError):
                os.killpg(self._running.pid, signal.SIGINT)


def failed_in(cache: Path) -> list[str]:
    """The ids of the tests that failed in a run."""
    found = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(found.read_text())) if found.is_file() else []


def skipped_in(report: Path) -> list[str]:
    """The tests that a run skipped, by its report."""
    cases = ElementTree.parse(report).iter("testcase")
    return sorted(f"{case.get('classname')}::{case.get('name')}" for case in cases if case.find("skipped") is not None)


def machine() -> str:
    """What a failure may come from: load and free disk space."""
    free = shutil.disk_usage(tempfile.gettempdir()).free / 2**30
    return f"load {os.getloadavg()[0]:.1f}, {free:.1f} GiB of disk free"


def announce(heading: str, tests: list[str]) -> None:
    """Print a list of tests that nobody overlooks."""
    print(f"\n{RULE}\n{heading}", *tests, RULE, sep="\n", flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
