"""A wrong command line: exit code 2, and JSON with `--json`, whoever finds the error."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import get_args

import pytest
import typer
from typer.testing import CliRunner, Result

from headrace.cli.bench import BENCHES
from headrace.cli.main import build_app
from headrace.cli.verify import result_of
from headrace.connectors.formats.interface import FormatOptions
from headrace.connectors.formats.parser import parse_messages
from headrace.consumers.integrity.verify import GroupVerdict
from headrace.schemas.errors import HeadraceError
from headrace.terminal.command import exit_code_of
from headrace.terminal.output import refused_lines

NO_CLUSTER = "no cluster configured: run `headrace up`, or set cluster.bootstrap"


DELETE = ("delete", "--database", "plant", "--table", "pumps")

INGEST = ("ingest", "run", "--topic", "t", "--database", "d", "--format", "influx")


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No `headrace.toml` and no settings of the machine."""
    monkeypatch.chdir(tmp_path)
    for name in ("HEADRACE__NODE__URL", "HEADRACE__CLUSTER__NAME", "HEADRACE__CLUSTER__BOOTSTRAP"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str) -> Result:
    """Run the whole command line."""
    return CliRunner().invoke(build_app(arguments), list(arguments))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["write", "--jsn", "--json"], "--jsn"),
        (["write", "--json"], "Missing argument"),
        (["nothing", "--json"], "nothing"),
        (["query", "SELECT 1", "--timeout", "soon", "--json"], "--timeout"),
        (["query", " ", "--json"], "SQL is empty"),
        (["bench", "nothing", "--json"], "nothing"),
        (["seal", "--json"], NO_CLUSTER),
        (["status", "--json"], NO_CLUSTER),
        (["ingest", "run", "--topic", "t", "--database", "d", "--format", "influx", "--json"], NO_CLUSTER),
        (["table", "drop", "pumps", "--yes", "--json"], "pumps is not DB.TABLE"),
        (["table", "drop", "plant.pumps", "--json"], "dropping plant.pumps needs a yes"),
        (["retention", "set", "plant.pumps", "soon", "--json"], "retention soon is not a duration"),
        (["delete", "--database", "plant", "--table", "pumps", "--json"], "this deletes every row of the table"),
        (["seal", "--node", "n:1", "--timeout", "nan", "--json"], "nan is no time to wait"),
        (["verify", "--node", "n:1", "--timeout", "inf", "--json"], "inf is no time to wait"),
        (["accept-gap", "--group", "n1", "--node", "n:1", "--timeout", "-1", "--json"], "-1 is no time to wait"),
        ([*INGEST, "--interval-s", "nan", "--json"], "nan is no time to wait"),
        ([*INGEST, "--timeout", "soon", "--json"], "'soon' is no number of seconds"),
        ([*DELETE, "--start", "9999-01-01", "--json"], "--start 9999-01-01 is a time that no row has"),
        ([*DELETE, "--end", "0001-01-01", "--json"], "--end 0001-01-01 is a time that no row has"),
        ([*DELETE, "--start", "9" * 19, "--json"], f"--start {'9' * 19} is a time that no row has"),
        ([*DELETE, "--start", "9" * 5_000, "--json"], "is not a time"),
        (["query", "SELECT 1", "--node", "n:1", "--timeout", "1e308", "--json"], "is no number of seconds"),
        (["query", "SELECT $a", "--node", "n:1", "--param", f"a={'9' * 5_000}", "--json"], "a number of 5,000 digits"),
        (["seal", "--cluster", "Bad Name", "--bootstrap", "k:1", "--json"], "cluster name 'Bad Name'"),
        (["status", "--node", "foo", "--json"], "'foo' is not the address of a node, HOST:PORT"),
        (["seal", "--bootstrap", "foo", "--json"], "the address of Kafka foo is not HOST:PORT"),
        (["seal", "--bootstrap", ",", "--json"], "no address of Kafka is given"),
        (
            ["seal", "--bootstrap", "k:" + "9" * 5_000, "--json"],
            f"the address of Kafka k:{'9' * 5_000} is not HOST:PORT",
        ),
        (["status", "--bootstrap", "k:1, k:99999", "--json"], "the address of Kafka k:99999 is not HOST:PORT"),
        (["up", "--cluster", "Bad Name", "--json"], "cluster name 'Bad Name'"),
        (["node", "run", "--id", "a/b", "--data-dir", "d", "--json"], "node id 'a/b'"),
        (["node", "run", "--id", "a", "--nodes", "a,b/c", "--data-dir", "d", "--json"], "node id 'b/c'"),
        (["delete", "--database", "d", "--table", "t", "--end", "1767225600", "--json"], "looks like seconds"),
    ],
)
def test_a_usage_error_is_one_json_object_and_exit_code_2(arguments: list[str], message: str) -> None:
    """Also one that the parser of the command line finds. Standard output is empty."""
    done = run(*arguments)
    assert (2, "") == (done.exit_code, done.stdout)
    error = json.loads(done.stderr)["error"]
    assert message in error["message"]
    assert (False, False) == (error["retriable"], error["state_unknown"])


