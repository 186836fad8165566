"""Runs the HTTP surface in a thread of the node's process."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import threading

import structlog
import uvicorn
from starlette.requests import Request
from starlette.types import ASGIApp, Message

from headrace.consumers.serve.http_protocol import HttpProtocol
from headrace.schemas.errors import HeadraceError

STOP_S = 5.0
KEEP_ALIVE_S = 15
TICK_S = 1.0
_BACKLOG = 128
_log = structlog.get_logger(__name__)


class AddressInUse(HeadraceError):
    """The address to listen on is taken, or is not one of this machine."""


def reserve_address(host: str, port: int) -> socket.socket:
    """A socket with this address, on which nothing listens yet. Raises AddressInUse.

    A node takes its address before it does anything else: a port in use is found before topics are created.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol unset, asyncio leaves Nagle's algorithm on: the second part of each answer on a
    # kept-alive connection would wait 40 ms for the client's delayed acknowledgement.
    reserved = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    try:
        # A node that restarts must not wait until the kernel forgets connections of the process before.
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind((host.strip("[]"), port))
    except OSError as error:
        reserved.close()
        raise _address_in_use(host, port, error) from error
    return reserved


def _address_in_use(host: str, port: int, error: OSError) -> AddressInUse:
    return AddressInUse(
        f"cannot listen on {host}:{port}: {error.strerror or error}",
        action="give another address; port 0 takes a free one",
    )


class Server:
    """A socket and the thread that serves an application on it. It starts once; stopping it twice is fine."""

    def __init__(
        self, app: ASGIApp, host: str = "127.0.0.1", port: int = 0, *, reserved: socket.socket | None = None
    ) -> None:
        """Port 0 takes a free one; see `url`. Nothing listens before `start`.

        `reserved` is the socket that `reserve_address` returned for this address.
        """
        self._app = app
        self._host = host
        self._port = port
        self._reserved = reserved
        self._uvicorn: _Uvicorn | None = None
        self._thread: threading.Thread | None = None
        self._bound: tuple[str, int] | None = None

    @property
    def url(self) -> str:
        """The address of the node, such as `http://127.0.0.1:8080`; known after `start`."""
        assert self._bound is not None, "the server has not been started"
        host, port = self._bound
        return f"http://{f'[{host}]' if ':' in host else host}:{port}"

    def start(self) -> str:
        """Listen and serve; returns `url`. Raises AddressInUse."""
        assert self._uvicorn is None, "a server starts once"
        # Bound here and not by uvicorn: an address in use is then an error of the caller, and the number of a
        # free port is known before the thread runs.
        listening = self._reserved or reserve_address(self._host, self._port)
        try:
            listening.listen(_BACKLOG)
        except OSError as error:
            listening.close()
            raise _address_in_use(self._host, self._port, error) from error
        self._bound = listening.getsockname()[:2]
        _send_logs_to_structlog()
        config = uvicorn.Config(
            self._app,
            http=HttpProtocol,
            log_config=None,
            access_log=False,
            lifespan="off",
            server_header=False,
            # No handler reads X-Forwarded headers.
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=1,
        )
        self._uvicorn = _Uvicorn(config)
        self._thread = threading.Thread(target=self._serve, args=(self._uvicorn, listening), name="http", daemon=True)
        self._thread.start()
        return self.url

    def stop(self) -> None:
        """Refuse new requests, let running ones finish for a second, and end the thread."""
        if self._uvicorn is not None and self._thread is not None:
            self._uvicorn.end()
            self._thread.join(STOP_S)
            # A client that neither reads nor leaves must not keep the node from stopping.
            if self._thread.is_alive():
                self._uvicorn.force_exit = True
                self._thread.join(STOP_S)

    def _serve(self, server: uvicorn.Server, listening: socket.socket) -> None:
        try:
            server.run(sockets=[listening])
        # uvicorn exits the process when it cannot start. In a thread that would end it without a word.
        except SystemExit as error:
            _log.error("http surface ended", code=error.code)
        finally:
            with contextlib.suppress(OSError):
                listening.close()


class _Uvicorn(uvicorn.Server):
    """Looks at its state once a second, and at once when it is to end."""

    # uvicorn does so ten times a second, which was a tenth of the CPU time of an idle node.

    _loop: asyncio.AbstractEventLoop | None = None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn.Server."""
        # Its first call imports modules, for 0.15 s beside queries. That would be in the first query that takes
        # longer than others, and the loop would serve nobody meanwhile.
        await Request({"type": "http"}, _no_message).is_disconnected()
        await super().startup(sockets)

    async def main_loop(self) -> None:
        """See uvicorn.Server."""
        self._ended = asyncio.Event()
        # Last: `end` in another thread finds both, or `on_tick` finds `should_exit`.
        self._loop = asyncio.get_running_loop()
        # Each turn is the first one, which renews the date of the answers.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), TICK_S)

    def end(self) -> None:
        """End the loop, from any thread."""
        self.should_exit = True
        # A loop that is closed has ended.
        with contextlib.suppress(RuntimeError):
            if self._loop is not None:
                self._loop.call_soon_threadsafe(self._ended.set)


async def _no_message() -> Message:
    return {"type": "http.request"}


class _ToStructlog(logging.Handler):
    """Passes log records of uvicorn to structlog, except for failures that the application logs itself."""

    def emit(self, record: logging.LogRecord) -> None:
        """See logging.Handler."""
        message = record.getMessage()
        if not record.exc_info and "without completing response" not in message:
            _log.log(record.levelno, message, source=record.name)


def _send_logs_to_structlog() -> None:
    for name in ("uvicorn.error", "uvicorn.asgi"):
        logger = logging.getLogger(name)
        logger.setLevel(logging.WARNING)
        logger.propagate = False
        if not any(isinstance(handler, _ToStructlog) for handler in logger.handlers):
            logger.addHandler(_ToStructlog())
