"""A Python client with named nodes, where no Kafka answers."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

import headrace
from headrace.connectors.clock import SYSTEM_CLOCK, Moment
from headrace.node_client import NodeAddressInvalid
from tests.unit.serve.conftest import FakeNode

SQL = "SELECT count(*) AS n FROM iot.readings"
DEAD = "127.0.0.1:1"


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No `headrace.toml` and no settings of the machine."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("HEADRACE__NODE__URL", raising=False)


@pytest.mark.parametrize("given", ["argument", "several", "setting"])
def test_a_query_needs_no_kafka(client: httpx.Client, monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    """One address or several, of which any may be down, or the setting `node.url`."""
    url = f"{client.base_url.host}:{client.base_url.port}"
    if given == "setting":
        monkeypatch.setenv("HEADRACE__NODE__URL", url)
    nodes = {"argument": url, "several": [DEAD, url], "setting": None}[given]
    with headrace.connect(DEAD, "c", nodes=nodes) as connected:
        for _ in range(2):
            assert [{"n": 15}] == connected.query(SQL).to_dicts()
        with pytest.raises(headrace.QueryError):
            connected.query("SELECT nope")


def test_a_stale_answer_needs_no_kafka(client: httpx.Client, node: FakeNode) -> None:
    """Refused by default, with its age where it is allowed."""
    node.source.reasons, node.source.as_of = ["no Kafka"], Moment(SYSTEM_CLOCK.boot_ns())
    with headrace.connect(DEAD, "c", nodes=str(client.base_url)) as connected:
        answer = connected.query(SQL, stale_ok=True)
        assert [{"n": 15}] == answer.to_dicts()
        assert answer.as_of is not None


@pytest.mark.slow(15)
def test_what_needs_kafka_connects_then(client: httpx.Client) -> None:
    """A writer raises what `connect` raises without named nodes; queries work before and after."""
    with headrace.connect(DEAD, "c", nodes=str(client.base_url), timeout_s=0.1) as connected:
        for call in (connected.tables, lambda: connected.writer("iot", "readings")):
            with pytest.raises(headrace.LogUnavailable, match=rf"Kafka at {DEAD} does not answer"):
                call()
        assert 15 == connected.query(SQL).to_dicts()[0]["n"]
    with pytest.raises(headrace.HeadraceError, match="the client is closed"):
        connected.tables()
    with pytest.raises(headrace.LogUnavailable):
        headrace.connect(DEAD, "c", timeout_s=0.1)
    with pytest.raises(NodeAddressInvalid):
        headrace.connect(DEAD, "c", nodes=["127.0.0.1:x"])
