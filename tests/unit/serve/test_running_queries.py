"""The queries that run, over HTTP."""

from __future__ import annotations

import json

import httpx
import pytest
import typer
from typer.testing import CliRunner, Result

from headrace.cli import query
from headrace.connectors.http import QUERY_ID_HEADER
from tests.waiting import eventually

LONG = "SELECT i FROM range(100000000) t(i)"


def test_queries_are_listed_and_killed(client: httpx.Client) -> None:
    """An answer carries the id of its query, under which it is listed and ended; its connection is cut."""
    with client.stream("POST", "/api/v1/query", json={"sql": LONG, "user": "eva"}) as answer:
        query_id = answer.headers[QUERY_ID_HEADER]
        [listed] = client.get("/api/v1/queries").json()
        assert (query_id, LONG, "eva", "n1") == tuple(listed[name] for name in ("id", "sql", "user", "node"))
        assert {"ready", "running", "blocked"} == set(listed["drivers"])
        assert {"state", "level", "cpu_seconds", "memory_bytes", "blocked_on"} < set(listed)
        assert {"killed": query_id} == client.delete(f"/api/v1/queries/{query_id}").json()
    # It is listed until its last step has returned.
    eventually(lambda: [] == client.get("/api/v1/queries").json(), "no query")


@pytest.mark.parametrize("query_id", ["none", "", "a/b", "..%2Fquery"])
def test_an_unknown_query_cannot_be_killed(client: httpx.Client, query_id: str) -> None:
    """404, by name; also where a script's variable is empty, or is a path."""
    answer = client.delete(f"/api/v1/queries/{query_id}")
    assert (404, "QueryUnknown") == (answer.status_code, answer.json()["error"]["kind"])


def test_too_many_queries_may_be_retried(client: httpx.Client) -> None:
    """503 with the seconds to wait."""
    with (
        client.stream("POST", "/api/v1/query", json={"sql": LONG}),
        client.stream("POST", "/api/v1/query", json={"sql": LONG}),
    ):
        answer = client.post("/api/v1/query", json={"sql": "SELECT 1"})
    assert (503, "TooManyQueries") == (answer.status_code, answer.json()["error"]["kind"])
    assert int(answer.headers["retry-after"]) > 0


def command(client: httpx.Client, *arguments: str) -> Result:
    """`headrace query` with these arguments, at the node."""
    app = typer.Typer()
    query.register(app)
    app.command("other")(lambda: None)
    return CliRunner().invoke(app, ["query", *arguments, "--node", str(client.base_url)])


def test_the_command_lists_and_kills(client: httpx.Client) -> None:
    """`query --running` as a table or one JSON array, with `--user`; `--kill` names what it ended, in both forms."""
    assert [] == json.loads(command(client, "--running", "--json").stdout)
    for option in ([], ["--json"]):
        with client.stream("POST", "/api/v1/query", json={"sql": LONG, "user": "eva"}) as answer:
            query_id = answer.headers[QUERY_ID_HEADER]
            shown = command(client, "--running", *option)
            assert (0, "") == (shown.exit_code, shown.stderr)
            assert query_id in shown.stdout
            assert "eva" in shown.stdout
            killed = command(client, "--kill", query_id, *option)
            assert 0 == killed.exit_code
            assert query_id in killed.stdout
            if option:
                assert [query_id] == [each["id"] for each in json.loads(shown.stdout)]
                assert {"killed": query_id} == json.loads(killed.stdout)
    # What is killed ends at its next interrupt.
    eventually(lambda: not json.loads(command(client, "--running", "--json").stdout), "no query")


def test_the_command_names_a_query_that_is_not_there(client: httpx.Client) -> None:
    """One line on stderr, and an exit code that is not 0."""
    failed = command(client, "--kill", "none")
    assert 1 == failed.exit_code
    assert "no query none runs on this node" in failed.stderr


@pytest.mark.parametrize("option", [[], ["--json"]])
def test_an_empty_id_is_a_fault_of_the_command_line(client: httpx.Client, option: list[str]) -> None:
    """As `--kill "$UNSET"` gives: code 2 and where the IDs are, and the node is not asked."""
    refused = command(client, "--kill", "", *option)
    assert 2 == refused.exit_code
    assert "--kill names no query" in refused.stderr
    assert "--running" in refused.stderr


def test_a_time_without_an_end_is_refused(client: httpx.Client) -> None:
    """One line and code 2, no trace of Python; any finite number of seconds is taken."""
    refused = command(client, "SELECT 1 AS x", "--timeout", "inf")
    assert 2 == refused.exit_code
    assert "--timeout inf" in refused.stderr
    assert 0 == command(client, "SELECT 1 AS x", "--timeout", "1000000000000").exit_code
