"""`headrace query` and `headrace status` against a node."""

from __future__ import annotations

import json
from pathlib import Path

import httpx
import pyarrow as pa
import pytest
import typer
from typer.testing import CliRunner, Result

from headrace.cli import query, status
from headrace.connectors.http import AnswerCut
from headrace.consumers.query.query_errors import UnknownTable
from headrace.node_client import NodeAddressInvalid, NodeClient
from tests.unit.serve.conftest import FakeNode

ROWS = "SELECT name, velocity, time FROM iot.readings ORDER BY time LIMIT 2"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No `headrace.toml` and no settings of the machine."""
    monkeypatch.chdir(tmp_path)
    for name in ("HEADRACE__NODE__URL", "HEADRACE__CLUSTER__NAME", "HEADRACE__CLUSTER__BOOTSTRAP"):
        monkeypatch.delenv(name, raising=False)


def run(*arguments: str, stdin: str | None = None) -> Result:
    """Run the command line with only these two commands."""
    app = typer.Typer()
    query.register(app)
    status.register(app)
    return CliRunner().invoke(app, list(arguments), input=stdin)


def test_rows_as_json(client: httpx.Client) -> None:
    """`--format json` and `--json` print one array of rows on stdout and nothing else."""
    for option in (["--format", "json"], ["--json"]):
        result = run("query", ROWS, "--node", str(client.base_url), *option)
        assert (0, "") == (result.exit_code, result.stderr)
        assert ["truck_1", "truck_2"] == [row["name"] for row in json.loads(result.stdout)]


def test_rows_as_csv_and_arrow(client: httpx.Client) -> None:
    """The other formats are printed as the node sends them."""
    csv = run("query", ROWS, "--node", str(client.base_url), "--format", "csv")
    assert "name,velocity,time" == csv.stdout.splitlines()[0]
    arrow = run("query", ROWS, "--node", str(client.base_url), "--format", "arrow")
    assert 2 == pa.ipc.open_stream(arrow.stdout_bytes).read_all().num_rows


def test_rows_as_a_table_with_the_count_on_stderr(client: httpx.Client) -> None:
    """For people: a table on stdout, how many rows and how long on stderr."""
    result = run("query", ROWS, "--node", str(client.base_url))
    assert 0 == result.exit_code
    assert "2023-11-15 00:00:10" in result.stdout
    assert result.stderr.startswith("2 rows, ")
    assert "1 row," in run("query", "SELECT 1", "--node", str(client.base_url)).stderr


def test_long_tables_are_limited_with_the_true_count(client: httpx.Client) -> None:
    """A terminal gets the first thousand rows and the true count."""
    result = run("query", "SELECT i FROM range(70000) t(i)", "--node", str(client.base_url))
    assert "70,000 rows (the first 1,000 shown)" in result.stderr
    assert 1_000 + 4 == len(result.stdout.splitlines())
    assert 3 == len(
        json.loads(run("query", "FROM range(9)", "--limit", "3", "--json", "--node", str(client.base_url)).stdout)
    )


def test_sql_from_stdin(client: httpx.Client) -> None:
    """`-` reads the statement from stdin."""
    assert [{"a": 1}] == json.loads(
        run("query", "-", "--json", "--node", str(client.base_url), stdin="SELECT 1 AS a\n").stdout
    )


def test_a_wrong_query_is_one_line(client: httpx.Client) -> None:
    """The node's error and its action go to stderr, nothing to stdout, and the exit code is 1."""
    result = run("query", "SELECT * FROM iot.reading", "--node", str(client.base_url))
    assert (1, "") == (result.exit_code, result.stdout)
    assert "error: there is no table 'iot.reading'\nwhat to do: did you mean iot.readings?\n" == result.stderr
    described = json.loads(run("query", "DROP TABLE x", "--json", "--node", str(client.base_url)).stderr)
    assert "NotReadOnly" == described["error"]["type"]


def test_a_node_that_is_not_there_is_named() -> None:
    """Unreachable nodes and missing or malformed addresses end with one line."""
    gone = run("query", "SELECT 1", "--node", "http://127.0.0.1:1")
    assert 1 == gone.exit_code
    assert "no node answers at http://127.0.0.1:1" in gone.stderr
    assert "--node" in run("query", "SELECT 1").stderr
    assert "is not the address of a node" in run("query", "SELECT 1", "--node", "127.0.0.1:80/x").stderr


