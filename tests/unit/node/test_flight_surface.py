"""The Arrow Flight surface of a node: its address, and that a node without one has nothing of it."""

from __future__ import annotations

from pathlib import Path

import pyarrow.flight as flight
import pytest

from headrace.consumers.node.flight_surface import FlightSurface
from headrace.consumers.node.http_address import AddressInvalid, HttpAddress
from headrace.consumers.node.settings import NodeSettings
from headrace.consumers.serve.server import AddressInUse
from tests.unit.serve.conftest import FakeNode


def address(advertise: str = "") -> HttpAddress:
    """The address of a node on a machine named `pod-1`."""
    return HttpAddress.of(NodeSettings(http="0.0.0.0:8080", advertise=advertise), machine_name=lambda: "pod-1")


@pytest.mark.parametrize(
    ("host", "advertise", "expected"),
    [
        ("127.0.0.1", "", "grpc://127.0.0.1:9000"),
        ("::1", "", "grpc://[::1]:9000"),
        ("0.0.0.0", "", "grpc://pod-1:9000"),
        ("::", "node1.plant:80", "grpc://node1.plant:9000"),
    ],
)
def test_others_get_an_address_that_they_can_use(host: str, advertise: str, expected: str) -> None:
    """The host that it listens on, or where that is every address, the one that HTTP advertises."""
    assert expected == address(advertise).flight_url(host, 9000)


def test_a_node_serves_from_its_start_to_its_stop(tmp_path: Path) -> None:
    """Its address is known while it serves, is its own from the start on, and is free behind the stop."""
    node = FakeNode(tmp_path)
    surface = FlightSurface("127.0.0.1:0", address())
    surface.reserve()
    assert "" == surface.url
    surface.start(node.engine)
    with pytest.raises(AddressInUse):
        FlightSurface(surface.url.removeprefix("grpc://"), address()).reserve()
    with flight.connect(surface.url) as client:
        assert [{"a": 1}] == client.do_get(flight.Ticket("SELECT 1 AS a")).read_all().to_pylist()
    surface.stop()
    surface.stop()
    again = FlightSurface(surface.url.removeprefix("grpc://"), address())
    again.reserve()
    again.stop()
    assert 0 == surface.open_calls
    node.engine.close()


def test_without_an_address_there_is_nothing(tmp_path: Path) -> None:
    """No setting, no surface; one that is no address is an error before the node does anything."""
    node = FakeNode(tmp_path)
    surface = FlightSurface("", address())
    surface.reserve()
    surface.start(node.engine)
    surface.stop()
    assert ("", 0) == (surface.url, surface.open_calls)
    with pytest.raises(AddressInvalid, match="node.flight"):
        FlightSurface("8081", address())
    node.engine.close()