@pytest.mark.parametrize("name", BENCHES)
@pytest.mark.parametrize(("option", "message"), [("rowz=1", "there is no option 'rowz'"), ("{}=x", "is not a number")])
def test_a_benchmark_refuses_options_before_it_starts_anything(name: str, option: str, message: str) -> None:
    """An option that it does not have, and a value that is no number: one line, and no process was started."""
    defaults = import_module(BENCHES[name]).OPTIONS.defaults
    numbers = [key for key, value in defaults.items() if isinstance(value, int | float)]
    result = run("bench", name, "-o", option.format(numbers[0]), "--json")
    assert result.exit_code == 2
    [line] = result.stderr.splitlines()
    assert message in json.loads(line)["error"]["message"]


def test_without_json_a_usage_error_is_text() -> None:
    """`--json` behind `--` is an argument."""
    for arguments in (["write", "--jsn"], ["query", "--jsn", "--", "--json"]):
        done = run(*arguments)
        assert 2 == done.exit_code
        assert "--jsn" in done.stderr
        assert not done.stderr.lstrip().startswith("{")


def test_json_with_help_and_version_is_the_help() -> None:
    """Neither is an error."""
    assert 0 == run("write", "--json", "--help").exit_code
    assert 0 == run("--version").exit_code


@pytest.mark.parametrize("name", ["x.lp", "folder.lp"])
def test_a_file_that_cannot_be_written_is_named(name: str, tmp_path: Path) -> None:
    """`x.lp: no such file`, before Kafka is looked for."""
    (tmp_path / "folder.lp").mkdir()
    done = run("write", name, "--database", "d")
    assert 2 == done.exit_code
    assert {"x.lp": "x.lp: no such file", "folder.lp": "folder.lp: is a directory"}[name] in done.stderr


@pytest.mark.parametrize("form", ["json"])
def test_readings_without_a_table_name_the_options(form: str) -> None:
    """The action has the two options, and the exit code is that of a wrong command line."""
    import pyarrow as pa

    with pytest.raises(HeadraceError) as caught:
        parse_messages(form, pa.array([b'{"time": 1}']), pa.array([0]), FormatOptions())
    assert "give `--table NAME` or `--table-column FIELD`" == caught.value.action
    assert 2 == exit_code_of(caught.value)


@pytest.mark.parametrize("columns", ["a,a,time", "b,time"])
def test_columns_that_no_message_can_have_are_wrong_options(columns: str) -> None:
    """One is there twice, or a tag is missing: exit code 2, before Kafka is looked for."""
    given = ("--topic", "t", "--database", "d", "--table", "t", "--tags", "a", "--bootstrap", "127.0.0.1:1")
    done = run("ingest", "run", *given, "--format", "csv", "--columns", columns)
    assert (2, "column 'a'") == (done.exit_code, "column 'a'" if "column 'a'" in done.stderr else done.stderr)


def test_lines_are_counted_in_singular_and_plural() -> None:
    """One line is a line."""
    assert ["0 lines refused", "1 line refused", "2,000 lines refused"] == list(map(refused_lines, (0, 1, 2_000)))


