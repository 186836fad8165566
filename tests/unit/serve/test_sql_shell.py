"""`headrace sql` in a pseudo-terminal and from stdin, against a node."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.terminal import HEADRACE, Terminal, terminal
from tests.unit.serve.conftest import FakeNode
from tests.waiting import eventually

ENDLESS = "SELECT count(*) FROM range(1000000000000) a(i) WHERE i % 7 = 3;"


@pytest.fixture
def shell(client: httpx.Client, tmp_path: Path) -> Iterator[Terminal]:
    """A shell at its first prompt, with a state directory of its own."""
    environment = {"XDG_STATE_HOME": str(tmp_path / "state")}
    command = (*HEADRACE, "sql", "--node", str(client.base_url), "--param", "truck=truck_1")
    with terminal(*command, columns=100, environment=environment) as running:
        running.expect("headrace=>")
        yield running


def answer(shell: Terminal, keys: str, pattern: str) -> str:
    """What is printed from some keys to the prompt behind a pattern."""
    shell.type(keys)
    return shell.expect(rf"{pattern}[\s\S]*headrace=>")


def test_a_session(shell: Terminal, node: FakeNode, tmp_path: Path) -> None:
    """Statements of several lines, tables and columns, records, completion, a cancelled query, an error, the history."""
    shell.type("SELECT name,\r count(*) AS n FROM iot.readings\r")
    assert "truck_1 │" in answer(shell, "GROUP BY name ORDER BY name;\r", "2 rows, [0-9]+ ms")

    answer(shell, "\\d\r", r"│ iot\.readings │ name")
    answer(shell, "\\d readings\r", r"│ velocity │ DOUBLE +│ field")
    answer(shell, "\\d reading\r", r"did you mean iot\.readings\?")

    answer(shell, "\\x on\r", "records: on")
    assert "── 1 ─" in answer(shell, "SELECT 1 AS one, 'a' AS text;\r", "1 row, ")
    answer(shell, "\\timing\r", "timing: off")

    assert "truck_1" in answer(
        shell, "SELECT $truck AS t, count(*) AS n FROM iot.readings WHERE name = $truck;\r", "1 row"
    )
    answer(shell, "\\set least 41\r", "")
    (tmp_path / "report.sql").write_text("\\set add 1\nSELECT $least + $add AS answer;\n")
    assert "42" in answer(shell, f"\\i {tmp_path}/report.sql\r", "1 row")
    assert "least" in answer(shell, "\\set\r", "truck_1")
    answer(shell, "\\unset least\r", "")
    answer(shell, f"\\i {tmp_path}/report.sql\r", r"error: no value for parameter \$least")
    answer(shell, "\\i missing.sql\r", r"error: missing\.sql: no such file")

    # Tab completes the column of the table that the statement names.
    rest = ") AS m FROM iot.readings;"
    shell.type(f"SELECT max(vel{rest}" + "\x1b[D" * len(rest) + "\t")
    shell.expect("ocity")
    assert "error" not in answer(shell, "\x1b[F\r", "1 row\n")

    # The node counts the query before until its result is closed, and Ctrl-C at the prompt is another thing.
    eventually(lambda: node.engine.statistics.running == 0, "the end of the query before")
    shell.type(ENDLESS + "\r")
    eventually(lambda: node.engine.statistics.running == 1, "a running query")
    shell.interrupt()
    shell.expect(r"cancelled[\s\S]*headrace=>")
    eventually(lambda: node.engine.statistics.running == 0, "the end of the query")

    assert "what to do" not in answer(shell, "SELECT nope FROM iot.readings;\r", "error: .*nope.*\n")
    shell.type("\\q\r")
    assert 0 == shell.wait()[0]

    history = tmp_path / "state" / "headrace" / "sql_history"
    assert "GROUP BY name" in history.read_text()
    assert 0o600 == history.stat().st_mode & 0o777


def test_keys_at_the_prompt(shell: Terminal) -> None:
    """Ctrl-C drops what is typed, the up key brings the last statement back, Ctrl-D leaves."""
    shell.type("SELECT broken")
    shell.expect("broken")
    answer(shell, "\x03", "")
    answer(shell, "SELECT 6 * 7 AS answer;\r", "1 row, ")
    assert "42" in answer(shell, "\x1b[A\r", "1 row, ")
    shell.type("\x04")
    assert 0 == shell.wait()[0]


def run(client: httpx.Client, *options: str, stdin: str) -> subprocess.CompletedProcess[str]:
    """`headrace sql` with statements from a pipe."""
    command = [*HEADRACE, "sql", "--node", str(client.base_url), *options]
    return subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60, check=False, env=os.environ)


def test_statements_from_stdin(client: httpx.Client) -> None:
    """A script runs to its first error; the last statement needs no `;`; with --json each answer is one line."""
    script = "-- a report;\nSELECT 'a;b' AS text;\n\nSELECT count(*) AS n\nFROM iot.readings"
    done = run(client, stdin=script)
    assert (0, True) == (done.returncode, "a;b" in done.stdout)
    assert done.stdout.index("a;b") < done.stdout.index("15")
    lines = run(client, "--json", stdin=f"FROM range(2) r(i); {script}").stdout.splitlines()
    assert ['[{"i":0},{"i":1}]', '[{"text":"a;b"}]', '[{"n":15}]'] == lines
    failed = run(client, "--param", "a=1", stdin="\\set b 2\nSELECT $a + $b AS sum;\nSELECT nope; SELECT 'after' AS t;")
    assert "3" in failed.stdout
    assert 1 == failed.returncode
    assert "nope" in failed.stderr
    assert "after" not in failed.stdout
