"""The routes of a node over a real socket."""

from __future__ import annotations

import gzip
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable

import httpx
import pyarrow as pa
import pytest

from headrace.connectors.http import AnswerCut
from headrace.consumers.query.query_errors import AnswerStale, TooManyQueries
from headrace.node_client import NodeClient
from tests.unit.serve.conftest import FakeNode

ENDLESS = "SELECT count(*) FROM range(1000000000000) a(i) WHERE i % 7 = 3"
LONG = "SELECT i, sin(i) AS s FROM range(500000000) t(i)"


def eventually(holds: Callable[[], bool]) -> bool:
    """Whether a condition becomes true within a generous time."""
    for _ in range(400):
        if holds():
            return True
        time.sleep(0.05)
    return False


def test_health_gives_reasons(client: httpx.Client, node: FakeNode) -> None:
    """Each health route answers 200, or 503 with reasons as JSON."""
    for route in ("live", "ready", "startup"):
        assert (200, {"ok": True, "reasons": []}) == (
            (answer := client.get(f"/health/{route}")).status_code,
            answer.json(),
        )
    node.reasons = ["group n1: recovering"]
    node.started = node.is_live = False
    answer = client.get("/health/ready")
    assert (503, {"ok": False, "reasons": ["group n1: recovering"]}) == (answer.status_code, answer.json())
    assert 503 == client.get("/health/startup").status_code
    assert 503 == client.get("/health/live").status_code


def test_metrics_are_prometheus_text(client: httpx.Client) -> None:
    """The node's metrics have the media type that Prometheus expects."""
    answer = client.get("/metrics")
    assert 'headrace_consumed_bytes{cluster="c"} 987654.0' in answer.text
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")


def test_metrics_count_queries_by_outcome_beside_their_limits(client: httpx.Client) -> None:
    """Answers, failures and timeouts are counted separately, and every limit is there to compare with."""
    for query in ({"sql": "SELECT * FROM iot.readings"}, {"sql": "SELEC"}, {"sql": ENDLESS, "timeout_ms": 50}):
        client.post("/api/v1/query", json=query)
    lines = client.get("/metrics").text.splitlines()
    for outcome, count in (("answered", 1), ("failed", 1), ("timed_out", 1), ("refused", 0)):
        assert f'headrace_queries_total{{cluster="c",outcome="{outcome}"}} {count}.0' in lines
    assert 'headrace_query_files_scanned_total{cluster="c"} 1.0' in lines
    assert 'headrace_query_limit{cluster="c",name="queries_max"} 2.0' in lines


def test_status_is_the_nodes_own_with_its_queries(client: httpx.Client) -> None:
    """The node's own status, with the counters of queries beside their limits."""
    client.get("/api/v1/query", params={"q": "SELECT 1"})
    status = client.get("/api/v1/status").json()
    assert ("n1", True) == (status["node"], status["ready"])
    assert (1, 2) == (status["queries"]["succeeded"], status["queries"]["queries_max"])


def test_tables_list_their_columns(client: httpx.Client) -> None:
    """Every table with its tags and its fields under their types."""
    expected = {
        "database": "iot",
        "table": "readings",
        "version": 1,
        "tags": ["name"],
        "fields": [{"name": "velocity", "type": "float64"}],
        "retention_ns": None,
        "resolution": None,
    }
    assert [expected] == client.get("/api/v1/tables").json()


def test_a_query_by_get_and_by_post(client: httpx.Client) -> None:
    """The same query in both forms has the same result."""
    sql = "SELECT name, count(*) AS n FROM iot.readings GROUP BY ALL ORDER BY ALL"
    expected = [{"name": "truck_1", "n": 8}, {"name": "truck_2", "n": 7}]
    assert expected == client.get("/api/v1/query", params={"q": sql}).json()
    assert expected == client.post("/api/v1/query", json={"sql": sql}).json()


