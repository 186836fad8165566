"""A loopback TCP proxy that a test can cut: bytes stop to flow, in one direction or both, and every connection stays open.

That is what a partition looks like from both ends: silence, not a reset. What is sent meanwhile lies in buffers, as it would lie in those of TCP, and
arrives late when the cut is healed, also from a sender that has long given up; connections made meanwhile stand and say nothing.
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
PIECE_BYTES = 1 << 16
BUFFER_BYTES = 1 << 18
CALL_TIMEOUT_S = 10.0


class Way(StrEnum):
    """Which direction a cut stops."""

    BOTH = "both"
    TO_BROKER = "to_broker"
    FROM_BROKER = "from_broker"


class Proxy:
    """One listener and the port it passes on to. Lives on the loop of `running_proxies`; `cut` and `heal` may be called by any thread."""

    def __init__(self, loop: asyncio.AbstractEventLoop, target_port: int) -> None:
        self._loop = loop
        self._target_port = target_port
        self._flows = {Way.TO_BROKER: asyncio.Event(), Way.FROM_BROKER: asyncio.Event()}
        self._connections: set[asyncio.Task[None]] = set()
        for flow in self._flows.values():
            flow.set()

    async def listen(self, port: int) -> None:
        """Take connections on a port."""
        self._server = await asyncio.start_server(self._serve, HOST, port, limit=BUFFER_BYTES)

    async def close(self) -> None:
        """Listen no more and drop every connection."""
        self._server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def cut(self, way: Way | str) -> None:
        """Let nothing through in one direction or both, from when this returns."""
        self._switch(Way(way), open_=False)

    def heal(self) -> None:
        """Let everything through again, what was sent during a cut first."""
        self._switch(Way.BOTH, open_=True)

    def _switch(self, way: Way, *, open_: bool) -> None:
        async def switch() -> None:
            for name, flow in self._flows.items():
                if way in (Way.BOTH, name):
                    flow.set() if open_ else flow.clear()

        _call(self._loop, switch())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._connections.add(task)
        try:
            await self._join(reader, writer)
        except asyncio.CancelledError:
            # The proxy is closed, and nobody waits for this task.
            pass
        finally:
            self._connections.discard(task)
            writer.transport.abort()

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(HOST, self._target_port, limit=BUFFER_BYTES)
        except OSError:
            return
        try:
            async with asyncio.TaskGroup() as directions:
                directions.create_task(self._pass_on(reader, far_writer, self._flows[Way.TO_BROKER]))
                directions.create_task(self._pass_on(far_reader, writer, self._flows[Way.FROM_BROKER]))
        except* OSError:
            # One end is gone; the other learns it from the end of its connection.
            pass
        finally:
            far_writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, flow: asyncio.Event) -> None:
        while piece := await reader.read(PIECE_BYTES):
            await flow.wait()
            writer.write(piece)
            await writer.drain()
        await flow.wait()
        with contextlib.suppress(OSError):
            writer.write_eof()


@contextmanager
def running_proxies(ports: Mapping[int, int]) -> Iterator[dict[int, Proxy]]:
    """A proxy on each port that passes on to the port it is mapped to; on a thread of its own, gone at the end."""
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
