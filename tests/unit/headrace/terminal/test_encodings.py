"""Names, arguments and input that are no UTF-8, and outputs that cannot have every text."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[4]


def headrace(*arguments: str | bytes, stdin: bytes = b"", **environment: str) -> subprocess.CompletedProcess[bytes]:
    """A command as under an English or German locale: Python's own choice for `C` lets every byte pass."""
    variables = {**os.environ, "PYTHONIOENCODING": "utf-8:strict", **environment}
    line = [sys.executable, "-m", "headrace", *arguments]
    return subprocess.run(line, cwd=ROOT, env=variables, input=stdin, capture_output=True, check=False, timeout=60)


def test_the_name_of_a_file_comes_out_as_it_is(tmp_path: Path) -> None:
    """The file is written by then. Its name was a traceback, and the exit code 1."""
    file = os.fsencode(tmp_path) + b"/\xff.lp"
    done = headrace("generate", "iot", "--trucks", "1", "--duration", "10s", "--output", file)
    assert (0, b"") == (done.returncode, done.stderr)
    assert done.stdout.endswith(b": " + file + b"\n")


@pytest.mark.parametrize("encoding", ["utf-8:strict", "ascii:strict", "latin-1"])
def test_json_is_json_in_every_encoding(encoding: str) -> None:
    """Texts that the output cannot have are escaped, in results and in errors."""
    name = "\u20ac\udcff"
    done = headrace("config", "show", "--json", HEADRACE__NODE__ID=name, PYTHONIOENCODING=encoding)
    assert (0, b"") == (done.returncode, done.stderr)
    assert name == json.loads(done.stdout.decode())["node.id"]
    refused = headrace("config", "show", "--json", "-X", name, PYTHONIOENCODING=encoding)
    assert f"-X {name} is not KEY=VALUE" == json.loads(refused.stderr.decode())["error"]["message"]


def test_an_argument_that_is_no_utf8_is_a_wrong_command_line() -> None:
    """As a script in another encoding gives it. It was a traceback of whatever sends it."""
    code = "from headrace.terminal.command import run_command\nwith run_command(True):\n    chr(0xDCFF).encode()"
    line = [
        sys.executable,
        "-c",
        f"import click\ntry:\n    exec({code!r})\nexcept Exception as end:\n    exit(end.exit_code)",
    ]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, check=False, timeout=60)
    assert (2, r"'\udcff' is not text in UTF-8") == (done.returncode, json.loads(done.stderr)["error"]["message"])


@pytest.mark.parametrize("command", [("query", "-"), ("sql",)], ids=" ".join)
@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_sql_from_stdin_that_is_no_text_is_refused(command: tuple[str, ...], errors: str) -> None:
    """As a file with SQL is. It was a traceback under most locales."""
    done = headrace(*command, "--node", "127.0.0.1:1", stdin=b"SELECT \xff", PYTHONIOENCODING=f"utf-8:{errors}")
    assert (2, "error: standard input is not text in UTF-8") == (done.returncode, done.stderr.decode().splitlines()[0])


def test_a_file_of_a_user_who_is_not_there_is_refused() -> None:
    """`~NAME` that nobody has. It was a traceback."""
    done = headrace("query", "-f", "~nobody-of-this-name/q.sql", "--node", "127.0.0.1:1")
    assert (2, "error: ~nobody-of-this-name/q.sql:") == (done.returncode, done.stderr.decode()[:34])
