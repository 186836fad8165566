"""What `headrace write` reads: files, standard input, and what is no regular file."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import BinaryIO

import pytest
from typer.testing import CliRunner, Result

from headrace import _file_writer
from headrace._file_writer import FileProgress
from headrace.cli import write
from headrace.cli.main import build_app
from headrace.connectors.formats.file_blocks import iterate_file
from headrace.connectors.formats.interface import FormatOptions

LINES = b"pumps,pump=p1 flow=1 1767225600000000000\npumps,pump=p2 flow=2 1767225600000000000\n"


class CountingWriter:
    """Counts the rows of a file in place of a cluster."""

    def __init__(self, *_: object) -> None:
        self.progress = FileProgress()

    def write(self, source: str | BinaryIO, form: str, options: FormatOptions) -> Iterator[FileProgress]:
        """Read it, as the writer does."""
        rows = sum(
            table.num_rows for block in iterate_file(source, form, options) for table in block.parsed.tables.values()
        )
        self.progress = FileProgress(rows=rows)
        yield self.progress


@pytest.fixture(autouse=True)
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No cluster, and no settings of the machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(write, "_open", lambda *_: SimpleNamespace(close=lambda: None))
    monkeypatch.setattr(_file_writer, "FileWriter", CountingWriter)


def written(*arguments: str) -> Result:
    """Run `headrace write`."""
    words = ["write", *arguments, "--database", "d", "--bootstrap", "k:1", "--cluster", "c", "--json"]
    return CliRunner().invoke(build_app(words), words)


def test_a_pipe_is_read_as_standard_input_is() -> None:
    """`headrace write <(zcat x.gz)` names /dev/fd/63, which exists and is no regular file."""
    reading, writing = os.pipe()
    os.write(writing, LINES)
    os.close(writing)
    try:
        done = written(f"/dev/fd/{reading}", "--format", "influx")
    finally:
        os.close(reading)
    assert (0, True) == (done.exit_code, '"rows": 2' in done.stdout), done.stderr


def test_a_named_pipe_is_read(tmp_path: Path) -> None:
    """Its name may end as that of a file does."""
    os.mkfifo(tmp_path / "x.lp")
    feeding = threading.Thread(target=lambda: (tmp_path / "x.lp").write_bytes(LINES), daemon=True)
    feeding.start()
    done = written("x.lp")
    feeding.join(10)
    assert (0, True) == (done.exit_code, '"rows": 2' in done.stdout), done.stderr


def test_the_format_of_a_pipe_is_given() -> None:
    """A number is no name that ends as a format does."""
    reading, writing = os.pipe()
    os.close(writing)
    try:
        done = written(f"/dev/fd/{reading}")
    finally:
        os.close(reading)
    assert (2, True) == (done.exit_code, "give --format" in done.stderr)


def test_a_directory_and_what_is_not_there_are_refused(tmp_path: Path) -> None:
    """By what they are. A link to nothing is not there."""
    (tmp_path / "folder.lp").mkdir()
    (tmp_path / "link.lp").symlink_to("nothing")
    for name, reason in (("folder.lp", "is a directory"), ("link.lp", "no such file"), ("x.lp", "no such file")):
        done = written(name)
        assert (2, True) == (done.exit_code, f"{name}: {reason}" in done.stderr)


def test_a_file_that_cannot_be_read_is_not_sent(tmp_path: Path) -> None:
    """The remark before the error says so; it was of 0 rows that were sent."""
    (tmp_path / "x.csv").write_text("time,pump\n2026-01-01,p1\n")
    done = written("x.csv", "--table", "t", "--tags", "pomp")
    assert (1, "nothing was written") == (done.exit_code, done.stderr.splitlines()[0])