def test_formats_have_their_media_types(client: httpx.Client) -> None:
    """JSON, CSV and Arrow have their own types."""
    csv = client.post("/api/v1/query", json={"sql": "SELECT 1 AS a", "format": "csv"})
    assert ("text/csv; charset=utf-8", "a\n1\n") == (csv.headers["content-type"], csv.text)
    arrow = client.get("/api/v1/query", params={"q": "SELECT 1 AS a", "format": "arrow"})
    assert [{"a": 1}] == pa.ipc.open_stream(arrow.content).read_all().to_pylist()
    assert "application/json" == client.get("/api/v1/query", params={"q": "SELECT 1"}).headers["content-type"]


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("DROP TABLE iot.readings", "NotReadOnly"),
        ("SELECT * FROM read_text('x')", "FunctionRefused"),
        ("SELECT * FROM iot.reading", "UnknownTable"),
        ("SELECT nothing FROM iot.readings", "QueryInvalid"),
        ("SELEC 1", "QueryInvalid"),
    ],
)
def test_a_bad_query_is_400_with_kind_message_and_action(client: httpx.Client, sql: str, kind: str) -> None:
    """Errors are JSON of one shape."""
    answer = client.post("/api/v1/query", json={"sql": sql})
    error = answer.json()["error"]
    assert (400, kind, False) == (answer.status_code, error["kind"], error["retriable"])
    assert error["message"]
    assert "action" in error


@pytest.mark.parametrize(
    "document",
    [
        {},
        {"sql": ""},
        {"sql": 5},
        {"sql": "SELECT 1", "format": "xml"},
        {"sql": "SELECT 1", "formt": "json"},
        {"sql": "SELECT 1", "timeout_ms": 0},
        {"sql": "SELECT 1", "timeout_ms": "5"},
        {"sql": "SELECT 1", "limit": True},
        {"sql": "SELECT 1", "limit": 2**63},
        {"sql": "SELECT 1", "timeout_ms": 10**400},
        {"sql": "SELECT 1", "stale": 10**400},
        {"sql": "SELECT 1", "after": {"n1": 2**63}},
        {"sql": "SELECT 1", "after": ["n1"]},
        {"sql": "SELECT 1", "after": {"n1": "5"}},
        ["SELECT 1"],
    ],
)
def test_a_request_that_is_no_query_is_refused(client: httpx.Client, document: object) -> None:
    """Every part of a request is checked, and the message names the part."""
    answer = client.post("/api/v1/query", json=document)
    assert (400, "RequestInvalid") == (answer.status_code, answer.json()["error"]["kind"])
    part = list(document)[-1] if isinstance(document, dict) and len(document) == 2 else ""
    assert part in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    "document",
    [
        {"sql": "SELECT '\ud800'"},
        {"sql": "EXPLAIN SELECT '\ud800'"},
        {"sql": "SELECT 1", "parameters": {"\ud800": 1}},
        {"sql": "SELECT 1", "user": "\ud800"},
    ],
)
def test_half_of_a_surrogate_pair_is_refused(client: httpx.Client, document: dict[str, object]) -> None:
    """JSON can escape one, and no text in UTF-8 has it."""
    headers = {"content-type": "application/json"}
    assert 400 == client.post("/api/v1/query", content=json.dumps(document), headers=headers).status_code


def test_a_query_may_be_gzip(client: httpx.Client) -> None:
    """As lines may be; the limit is that of its content, and another encoding is named."""
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    for sql, status in (("SELECT 1 AS a", 200), ("SELECT 1 -- " + "x" * 1_100_000, 413)):
        body = gzip.compress(json.dumps({"sql": sql}).encode())
        assert status == client.post("/api/v1/query", content=body, headers=headers).status_code
    answer = client.post("/api/v1/query", content=b"x", headers=headers | {"content-encoding": "br"})
    assert (400, True) == (answer.status_code, "content-encoding 'br'" in answer.json()["error"]["message"])


@pytest.mark.parametrize(
    "query",
    [
        "",
        "q=",
        "q=SELECT+1&limit=x",
        "q=SELECT+1&after=x",
        "q=SELECT+1&timeout_ms=-1",
        "q=SELECT+1&sql=x&z=1",
        "q=SELECT+1&q=SELECT+2",
        "q=SELECT+1&sql=SELECT+2",
        "q=SELECT+1&limit=1&limit=2",
        # Latin-1: the text would be another one.
        "q=SELECT+'%FC'",
    ],
)
def test_a_link_that_is_no_query_is_refused(client: httpx.Client, query: str) -> None:
    """The same for queries in the address."""
    assert "RequestInvalid" == client.get(f"/api/v1/query?{query}").json()["error"]["kind"]


@pytest.mark.parametrize(("limit", "rows"), [(3, 3), (2**63 - 1, 15)])
def test_a_limit_of_64_bits_is_one(client: httpx.Client, limit: int, rows: int) -> None:
    """Also the largest one, in a body and in an address."""
    given: dict[str, str | int] = {"sql": "SELECT * FROM iot.readings", "limit": limit}
    assert rows == len(client.post("/api/v1/query", json=given).json())
    given["q"] = given.pop("sql")
    assert rows == len(client.get("/api/v1/query", params=given).json())


