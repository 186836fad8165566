"""Results larger than memory, and clients that take their time, over HTTP and over Arrow Flight alike."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.flight as flight
import pytest

from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.query.settings import QuerySettings
from headrace.consumers.serve.app import create_app
from headrace.consumers.serve.flight_server import FlightServer
from headrace.consumers.serve.server import Server, reserve_address
from headrace.node_client import NodeClient
from tests.unit.serve.conftest import FakeNode
from tests.waiting import eventually

MEMORY_MB = 16
COPIES = 800_000
ROWS = 15 * COPIES
RESULT_BYTES = ROWS * 16
"""Two columns of 8 bytes: more than ten times the memory of a query."""
SQL = f"SELECT velocity, range AS copy FROM iot.readings, range({COPIES})"
ENDLESS = "SELECT velocity, range AS copy FROM iot.readings, range(100000000000)"


class Surfaces:
    """Both surfaces over one engine with little memory."""

    def __init__(self, directory: Path) -> None:
        node = FakeNode(directory)
        node.engine = QueryEngine(
            node.source,
            [directory],
            QuerySettings(
                memory_limit_mb=8 * MEMORY_MB, memory_per_query_mb=MEMORY_MB, queries_max=8, timeout_ms=60_000
            ),
        )
        self.engine = node.engine
        self._http = Server(create_app(node))
        self.url = self._http.start()
        self.flight = FlightServer(node.engine, "127.0.0.1", reserve_address("127.0.0.1", 0))
        self.flight.start()

    def running(self) -> int:
        """Queries that run now."""
        return self.engine.statistics.running

    def close(self) -> None:
        self.flight.stop()
        self._http.stop()
        self.engine.close()


@pytest.fixture
def surfaces(tmp_path: Path) -> Iterator[Surfaces]:
    (tmp_path / "segments").mkdir()
    surfaces = Surfaces(tmp_path / "segments")
    yield surfaces
    surfaces.close()


def rows_by_arrow(surfaces: Surfaces) -> int:
    """The rows of SQL as an Arrow stream over HTTP, counted chunk by chunk."""
    received = 0
    for chunk in NodeClient(surfaces.url).query(SQL, format="arrow"):
        received += len(chunk)
    assert received > RESULT_BYTES
    return ROWS


def rows_by_json(surfaces: Surfaces) -> int:
    """The rows of SQL as lines of JSON."""
    return sum(chunk.count(b"\n") for chunk in NodeClient(surfaces.url).query(SQL))


def rows_by_flight(surfaces: Surfaces) -> int:
    """The rows of SQL over Flight."""
    with flight.connect(surfaces.flight.location) as client:
        return sum(chunk.data.num_rows for chunk in client.do_get(flight.Ticket(SQL)))


def peak_mb() -> float:
    """The most memory that this process has had since `forget_peak`."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1_000


def forget_peak() -> float:
    """Begin to measure; the memory of the process now."""
    pa.default_memory_pool().release_unused()
    Path("/proc/self/clear_refs").write_text("5")
    return peak_mb()


@pytest.mark.parametrize("read", [rows_by_arrow, rows_by_json, rows_by_flight])
def test_a_result_of_ten_times_the_memory_streams(surfaces: Surfaces, read: Callable[[Surfaces], int]) -> None:
    """Every row arrives, and client and node together never hold as much as half of the result."""
    assert RESULT_BYTES > 10 * MEMORY_MB * 1_000_000
    before_mb = forget_peak()

    assert ROWS == read(surfaces)

    assert peak_mb() - before_mb < RESULT_BYTES / 2 / 1_000_000
    eventually(lambda: surfaces.running() == 0, "the query does not end")


def asking(url: str, sql: str, **more: object) -> socket.socket:
    """A connection over which a query was sent, and whose answer nobody reads."""
    host, _, port = url.removeprefix("http://").rpartition(":")
    # A small window: the kernel takes little of an answer for the client.
    connection = socket.socket()
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4_096)
    connection.connect((host, int(port)))
    body = json.dumps({"sql": sql, "format": "arrow", **more}).encode()
    head = f"POST /api/v1/query HTTP/1.1\r\nhost: {host}\r\ncontent-type: application/json\r\n"
    connection.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return connection


def test_an_http_client_that_stops_reading_holds_nothing_behind_the_time_of_its_query(surfaces: Surfaces) -> None:
    """Permit, memory and files are released, although the connection stays open."""
    with asking(surfaces.url, ENDLESS, timeout_ms=700) as connection:
        assert connection.recv(15).startswith(b"HTTP/1.1 200")
        assert 1 == surfaces.running()

        eventually(lambda: surfaces.running() == 0, "a client that does not read holds its query")


def test_one_byte_at_a_time_holds_up_nobody_else(surfaces: Surfaces) -> None:
    """Beside a client of HTTP and one of Flight that hardly read, others get whole answers on both surfaces."""
    with asking(surfaces.url, ENDLESS) as connection, flight.connect(surfaces.flight.location) as slow:
        stream = slow.do_get(flight.Ticket(ENDLESS))
        stream.read_chunk()
        with flight.connect(surfaces.flight.location) as other:
            for number in range(10):
                assert 1 == len(connection.recv(1))
                assert [{"n": number}] == other.do_get(flight.Ticket(f"SELECT {number} AS n")).read_all().to_pylist()
                (text,) = NodeClient(surfaces.url).query(f"SELECT {number} AS n")
                assert [{"n": number}] == json.loads(text)
        # The last short one may still close what it held.
        eventually(lambda: surfaces.running() == 2, "a query that has given its answer does not end")
        stream.cancel()
    eventually(lambda: surfaces.running() == 0, "clients that left hold their queries")