def test_an_address_needs_no_scheme(client: httpx.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """HOST:PORT is an address for `--node`, for the setting, and for a NodeClient, as is a link from the browser."""
    place = f"{client.base_url.host}:{client.base_url.port}"
    assert 0 == run("query", "SELECT 1", "--node", place).exit_code
    monkeypatch.setenv("HEADRACE__NODE__URL", place)
    assert 0 == run("query", "SELECT 1").exit_code
    assert [f"http://{place}"] * 3 == [NodeClient(f"{form}").url for form in (place, f"http://{place}/#q", f"{place}/")]


def test_the_node_comes_from_environment_or_file(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """`headrace query` needs no flag where a setting names the node; the flag wins."""
    (tmp_path / "headrace.toml").write_text('[node]\nurl = "http://127.0.0.1:1"\n')
    assert 1 == run("query", "SELECT 1", "--json").exit_code
    monkeypatch.setenv("HEADRACE__NODE__URL", str(client.base_url))
    assert 0 == run("query", "SELECT 1", "--json").exit_code
    assert 1 == run("query", "SELECT 1", "--json", "--node", "http://127.0.0.1:1").exit_code


def test_a_cut_answer_fails_after_the_received_rows(client: httpx.Client) -> None:
    """Received rows are printed; exit code and stderr report that they are not all."""
    sql = "SELECT CASE WHEN i = 4900000 THEN error('boom') ELSE i END AS i FROM range(5000000) t(i)"
    result = run("query", sql, "--format", "csv", "--node", str(client.base_url))
    assert 1 == result.exit_code
    assert "the rows so far are not all" in result.stderr
    with pytest.raises(AnswerCut):
        list(NodeClient(str(client.base_url)).query(sql))


@pytest.mark.parametrize("form", ["table", "json", "csv", "arrow"])
def test_a_stale_answer_fails(client: httpx.Client, node: FakeNode, form: str) -> None:
    """A node that stopped serving in the middle of a query is an error of the command in every format."""
    node.source.stale = "it was stopped"
    failed = run("query", "SELECT * FROM iot.readings", "--format", form, "--node", str(client.base_url))
    assert (1, "") == (failed.exit_code, failed.stdout)
    assert "it was stopped" in failed.stderr


def test_status_for_people_and_scripts(client: httpx.Client, node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Groups with role, version, lag and sizes; an unknown lag is "unknown"; exit code 1 when it is not ready."""
    group = {
        "group": "n1",
        "role": "leader",
        "leader": "n1",
        "version": 12,
        "lag_records": 0,
        "lag_seconds": -1,
        "segments": 3,
    }
    members = [
        {"node": "n2", "group": "n1", "role": "follower", "version": 11, "online": True, "silent_ms": 250, "http": ""}
    ]
    monkeypatch.setattr(
        node,
        "status",
        lambda: {"cluster": "c", "node": "n1", "ready": True, "reasons": [], "groups": [group], "members": members},
    )
    result = run("status", "--node", str(client.base_url))
    assert 0 == result.exit_code
    assert "c / n1: ready" in result.stdout
    assert ["n1", "leader", "n1", "12", "0", "unknown", "3", "-1"] == [
        cell.strip() for cell in result.stdout.splitlines()[4].split("│")[1:9]
    ]
    assert "0.2" in result.stdout
    monkeypatch.setattr(
        node, "status", lambda: {"cluster": "c", "node": "n1", "ready": False, "reasons": ["recovering"]}
    )
    not_ready = run("status", "--node", str(client.base_url))
    assert 1 == not_ready.exit_code
    assert "recovering" in not_ready.stdout
    assert False is json.loads(run("status", "--json", "--node", str(client.base_url)).stdout)["ready"]


def test_a_client_raises_what_the_node_raised(client: httpx.Client) -> None:
    """In Python the node's error arrives under its own class."""
    with pytest.raises(UnknownTable, match=r"iot\.readings"):
        NodeClient(str(client.base_url)).query("SELECT * FROM iot.reading")
    assert "readings" == NodeClient(str(client.base_url)).tables()[0]["table"]


@pytest.mark.parametrize("url", ["", "127.0.0.1:x", "ftp://x", "http://", "http://x:99999", "http://x/path"])
def test_addresses_are_checked(url: str) -> None:
    """Anything that is not http://host:port is refused before a connection is tried."""
    with pytest.raises(NodeAddressInvalid):
        NodeClient(url)


def test_a_link_to_the_page_is_the_address_of_its_node() -> None:
    """A copied link may carry the page's query and a fragment; requests go to the node's own paths."""
    assert "http://127.0.0.1:8080" == NodeClient("http://127.0.0.1:8080/?q=SELECT+1#chart").url


def test_sql_from_a_file_with_parameters(client: httpx.Client, tmp_path: Path) -> None:
    """`-f FILE` reads the SQL; `--param` binds typed values, which are never part of it."""
    file = tmp_path / "report.sql"
    file.write_text(
        "\ufeff-- of one truck\nSELECT name, $n + 1 AS n, $text AS t FROM iot.readings WHERE name = $truck LIMIT 1;\n"
    )
    values = ("--param", "n=41", "--param", "truck=truck_1", "--param", "text='; DROP")
    result = run("query", "-f", str(file), *values, "--json", "--node", str(client.base_url))
    assert (0, [{"name": "truck_1", "n": 42, "t": "'; DROP"}]) == (result.exit_code, json.loads(result.stdout))
    piped = run("query", "-f", "-", "--format", "csv", "--node", str(client.base_url), stdin="SELECT 1 AS one")
    assert "one\n1\n" == piped.stdout.replace("\r", "")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "give the SQL, or a file"),
        (("SELECT 1", "-f", "x.sql"), 2, "give the SQL, or a file"),
        (("-f", "missing.sql"), 2, "missing.sql: no such file"),
        (("  ",), 2, "SQL is empty"),
        (("SELECT $a", "--param", "a"), 2, "--param a is not NAME=VALUE"),
        (("SELECT $a",), 1, "no value for parameter $a"),
        (("SELECT 1", "--param", "a=1"), 1, "the SQL does not name parameter $a"),
    ],
)
def test_sql_and_parameters_that_do_not_fit(
    client: httpx.Client, arguments: tuple[str, ...], code: int, message: str
) -> None:
    """What is missing, given twice or not used is one line; a command line that cannot run has exit code 2."""
    result = run("query", *arguments, "--node", str(client.base_url))
    assert (code, "") == (result.exit_code, result.stdout)
    assert message in result.stderr


