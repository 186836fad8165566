"""Which requests a node on loopback accepts."""

from __future__ import annotations

import httpx
import pytest

from headrace.consumers.serve.origin_check import objection


@pytest.mark.parametrize("host", ["127.0.0.1:8080", "localhost", "LOCALHOST:1", "[::1]:8080", "[::1]"])
def test_names_of_this_machine_are_answered(host: str) -> None:
    """Loopback addresses and localhost, with and without a port."""
    assert "" == objection({"host": host}, loopback=True)


@pytest.mark.parametrize(
    "host", ["", "evil.example", "evil.example:8080", "127.0.0.1.evil.example", "10.0.0.5:8080", "[", "localhost.evil"]
)
def test_other_names_are_not_answered_on_loopback(host: str) -> None:
    """A foreign name may resolve to this machine (DNS rebinding), so it is refused."""
    assert "not this machine" in objection({"host": host}, loopback=True)


def test_a_node_beyond_loopback_accepts_any_name() -> None:
    """A node that listens on more than loopback has names that it does not know."""
    assert "" == objection({"host": "node1.plant:8080"}, loopback=False)


NAMES = frozenset({"node1", "plant.example"})


@pytest.mark.parametrize("host", ["node1:8080", "NODE1", "plant.example", "127.0.0.1:8081", "localhost:8081"])
@pytest.mark.parametrize("loopback", [True, False])
def test_a_node_with_names_answers_them(host: str, loopback: bool) -> None:
    """Its own names, and those of this machine, under which its port may be published."""
    assert "" == objection({"host": host}, loopback=loopback, names=NAMES)


@pytest.mark.parametrize("host", ["", "[", "node2:8080", "node1.evil.example", "evil.example:8080", "10.0.0.256"])
def test_a_node_with_names_answers_no_others(host: str) -> None:
    """A page of a foreign name that resolves to the node's published port is refused."""
    assert "not a name of this node" in objection({"host": host}, loopback=False, names=NAMES)


def test_probes_by_address_are_answered() -> None:
    """Kubernetes and Prometheus connect by address, and no page can make an address resolve to another."""
    for host in ("10.0.0.5:8080", "[fd00::5]:8080"):
        assert "" == objection({"host": host}, loopback=False, names=NAMES)
        assert objection({"host": host}, loopback=True, names=NAMES)


def test_a_request_that_names_no_host_is_of_no_page() -> None:
    """HTTP/1.0 may do without, as probes of HAProxy do. Every browser sends one, and with an origin it is refused."""
    for loopback in (True, False):
        assert "" == objection({}, loopback=loopback, names=NAMES)
        assert "may not send requests" in objection({"origin": "http://evil.example"}, loopback=loopback, names=NAMES)
        assert "may not send requests" in objection({"origin": "null"}, loopback=loopback, names=NAMES)


@pytest.mark.parametrize(
    "headers",
    [
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"origin": "http://["},
        {"origin": "http://127.0.0.1:9999"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"},
        {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"},
    ],
)
def test_requests_of_other_sites_are_refused(headers: dict[str, str]) -> None:
    """A page of another origin is refused even when it uses the right address."""
    assert "may not send requests here" in objection({"host": "127.0.0.1:8080", **headers}, loopback=True)


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"origin": "http://127.0.0.1:8080", "sec-fetch-site": "same-origin"},
        {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"},
        {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"},
    ],
)
def test_the_own_page_programs_and_links_are_answered(headers: dict[str, str]) -> None:
    """The node's own page, programs without a browser, and a link to the page are answered."""
    assert "" == objection({"host": "127.0.0.1:8080", **headers}, loopback=True)


def test_a_refusal_is_403_and_nothing_runs(client: httpx.Client) -> None:
    """Over HTTP a refused request has no effect and the shape of every other error."""
    answer = client.post("/api/v1/query", json={"sql": "SELECT 1"}, headers={"origin": "http://evil.example"})
    assert (403, "Forbidden") == (answer.status_code, answer.json()["error"]["kind"])
    assert 403 == client.get("/health/live", headers={"host": "evil.example"}).status_code
    assert 0 == client.get("/api/v1/status").json()["queries"]["succeeded"]
