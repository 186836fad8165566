"""A node's Arrow Flight surface: its address from the start on, and its server once the node answers queries."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from headrace.consumers.node.http_address import HttpAddress, parse_address
from headrace.consumers.query.engine import QueryEngine
from headrace.consumers.serve.server import reserve_address

if TYPE_CHECKING:
    from headrace.consumers.serve.flight_server import FlightServer


class FlightSurface:
    """Nothing at all where the settings give no address. Stopping it twice is fine, also before it starts.

    `url` is what others use, empty while it does not serve.
    """

    def __init__(self, setting: str, address: HttpAddress) -> None:
        """`setting` is `node.flight`. Raises AddressInvalid."""
        self.url = ""
        self._address = address
        self._host, self._port = (
            parse_address(setting, "node.flight", "--flight 127.0.0.1:8081") if setting else ("", 0)
        )
        self._reserved: socket.socket | None = None
        self._server: FlightServer | None = None

    @property
    def open_calls(self) -> int:
        """Calls that are open now."""
        return 0 if self._server is None else len(self._server.calls)

    def reserve(self) -> None:
        """Take the address; nothing listens yet. Raises AddressInUse."""
        if self._host:
            self._reserved = reserve_address(self._host, self._port)

    def start(self, engine: QueryEngine) -> None:
        """Serve on the address that `reserve` took. Raises AddressInUse."""
        if self._reserved is None:
            return
        # Here: loading it takes part of a node's start, and many nodes do without.
        from headrace.consumers.serve.flight_server import FlightServer

        self._server = FlightServer(engine, self._host, self._reserved)
        self._server.start()
        self.url = self._address.flight_url(self._host, self._server.port)

    def stop(self) -> None:
        """Let running calls finish for a second, end the others, and give the address back."""
        if self._server is not None:
            self._server.stop()
        elif self._reserved is not None:
            self._reserved.close()