@pytest.mark.parametrize("path", ["/api/v1/query", "/query"])
def test_a_body_that_is_too_large_is_answered_before_the_connection_ends(client: httpx.Client, path: str) -> None:
    """Clients such as urllib write all of a body first. They met the end of the connection and saw no answer."""
    headers = {"content-type": "application/json"}
    request = urllib.request.Request(f"{client.base_url}{path}", b"x" * 8_000_000, headers)
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(request, timeout=20)
    with refused.value as answer:
        assert 413 == answer.code
        assert b"larger than" in answer.read()


def test_bodies_are_bounded_and_are_json(client: httpx.Client) -> None:
    """More than a megabyte, another content type, and broken JSON are refused."""
    large = client.post(
        "/api/v1/query", content=b'{"sql": "' + b"x" * 1_100_000 + b'"}', headers={"content-type": "application/json"}
    )
    assert (413, "RequestTooLarge") == (large.status_code, large.json()["error"]["kind"])
    assert (
        400
        == client.post(
            "/api/v1/query", content=b'{"sql": "SELECT 1"}', headers={"content-type": "text/plain"}
        ).status_code
    )
    assert (
        400 == client.post("/api/v1/query", content=b'{"sql"', headers={"content-type": "application/json"}).status_code
    )
    assert (
        400
        == client.post("/api/v1/query", content=b"\xff\xfe", headers={"content-type": "application/json"}).status_code
    )


def test_a_node_that_is_not_ready_answers_no_query(client: httpx.Client, node: FakeNode) -> None:
    """An unsynced node refuses with 503, its reasons, and a Retry-After header."""
    node.reasons = ["group n1: diverged"]
    answer = client.get("/api/v1/query", params={"q": "SELECT 1"})
    assert (503, "NotReady", "1") == (answer.status_code, answer.json()["error"]["kind"], answer.headers["retry-after"])
    assert "diverged" in answer.json()["error"]["message"]


def test_a_query_out_of_time_is_504(client: httpx.Client) -> None:
    """The timeout in a request is enforced."""
    answer = client.post("/api/v1/query", json={"sql": ENDLESS, "timeout_ms": 100})
    assert (504, "QueryTimeout") == (answer.status_code, answer.json()["error"]["kind"])


def test_one_query_too_many_is_503_while_health_still_answers(client: httpx.Client, node: FakeNode) -> None:
    """With every permit taken a query is refused at once, may be retried, and nothing else waits."""
    held = [node.engine.query(LONG) for _ in range(node.engine.settings.queries_max)]
    answer = client.get("/api/v1/query", params={"q": "SELECT 1"})
    assert (503, TooManyQueries.__name__, "1") == (
        answer.status_code,
        answer.json()["error"]["kind"],
        answer.headers["retry-after"],
    )
    assert 200 == client.get("/health/live").status_code
    for result in held:
        result.close()
    assert 200 == client.get("/api/v1/query", params={"q": "SELECT 1"}).status_code


def test_health_answers_while_every_permit_waits_for_first_rows(client: httpx.Client, node: FakeNode) -> None:
    """Queries that compute without a first row delay no other request."""
    query = {"sql": ENDLESS, "timeout_ms": 3_000}
    client_threads = [
        threading.Thread(target=lambda: httpx.post(f"{client.base_url}/api/v1/query", json=query, timeout=30))
        for _ in range(2)
    ]
    for client_thread in client_threads:
        client_thread.start()
    assert eventually(lambda: node.engine.statistics.running == 2)
    assert 200 == client.get("/health/live").status_code
    assert 2 == client.get("/api/v1/status").json()["queries"]["running"]
    for client_thread in client_threads:
        client_thread.join()


def test_a_disconnected_client_ends_its_query(client: httpx.Client, node: FakeNode) -> None:
    """A query whose client disconnects is ended, before its first row and in the middle of its answer."""
    with pytest.raises(httpx.ReadTimeout):
        client.post("/api/v1/query", json={"sql": ENDLESS}, timeout=0.3)
    assert eventually(lambda: node.engine.statistics.running == 0)
    with client.stream("POST", "/api/v1/query", json={"sql": LONG, "format": "csv"}) as answer:
        # Kept: an iterator that is dropped closes the connection.
        chunks = answer.iter_bytes()
        assert next(chunks)
        assert 1 == node.engine.statistics.running
    assert eventually(lambda: node.engine.statistics.running == 0)