@pytest.mark.parametrize(
    ("members", "missing", "differences", "expected"),
    [
        (("n1", "n2", "n3"), (), (), "equal"),
        (("n1", "n2"), ("n3",), (), "equal (2 of 3; n3 missing)"),
        (("n1",), ("n2", "n3"), (), "not compared (1 of 3; n2, n3 missing)"),
        (("n1", "n2"), ("n3",), ("chain",), "different"),
    ],
)
def test_verify_names_missing_members_in_its_result(
    members: tuple[str, ...], missing: tuple[str, ...], differences: tuple[str, ...], expected: str
) -> None:
    """Equal of two is not equal of three, and one member is equal to nobody."""
    assert expected == result_of(GroupVerdict("n1", 5, 4, 1, members, missing, differences))


PATHS = [
    ["node", "run", "--id", "a", "--data-dir"],
    ["replay", "--id", "a", "--data-dir"],
    ["up", "--dir"],
    ["down", "--dir"],
    ["demo", "--data-dir"],
    ["broker", "start", "--data-dir"],
    ["sync", "status", "--data-dir"],
    ["sync", "receive", "--data-dir"],
    ["backfill", "a.csv", "--database", "d", "--table", "t", "--format", "csv", "--checkpoint"],
    ["backfill", "a.csv", "--database", "d", "--table", "t", "--format", "csv", "--data-dir"],
    ["backfill", "--database", "d", "--table", "t", "--format", "csv"],
    ["ingest", "run", "--topic", "t", "--format", "avro", "--database", "d", "--schema-dir"],
    ["ingest", "run", "--topic", "t", "--format", "json", "--database", "d", "--mapping"],
    ["ingest", "run", "--topic", "t", "--format", "json", "--database", "d", "--checkpoint"],
    ["query", "-f"],
    ["write", "--database", "d"],
    ["generate", "cpu", "--output"],
    ["wal", "repair"],
]


@pytest.mark.parametrize("words", PATHS)
def test_an_empty_path_is_refused(words: list[str], tmp_path: Path) -> None:
    """A variable of a script that is not set gives one. It was taken for the current directory."""
    done = run(*words, "")
    assert (2, "") == (done.exit_code, done.stdout)
    assert "the path is empty" in " ".join(done.stderr.replace("│", " ").split()), done.stderr
    error = json.loads(run(*words, "", "--json").stderr)["error"]
    assert "the path is empty" in error["message"]
    assert [] == list(tmp_path.iterdir())


def test_every_option_that_is_a_path_refuses_an_empty_one() -> None:
    """typer's own type for paths makes the current directory of an empty text: no parameter is left to it."""
    paths = 0
    for command in commands_of(build_app()):
        for parameter in inspect.signature(command, eval_str=True).parameters.values():
            kind, *marks = get_args(parameter.annotation) or (parameter.annotation,)
            if Path in (kind, *get_args(kind)):
                paths += 1
                assert all(mark.parser is not None for mark in marks), (command, parameter.name)
    assert paths > 10


def commands_of(app: typer.Typer) -> Iterator[Callable[..., object]]:
    """The functions of all commands."""
    yield from (command.callback for command in app.registered_commands if command.callback is not None)
    for group in app.registered_groups:
        assert group.typer_instance is not None
        yield from commands_of(group.typer_instance)


def test_the_log_to_repair_is_no_file(tmp_path: Path) -> None:
    """It is a directory, or nothing yet."""
    (tmp_path / "file").touch()
    done = run("wal", "repair", "file", "--json")
    assert (2, True) == (done.exit_code, "file is a file" in json.loads(done.stderr)["error"]["message"])


@pytest.mark.parametrize("keep", ["never", "0s"])
def test_a_retention_without_end_is_named_with_the_others(keep: str) -> None:
    """Whoever writes another word for it reads the one that counts."""
    result = run("retention", "set", "plant.pumps", keep, "--json")
    assert result.exit_code == 2
    assert "forever" in result.output