def test_parameters_over_http(client: httpx.Client) -> None:
    """POST takes an object, GET a JSON text; other values are refused with 400."""
    sql = "SELECT count(*) AS n FROM iot.readings WHERE name IN $names"
    posted = client.post("/api/v1/query", json={"sql": sql, "parameters": {"names": ["truck_1"]}})
    got = client.get("/api/v1/query", params={"q": sql, "parameters": '{"names": ["truck_1"]}'})
    assert [{"n": 8}] == posted.json() == got.json()
    for wrong in ([1], {"names": {"a": 1}}, "x"):
        refused = client.post("/api/v1/query", json={"sql": sql, "parameters": wrong})
        assert (400, "RequestInvalid") == (refused.status_code, refused.json()["error"]["kind"])
    missing = client.post("/api/v1/query", json={"sql": sql})
    assert (400, "QueryInvalid") == (missing.status_code, missing.json()["error"]["kind"])


@pytest.mark.parametrize("text", ["{", "[1]", '{"a": "1"}', '{"a": -1}', '{"a": true}', '{"a": 1.5}', "7"])
def test_offsets_that_are_no_offsets_are_a_usage_error(client: httpx.Client, text: str) -> None:
    """`--after` maps topics to whole numbers; anything else is refused before a node is asked."""
    result = run("query", "SELECT 1", "--after", text, "--json", "--node", str(client.base_url))
    assert (2, "UsageInvalid") == (result.exit_code, json.loads(result.stderr)["error"]["type"])


def test_offsets_reach_the_node(client: httpx.Client, node: FakeNode) -> None:
    """A query waits for what `--after` names: the node gets it as it is."""
    result = run("query", "SELECT 1 AS a", "--after", '{"c.forward.n1.1": 7}', "--json", "--node", str(client.base_url))
    assert (0, [{"a": 1}]) == (result.exit_code, json.loads(result.stdout))
    assert [{"c.forward.n1.1": 7}] == node.source.waited
