"""A loopback TCP proxy with cuts: no bytes pass, in one direction or both, while every connection stays open.

Both ends see what they see in a network partition: silence, not a reset. Bytes sent during a cut wait in
buffers, as in those of TCP. They arrive late when the cut is healed, also from a sender that has timed out.
Connections made during a cut stay open and silent.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Coroutine, Iterator, Mapping
from contextlib import contextmanager
from enum import StrEnum
from typing import Any

HOST = "127.0.0.1"
CHUNK_BYTES = 1 << 16
BUFFER_BYTES = 1 << 18
CALL_TIMEOUT_S = 10.0


class Direction(StrEnum):
    """Direction of a cut."""

    BOTH = "both"
    TO_BROKER = "to_broker"
    FROM_BROKER = "from_broker"


class Proxy:
    """One listener that forwards to one port.

    It runs on the loop of `running_proxies`; `cut` and `heal` may be called from any thread.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, target_port: int) -> None:
        self._loop = loop
        self._target_port = target_port
        self._flows = {Direction.TO_BROKER: asyncio.Event(), Direction.FROM_BROKER: asyncio.Event()}
        self._connections: set[asyncio.Task[None]] = set()
        for flow in self._flows.values():
            flow.set()

    async def listen(self, port: int) -> None:
        """Accept connections on a port."""
        self._server = await asyncio.start_server(self._serve, HOST, port, limit=BUFFER_BYTES)

    async def close(self) -> None:
        """Stop to listen and drop every connection."""
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def cut(self, direction: Direction | str) -> None:
        """Block one direction or both; in effect when this returns."""
        self._switch(Direction(direction), open_=False)

    def heal(self) -> None:
        """Unblock both directions; bytes sent during a cut pass first."""
        self._switch(Direction.BOTH, open_=True)

    def _switch(self, direction: Direction, *, open_: bool) -> None:
        async def switch() -> None:
            for name, flow in self._flows.items():
                if direction in (Direction.BOTH, name):
                    flow.set() if open_ else flow.clear()

        _call(self._loop, switch())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._connect_ends(reader, writer)
        except asyncio.CancelledError:
            # `close` cancelled this task, and nothing else awaits it.
            pass
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _connect_ends(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self._target_port, limit=BUFFER_BYTES)
        except OSError:
            return
        try:
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._forward(reader, far_writer, self._flows[Direction.TO_BROKER]))
                directions.create_task(self._forward(far_reader, writer, self._flows[Direction.FROM_BROKER]))
        except* OSError:
            # One end is closed; the abort below closes the other.
            pass
        finally:
            far_writer.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: asyncio.Event) -> None:
        while chunk := await reader.read(CHUNK_BYTES):
            await flow.wait()
            writer.write(chunk)
            await writer.drain()
        await flow.wait()
        with contextlib.suppress(OSError):
            writer.write_eof()


@contextmanager
def running_proxies(ports: Mapping[int, int]) -> Iterator[dict[int, Proxy]]:
    """A proxy on each port that forwards to the mapped port, all on one thread that ends with the context."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="proxies", daemon=True)
    thread.start()
    proxies: dict[int, Proxy] = {}
    try:
        for port, target in ports.items():
            proxy = Proxy(loop, target)
            _call(loop, proxy.listen(port))
            proxies[port] = proxy
        yield proxies
    finally:
        for proxy in proxies.values():
            _call(loop, proxy.close())
        loop.call_soon_threadsafe(loop.stop)
        thread.join(CALL_TIMEOUT_S)
        loop.close()


def _call(loop: asyncio.AbstractEventLoop, work: Coroutine[Any, Any, None]) -> None:
    asyncio.run_coroutine_threadsafe(work, loop).result(CALL_TIMEOUT_S)
