"""Requests recorded from clients of InfluxDB, byte for byte, sent again: each is answered as its client expects.

`tests/data/influx_requests` has them, one file a request, in order. They came from the clients themselves, which wrote
to a socket that kept what it got:

- `telegraf_*`: the outputs `influxdb` and `influxdb_v2` of Telegraf 1.34.4, built from its Go module with the settings
  that the name of the directory has: `content_encoding`, `database_tag`, `retention_policy`, user and password.
- `python_client*`: influxdb-client 1.50.0 for Python, its synchronous writer with points, lines and dicts, with
  `enable_gzip`, and its batching writer.
"""

from __future__ import annotations

import gzip
import http.client
import json
import socket
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import httpx
import pytest
from typer.testing import CliRunner

from headrace.cli.main import build_app
from headrace.consumers.serve.app import create_app
from headrace.consumers.serve.server import Server
from tests.unit.serve.conftest import FakeNode
from tests.unit.serve.test_write_routes import written

RECORDED = Path(__file__).parents[2] / "data" / "influx_requests"
CLIENTS = sorted(path.name for path in RECORDED.iterdir())


class Recorded:
    """One request as it went over the wire."""

    def __init__(self, path: Path) -> None:
        self.bytes = path.read_bytes()
        head, _, rest = self.bytes.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        self.method, self.target, _ = first.split(" ")
        self.headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines)}
        self.body = _dechunked(rest) if "transfer-encoding" in self.headers else rest

    @property
    def path(self) -> str:
        """What it asks."""
        return urlsplit(self.target).path

    @property
    def lines(self) -> bytes:
        """The line protocol of a write."""
        return gzip.decompress(self.body) if self.headers.get("content-encoding") == "gzip" else self.body

    @property
    def database(self) -> str:
        """The database of a write, by its parameters."""
        given = parse_qs(urlsplit(self.target).query)
        policy = given.get("rp", [""])[0]
        return (given.get("db") or given["bucket"])[0] + (f"/{policy}" if policy else "")

    @property
    def unit(self) -> str:
        """The unit of its times."""
        return parse_qs(urlsplit(self.target).query).get("precision", ["ns"])[0]


def _dechunked(rest: bytes) -> bytes:
    parts = []
    while rest:
        size, _, rest = rest.partition(b"\r\n")
        parts.append(rest[: int(size, 16)])
        rest = rest[int(size, 16) + 2 :]
    return b"".join(parts)


def answer_to(url: str, request: bytes) -> tuple[int, bytes]:
    """(status, body) of the answer to a request that is sent as it is."""
    parts = urlsplit(url)
    with socket.create_connection((str(parts.hostname), int(parts.port or 0)), timeout=20) as connection:
        connection.sendall(request)
        answer = http.client.HTTPResponse(connection)
        answer.begin()
        return answer.status, answer.read()


def by_command(directory: Path, requests: list[Recorded]) -> list[tuple[str, str, int, dict[str, Any]]]:
    """The rows that `headrace write` makes of the same lines, at a node of its own."""
    (directory / "segments").mkdir(parents=True)
    node = FakeNode(directory / "segments")
    server = Server(create_app(node))
    url = server.start()
    for number, request in enumerate(requests):
        file = directory / f"{number}.lp"
        file.write_bytes(request.lines)
        options = ["--node", url, "--database", request.database, "--time-unit", request.unit]
        done = CliRunner().invoke(build_app(["write"]), ["write", str(file), *options])
        assert (0, "") == (done.exit_code, done.stderr)
    rows = written(node)
    server.stop()
    node.writes.close()
    node.engine.close()
    return rows


@pytest.mark.parametrize("client", CLIENTS)
def test_recorded_requests_write_the_rows_of_their_lines(
    client: str, node: FakeNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request has the answer of InfluxDB, and the rows are those of `headrace write` with the same lines."""
    monkeypatch.chdir(tmp_path)
    requests = [Recorded(path) for path in sorted((RECORDED / client).iterdir())]
    server = Server(create_app(node))
    url = server.start()
    for request in requests:
        status, body = answer_to(url, request.bytes)
        if request.path == "/query":
            assert (200, {"results": [{"statement_id": 0}]}) == (status, json.loads(body))
        elif request.path == "/health":
            assert (200, "pass") == (status, json.loads(body)["status"])
        else:
            assert (204, b"") == (status, body)
    server.stop()
    writes = [request for request in requests if request.path.endswith("write")]
    assert writes
    key = repr
    assert sorted(by_command(tmp_path / "other", writes), key=key) == sorted(written(node), key=key)


def test_the_recorded_statement_makes_its_database(client: httpx.Client, node: FakeNode) -> None:
    """Also with quotes in its name, and with rows to come much later."""
    recorded = Recorded(RECORDED / "telegraf_influxdb_gzip" / "01.http")
    form = {"content-type": "application/x-www-form-urlencoded"}
    assert 200 == client.post("/query", content=recorded.body, headers=form).status_code
    assert ['site "A"'] == sorted(node.writes.schemas().databases)
    shown = client.get("/query", params={"q": "SHOW DATABASES"}).json()
    assert [['site "A"']] == shown["results"][0]["series"][0]["values"]


@pytest.mark.parametrize(
    ("statement", "status", "text"),
    [
        ("CREATE DATABASE plain", 200, ""),
        ('create database "x";', 200, ""),
        ('CREATE DATABASE "_"', 200, ""),
        ('CREATE DATABASE ".."', 200, "reserved prefix"),
        ("CREATE DATABASE", 400, "understood"),
        ('CREATE DATABASE "a" WITH DURATION 1d', 400, "understood"),
        ("SELECT * FROM cpu", 400, "/api/v1/query"),
        ("DROP DATABASE d", 400, "understood"),
        ("", 400, "missing"),
    ],
)
def test_statements_beside_the_known_ones(client: httpx.Client, statement: str, status: int, text: str) -> None:
    """An invalid name is an error in the result; what is not understood is refused, and never taken for done."""
    answer = client.post("/query", params={"q": statement})
    found = answer.json()
    error = found.get("error") or found.get("results", [{}])[0].get("error", "")
    assert (status, True) == (answer.status_code, text in error)
    assert bool(text) == bool(error)


@pytest.mark.parametrize(
    ("form", "made"), [('q=CREATE DATABASE "b\u00fcro"', ["b\u00fcro"]), ("q=CREATE+DATABASE+%22b%FCro%22", [])]
)
def test_a_form_is_utf8(client: httpx.Client, node: FakeNode, form: str, made: list[str]) -> None:
    """Escaped or not; another text is refused, and makes no database of a name that nobody gave."""
    headers = {"content-type": "application/x-www-form-urlencoded"}
    assert (200 if made else 400) == client.post("/query", content=form.encode(), headers=headers).status_code
    assert made == sorted(node.writes.schemas().databases)
