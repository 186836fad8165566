"""Serves the metrics of `headrace ingest run` and `headrace sync receive` over HTTP."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Protocol

import typer

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from headrace.terminal.output import Output

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MetricsAddressOption = Annotated[
    str | None, typer.Option("--http", metavar="HOST:PORT", help="Serve /metrics on this address.")
]


class MetricsSource(Protocol):
    """What has metrics, such as the figures of an ingest or of a receiver."""

    def text(self) -> str:
        """All of them at this moment, as Prometheus reads them."""
        ...


@contextmanager
def served_metrics(metrics: MetricsSource, address: str | None, output: Output) -> Iterator[None]:
    """Serve metrics while the body runs; without an address nothing listens.

    It answers under the names under which a node would (see `origin_check`). Raises AddressInvalid and AddressInUse.
    """
    if address is None:
        yield
        return
    # Loaded only for a server: it takes a quarter of a second.
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    from headrace.consumers.node.http_address import parse_address
    from headrace.consumers.serve.origin_check import LOOPBACK_NAMES, OriginCheck
    from headrace.consumers.serve.server import Server
    from headrace.settings import load_settings

    async def answer(_request: Request) -> Response:
        return PlainTextResponse(metrics.text(), media_type=MEDIA_TYPE)

    host, port = parse_address(address, "--http", "--http 127.0.0.1:9090")
    further = {name.strip("[]").lower() for name in load_settings().node.allowed_hosts}
    names = frozenset(further | {host.lower()} if further else ())
    checked = Middleware(OriginCheck, loopback=host in LOOPBACK_NAMES, names=names)
    server = Server(Starlette(routes=[Route("/metrics", answer)], middleware=[checked]), host, port)
    output.note(f"metrics at {server.start()}/metrics")
    try:
        yield
    finally:
        server.stop()
