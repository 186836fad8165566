"""Run pytest; then, if few tests failed, run those again with nothing beside them.

Tests of clusters wait for real processes while three other workers load the machine. A machine that stands
still for some seconds (as a shared one does) fails whatever is waiting then. Such a test passes alone, and is
named here. What is broken fails alone too: simulations and property tests have fixed seeds.

As in Kafka's own build (`maxTestRetries`, `maxTestRetryFailures`), more than a few failures are never tried
again.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

FAILED = 1
FAILURES_MAX = 10
RULE = "=" * 100


def main(arguments: list[str]) -> int:
    """The exit code: pytest's own, or that of the second run of the tests that failed."""
    cache = Path(tempfile.mkdtemp(prefix="headrace-test-run-"))
    try:
        code = pytest(cache, arguments)
        failed = failed_in(cache)
        if code != FAILED or not 0 < len(failed) <= FAILURES_MAX:
            return code
        announce(f"Run again, one after the other, with nothing beside them ({machine()}):", failed)
        code = pytest(cache, ["-n", "0", *failed])
        if code == 0:
            announce("UNSTABLE: failed beside other tests (see above), passed alone:", failed)
        return code
    finally:
        shutil.rmtree(cache, ignore_errors=True)


def pytest(cache: Path, arguments: list[str]) -> int:
    """Run pytest with a cache directory of this run; its exit code."""
    command = [sys.executable, "-m", "pytest", "-o", f"cache_dir={cache}", *arguments]
    return subprocess.run(command, check=False).returncode


def failed_in(cache: Path) -> list[str]:
    """The ids of the tests that failed in a run."""
    found = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(found.read_text())) if found.is_file() else []


def machine() -> str:
    """What a failure may come from: load and free disk space."""
    free = shutil.disk_usage(tempfile.gettempdir()).free / 2**30
    return f"load {os.getloadavg()[0]:.1f}, {free:.1f} GiB of disk free"


def announce(heading: str, tests: list[str]) -> None:
    """Print a list of tests that nobody overlooks."""
    print(f"\n{RULE}\n{heading}", *tests, RULE, sep="\n", flush=True)  # noqa: T201


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
