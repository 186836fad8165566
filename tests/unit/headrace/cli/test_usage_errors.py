"""A wrong command line: exit code 2, and JSON with `--json`, whoever finds the error."""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path

import pytest
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
    numbers = [key for key, value in import_module(BENCHES[name]).OPTIONS.items() if isinstance(value, int | float)]
    result = run("bench", name, "-o", option.format(numbers[0]), "--json")
    assert result.exit_code == 2
    assert message in json.loads(result.stderr.splitlines()[-1])["error"]["message"]


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
