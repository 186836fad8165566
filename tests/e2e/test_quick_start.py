"""The quick start of the README, pasted into a shell."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from headrace.local_cluster import LocalCluster
from tests.waiting import eventually

pytestmark = pytest.mark.broker
README = (Path(__file__).resolve().parents[2] / "README.md").read_text("utf-8")


def block(language: str, containing: str) -> str:
    """The only fenced block of the README in a language that contains a text."""
    found = [text for text in re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S) if containing in text]
    assert len(found) == 1, f"{len(found)} blocks hold {containing!r}"
    return str(found[0])


def run(command: list[str], directory: Path) -> subprocess.CompletedProcess[str]:
    """Run a command to its end in a directory, as in an activated environment."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("HEADRACE__")}
    environment["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(
        command, cwd=directory, env=environment, capture_output=True, text=True, timeout=180, check=False
    )


def paste(containing: str, directory: Path) -> subprocess.CompletedProcess[str]:
    """Paste a block of the README into a shell."""
    return run(["sh", "-eu", "-c", block("sh", containing)], directory)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """An empty folder in which the README's `headrace up` has run; Kafka is on a random port."""
    directory = tmp_path_factory.mktemp("quick")
    try:
        started = paste("headrace up ", directory)
        assert 0 == started.returncode, started.stderr
        yield directory
    finally:
        if (directory / ".headrace" / "cluster.json").exists():
            LocalCluster.load(directory / ".headrace").stop()


@pytest.mark.slow(25)
def test_the_shell_part_works(folder: Path) -> None:
    """A file is written and queried, the status is shown, and sealed files are read: no command has an option for
    the connection.

    The test retries: a query of another process may come before the rows are applied.
    """

    def succeeded() -> bool:
        done = paste("cat > pumps.lp", folder)
        assert "3 rows, 9 points" in done.stdout, done.stderr
        rows = re.search(r"p1\W+12\.7\W+p2\W+11\.9", done.stdout)
        return done.returncode == 0 and rows is not None and "headrace / n" in done.stdout

    eventually(succeeded, "the results in the README")
    sealed = paste("headrace seal", folder)
    assert 0 == sealed.returncode, sealed.stderr
    # Each retry of the block above wrote the rows again, and each file may hold them.
    assert re.search(r"│ +[3-9] │", sealed.stdout), sealed.stdout


def test_the_python_part_works(folder: Path) -> None:
    """A client writes a reading of another site and counts it at once."""
    done = run([sys.executable, "-c", block("python", "import headrace")], folder)
    assert re.search(r"south +1", done.stdout), done.stderr