def test_an_answer_that_fails_midway_is_cut_not_ended(client: httpx.Client, node: FakeNode) -> None:
    """The connection breaks without a final chunk, so no client mistakes a part of an answer for all of it."""
    sql = "SELECT CASE WHEN i = 4900000 THEN error('boom') ELSE i END AS i FROM range(5000000) t(i)"
    with pytest.raises(httpx.RemoteProtocolError):
        client.post("/api/v1/query", json={"sql": sql})
    assert eventually(lambda: node.engine.statistics.running == 0)


@pytest.mark.parametrize("form", ["json", "csv", "arrow"])
def test_a_long_answer_of_a_node_that_stopped_serving_is_cut(client: httpx.Client, node: FakeNode, form: str) -> None:
    """Rows that were sent before the end are taken back by a connection that breaks; clients may retry."""
    sql = "SELECT i FROM range(3000000) t(i)"
    chunks = NodeClient(str(client.base_url)).query(sql, format=form)
    assert next(chunks)
    node.source.stale = "it was stopped"
    with pytest.raises(AnswerCut) as raised:
        list(chunks)
    assert raised.value.retriable
    assert eventually(lambda: node.engine.statistics.running == 0)


@pytest.mark.parametrize("form", ["json", "csv", "arrow"])
def test_a_short_answer_of_a_node_that_stopped_serving_is_503(client: httpx.Client, node: FakeNode, form: str) -> None:
    """Nothing of a short answer is sent before the node knows that it serves."""
    node.source.stale = "it was stopped"
    answer = client.post("/api/v1/query", json={"sql": "SELECT * FROM iot.readings", "format": form})
    assert (503, "AnswerStale", "1") == (
        answer.status_code,
        answer.json()["error"]["kind"],
        answer.headers["retry-after"],
    )
    with pytest.raises(AnswerStale) as raised:
        list(NodeClient(str(client.base_url)).query("SELECT * FROM iot.readings", format=form))
    assert raised.value.retriable


def test_a_long_answer_is_complete(client: httpx.Client) -> None:
    """Three hundred thousand rows stream through the socket without loss; `limit` truncates them."""
    sql = "SELECT i FROM range(300000) t(i)"
    assert 300_000 == len(client.post("/api/v1/query", json={"sql": sql}).json())
    assert [{"i": 0}, {"i": 1}] == client.post("/api/v1/query", json={"sql": sql, "limit": 2}).json()


def test_unknown_paths_are_json_errors(client: httpx.Client) -> None:
    """Unknown paths and wrong methods have the shape of every other error."""
    assert (404, "Http") == ((answer := client.get("/nothing")).status_code, answer.json()["error"]["kind"])
    refused = client.delete("/api/v1/query")
    assert (405, "Http") == (refused.status_code, refused.json()["error"]["kind"])
    assert {"GET", "HEAD", "POST"} == set(refused.headers["allow"].split(", "))


def test_a_fault_of_the_node_is_500_without_details(
    client: httpx.Client, node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An unexpected error is logged at the node and not sent to clients."""

    def broken() -> dict[str, object]:
        raise RuntimeError("the inside of the node")

    monkeypatch.setattr(node, "status", broken)
    answer = client.get("/api/v1/status")
    assert (500, "Internal") == (answer.status_code, answer.json()["error"]["kind"])
    assert "inside" not in answer.text


@pytest.mark.parametrize("path", ["/", "/static/page.js", "/static/chart.js", "/static/style.css", "/static/icon.svg"])
def test_the_page_needs_nothing_from_elsewhere(client: httpx.Client, path: str) -> None:
    """The page and its parts come from the node itself and name no other host."""
    answer = client.get(path)
    assert 200 == answer.status_code
    others = answer.text.replace("http://www.w3.org/2000/svg", "")
    assert "http://" not in others
    assert "https://" not in others
    assert "default-src 'self'" in answer.headers["content-security-policy"]


def test_static_files_are_only_those_of_the_page(client: httpx.Client) -> None:
    """Paths do not climb out of the page's folder."""
    assert 404 == client.get("/static/../app.py").status_code
    assert 404 == client.get("/static/%2e%2e/app.py").status_code
