"""The address of a node: where it listens, what it advertises, and the names that it answers."""

from __future__ import annotations

from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from headrace.cli import node as node_command
from headrace.consumers.node.http_address import AddressInvalid, HttpAddress
from headrace.consumers.node.settings import NodeSettings
from headrace.consumers.serve.server import reserve_address
from headrace.node_client import NodeClient
from tests.unit.nodes import Nodes


def address(http: str, advertise: str = "", *allowed_hosts: str) -> HttpAddress:
    """The address of a node on a machine named `pod-1`."""
    return HttpAddress.of(
        NodeSettings(http=http, advertise=advertise, allowed_hosts=allowed_hosts), machine_name=lambda: "pod-1"
    )


@pytest.mark.parametrize(
    ("http", "advertise", "expected"),
    [
        ("127.0.0.1:0", "", "http://127.0.0.1:7000"),
        ("http://127.0.0.1:0/", "", "http://127.0.0.1:7000"),
        ("node1:8080", "", "http://node1:7000"),
        ("[::1]:8080", "", "http://[::1]:7000"),
        ("::1:8080", "", "http://[::1]:7000"),
        ("0.0.0.0:8080", "", "http://pod-1:7000"),
        ("[::]:8080", "", "http://pod-1:7000"),
        ("0.0.0.0:8080", "node1.plant:80", "http://node1.plant:80"),
        ("0.0.0.0:8080", "http://node1.plant:80", "http://node1.plant:80"),
        ("0.0.0.0:8080", "node1:0", "http://node1:7000"),
    ],
)
def test_others_get_an_address_that_they_can_use(http: str, advertise: str, expected: str) -> None:
    """The advertised address, else the one to listen on, else the machine's name; HOST:PORT or a URL."""
    assert expected == address(http, advertise).advertised_url(7000)


@pytest.mark.parametrize(
    ("http", "advertise"),
    [
        ("8080", ""),
        ("node1", ""),
        (":8080", ""),
        ("node1:65536", ""),
        ("node1:²", ""),
        ("https://node1:80", ""),
        ("node1:80/x", ""),
        ("u@node1:80", ""),
        ("[::1", ""),
        ("[::1:80", ""),
        ("node1:80:80", ""),
        ("127.0.0.1:0", "node 1:80"),
        ("127.0.0.1:0", "node1:80:80"),
        ("127.0.0.1:0", "node1"),
        ("127.0.0.1:0", "0.0.0.0:80"),
    ],
)
def test_an_address_that_is_none_is_refused(http: str, advertise: str) -> None:
    """The error names the setting and shows an example."""
    with pytest.raises(AddressInvalid, match="node.advertise" if advertise else "node.http") as raised:
        address(http, advertise)
    assert "node1:8080" in raised.value.action or "127.0.0.1:8080" in raised.value.action


def test_a_node_that_advertises_a_name_answers_its_names_only() -> None:
    """Without an advertised or allowed name a node beyond loopback answers any."""
    assert frozenset() == address("0.0.0.0:8080").names
    assert {"node1"} == address("0.0.0.0:8080", "Node1:8080").names
    assert {"node1", "10.0.0.1", "plant.example"} == address("10.0.0.1:80", "node1:80", "Plant.example").names
    assert {"pod-1", "plant.example"} == address("0.0.0.0:80", "", "plant.example").names
    assert [True, False, False] == [address(http).loopback for http in ("localhost:80", "0.0.0.0:80", "10.0.0.1:80")]


def test_members_see_what_a_node_advertises(tmp_path: Path) -> None:
    """A status names the advertised address, at which the node answers."""
    nodes = Nodes(tmp_path, ("n1",))
    nodes.start("n1")
    try:
        url = nodes.running["n1"].http_address
        assert url.startswith("http://localhost:")
        assert {url} == {each.http for each in nodes.running["n1"].statuses.statuses()}
        assert "n1" == NodeClient(url).status()["node"]
    finally:
        nodes.stop("n1")


def test_a_port_in_use_is_found_before_anything_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`node run` at a port that another program uses fails at once, with no data directory and no wait for Kafka."""
    monkeypatch.chdir(tmp_path)
    app = typer.Typer()
    node_command.register(app)
    with reserve_address("127.0.0.1", 0) as taken:
        taken.listen()
        place = f"127.0.0.1:{taken.getsockname()[1]}"
        result = CliRunner().invoke(
            app, ["node", "run", "--id", "n1", "--data-dir", "data", "--http", place, "--bootstrap", "127.0.0.1:1"]
        )
    assert (1, "") == (result.exit_code, result.stdout)
    assert result.stderr.startswith(f"error: cannot listen on {place}")
    assert [] == list(tmp_path.iterdir())
