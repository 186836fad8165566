"""Members that are lost while they answer: another one takes their place, or the query ends with ReplicaLost."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pyarrow.flight as flight
import pytest

from headrace import HeadraceError, ReplicaLost
from headrace._node_errors import raised_by_node
from headrace.connectors.http import NodeRefused
from headrace.consumers.query import remote_rows
from headrace.consumers.query.query_errors import GroupUnavailable, NotReady
from headrace.consumers.query.remote_rows import MemberUnreachable, no_rows
from headrace.consumers.query.scan_stream import ScanCut
from headrace.consumers.serve.flight_errors import flight_error
from headrace.consumers.serve.query_service import http_status
from tests.unit.query.cluster_of_stores import StoredCluster, cluster_of_stores
from tests.unit.query.random_statements import BEGIN_NS, SCHEMA
from tests.waiting import eventually

HOSTS, SECONDS = 40, 50
KINDS = {
    "rows": "SELECT host, time, n FROM tsbs.cpu WHERE n >= 0 ORDER BY host, time",
    "partial": "SELECT host, sum(n) AS s, count(*) AS c FROM tsbs.cpu GROUP BY host ORDER BY host",
}
BATCHES = {"before its first batch": 0, "after its first batch": 1}


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoredCluster]:
    """Five nodes with three replicas, half of the groups sealed."""
    with cluster_of_stores(tmp_path_factory.mktemp("cluster"), SCHEMA) as cluster:
        tags = [{"host": f"host_{number}"} for number in range(HOSTS)]
        cluster.write([(each, BEGIN_NS + second, {"n": second}) for second in range(SECONDS) for each in tags])
        cluster.seal("n1", "n3")
        yield cluster


@pytest.fixture
def cuts(cluster: StoredCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, int]]:
    """The members whose connections end behind so many batches."""
    monkeypatch.setattr(remote_rows, "PATIENCE_S", 0.1)
    cluster.exchanged.clear()
    yield cluster.cuts
    cluster.cuts.clear()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", BATCHES)
def test_a_member_that_is_lost_is_replaced(cluster: StoredCluster, cuts: dict[str, int], kind: str, when: str) -> None:
    """The answer is whole, with each row once: what the lost member had sent is dropped."""
    wanted = cluster.ask("n0", KINDS[kind])
    assert wanted.num_rows == (HOSTS * SECONDS if kind == "rows" else HOSTS)
    # Groups n1 and n2 are not here. Of their members n2 and n3 have both.
    cuts |= {"n2": BATCHES[when], "n3": BATCHES[when]}
    for _ in range(3):
        assert wanted.equals(cluster.ask("n0", KINDS[kind]))
    assert cluster.cut > 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("when", BATCHES)
def test_without_another_member_the_query_ends_with_replica_lost(
    cluster: StoredCluster, cuts: dict[str, int], kind: str, when: str
) -> None:
    """A typed error that may be retried, and never a part of the rows. Nothing is held behind it."""
    cuts |= dict.fromkeys(("n1", "n2", "n3"), BATCHES[when])
    with pytest.raises(ReplicaLost, match="group n1 was lost before its last row") as raised:
        cluster.ask("n0", KINDS[kind])
    assert raised.value.retriable
    assert "headrace status" in raised.value.action
    engine = cluster.engines["n0"]
    assert 0 == engine.scheduler.figures().reserved
    # The fetch of group n2, which its member n4 answers, may end behind the query.
    eventually(lambda: cluster.bytes_held("n0") == 0, "nothing is held for the query")
    cuts.clear()
    assert cluster.ask("n0", KINDS[kind]).num_rows > 0


def test_a_member_that_refuses_is_not_lost() -> None:
    """Lost is one whose answer was cut, or that gives none. One that refuses is there."""
    refusal, cut, silent = NotReady.because(["behind"]), ScanCut.because("no end"), MemberUnreachable("no answer at x")
    assert type(no_rows("g", {})) is GroupUnavailable
    assert type(no_rows("g", {"a": refusal})) is GroupUnavailable
    for lost in (cut, silent):
        found = no_rows("g", {"a": refusal, "b": lost})
        assert type(found) is ReplicaLost
        assert "a failed with NotReady" in found.message
        assert lost.message in found.message


def test_every_surface_carries_the_error() -> None:
    """HTTP 503, a Flight error that clients retry, and the class of its own at a client."""
    error = ReplicaLost.because("g", ["a failed"])
    assert 503 == http_status(error)
    sent = flight_error(error)
    assert isinstance(sent, flight.FlightUnavailableError)
    assert "ReplicaLost" == json.loads(sent.extra_info)["type"]
    document = {"kind": "ReplicaLost", "message": error.message, "action": error.action, "retriable": True}
    received: HeadraceError = raised_by_node("http://n", NodeRefused("", status=503, document=document))
    assert type(received) is ReplicaLost
    assert (error.message, True) == (received.message, received.retriable)
