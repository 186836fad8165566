"""The route by which nodes read each other's groups: `POST /api/v1/scan` with a `RemoteScanRequest` as JSON.

What can be refused at once is an HTTP error. From then on the answer is an Arrow stream, whose marks show that the
member still computes, that all rows were sent, or what ended the scan (see `scan_stream`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import structlog
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from headrace.consumers.query.group_scanner import GroupScanner
from headrace.consumers.query.query_errors import is_of_change
from headrace.consumers.query.running_scan import RunningScan
from headrace.consumers.query.scan_request import SCAN_ROUTE, RemoteScanRequest
from headrace.consumers.query.scan_stream import MEDIA_TYPE, ScanEncoder
from headrace.consumers.serve.node_api import NodeApi
from headrace.consumers.serve.query_service import CutOnError, posted_json
from headrace.schemas.errors import HeadraceError

MARK_INTERVAL_S = 1.0
"""An asker takes a member that is silent for `remote_rows.SILENCE_S` for one that hangs."""
SPARE_THREADS = 2
_log = structlog.get_logger(__name__)


def scan_routes(node: NodeApi) -> list[Route]:
    """The route of scans."""
    service = ScanService(node.scanner)
    return [Route(SCAN_ROUTE, service.respond, methods=["POST"])]


class ScanService:
    """Runs scans of HTTP requests on threads of its own, which no query of this node waits for."""

    def __init__(self, scanner: GroupScanner) -> None:
        self._scanner = scanner
        # One scan too many reaches the scanner, which refuses it, instead of waiting for a thread.
        self._threads = ThreadPoolExecutor(scanner.scans_max + SPARE_THREADS, thread_name_prefix="group-scan")

    async def respond(self, request: Request) -> Response:
        """The response to a scan. An asker that disconnects ends its scan, and so does the end of its time."""
        wanted = RemoteScanRequest.parse(await posted_json(request))
        opening = asyncio.wrap_future(self._threads.submit(self._scanner.open, wanted))
        try:
            scan = await asyncio.shield(opening)
        except asyncio.CancelledError:
            opening.add_done_callback(_close_unwanted)
            raise
        return CutOnError(self._stream(scan, wanted), scan.timer, MEDIA_TYPE)

    async def _stream(self, scan: RunningScan, request: RemoteScanRequest) -> AsyncGenerator[bytes]:
        loop = asyncio.get_running_loop()
        encoder = ScanEncoder(scan.schema)
        try:
            while True:
                pending = loop.run_in_executor(self._threads, scan.next)
                # An asker that leaves ends this generator here, and nobody else asks how the step ended.
                pending.add_done_callback(_take_error)
                while not (await asyncio.wait({pending}, timeout=MARK_INTERVAL_S))[0]:
                    yield encoder.waiting()
                batch = pending.result()
                if batch is None:
                    break
                yield await loop.run_in_executor(self._threads, encoder.rows, batch)
            yield encoder.end(scan.hand_overs.document(), scan.figures())
        except HeadraceError as error:
            # A query that meets the switch of a table is planned again.
            log = _log.info if is_of_change(error) else _log.warning
            log("scan ended early", group=request.group, kind=type(error).__name__, message=error.message)
            yield encoder.failed(error)
        finally:
            # Closing may wait for a batch that is being computed; the event loop must not.
            self._threads.submit(scan.close)


def _take_error(step: asyncio.Future[Any]) -> None:
    if not step.cancelled():
        step.exception()


def _close_unwanted(opening: asyncio.Future[RunningScan]) -> None:
    if not opening.cancelled() and opening.exception() is None:
        opening.result().close()
