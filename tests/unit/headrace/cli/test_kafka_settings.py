"""A setting that librdkafka does not know, in every command that has librdkafka's settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from headrace.cli.main import build_app

COMMANDS = {
    "config": "config show",
    "write": "write rows.lp --database plant",
    "ingest": "ingest run --topic t --database plant --format influx",
    "backfill": "backfill rows.lp --database plant --table t --tags a --format csv",
    "node": "node run --id n1 --data-dir data",
    "replay": "replay --id n1 --data-dir data",
    "seal": "seal",
    "verify": "verify",
    "accept-gap": "accept-gap --group n1",
    "refuse-record": "refuse-record --group n1 --offset 1",
    "query": "query SELECT --cluster c",
    "status": "status --cluster c",
    "table": "table drop d.t --dry-run",
}
UNKNOWN = 'error: librdkafka refuses its settings: No such configuration property: "foo"'


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of its own, with a file to write and no cluster."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HEADRACE__CLUSTER__BOOTSTRAP", "127.0.0.1:1")
    (tmp_path / "rows.lp").write_text("pumps flow=1 1\n")
    return tmp_path


@pytest.mark.parametrize("in_file", [True, False])
@pytest.mark.parametrize("name", COMMANDS)
def test_an_unknown_property_is_one_clear_line(folder: Path, name: str, in_file: bool) -> None:
    """Given with -X or in `[kafka]`: exit code 2, one line and what to do, no wait for Kafka, and no file left behind."""
    words = COMMANDS[name].split()
    if in_file:
        (folder / "headrace.toml").write_text('[kafka]\nfoo = "bar"\n')
    else:
        words += ["-X", "foo=bar"]
    before = set(folder.iterdir())
    result = CliRunner().invoke(build_app(words), words)
    lines = result.stderr.splitlines()
    assert (2, "", UNKNOWN) == (result.exit_code, result.stdout, lines[0])
    assert 2 == len(lines)
    assert "-X" in lines[1]
    assert before == set(folder.iterdir())


def test_a_refused_value_is_named(folder: Path) -> None:
    """A value that librdkafka does not take is refused the same way."""
    result = CliRunner().invoke(build_app(["config"]), ["config", "show", "-X", "socket.timeout.ms=soon"])
    assert 2 == result.exit_code
    assert "socket.timeout.ms" in result.stderr
