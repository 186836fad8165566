"""Bodies of requests, which are bounded: a client that sends more gets an answer, and not the end of its connection."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from urllib.parse import unquote

from starlette.datastructures import QueryParams
from starlette.requests import Request

from headrace.consumers.serve.expected_bodies import CONTINUE
from headrace.producers.group_writer import WritesWaiting
from headrace.schemas.errors import HeadraceError

DRAINED_BYTES_MAX = 64 * 1024 * 1024
"""What is read of a body beyond its limit, and forgotten. Many clients read no answer before all of theirs is sent."""

SILENCE_S = 60.0
"""A body of which nothing arrives for so long is given up: its client may have lost its network, and no packet says so."""
GZIP_PIECE_BYTES = 16 * 1024


class RequestInvalid(HeadraceError):
    """A request that cannot be understood."""


class RequestTooLarge(HeadraceError):
    """A request whose body is larger than any query is."""


class BodyRoom:
    """The bytes of all bodies that are here at a time. Owned by the event loop."""

    def __init__(self, held_bytes: int = 0) -> None:
        self.held_bytes = held_bytes

    @contextmanager
    def share(self, bytes_max: int) -> Iterator[BodyShare]:
        """The part of one body, while all of them may hold so many bytes."""
        share = BodyShare(self, bytes_max)
        try:
            yield share
        finally:
            share.release()


class BodyShare:
    """What one body holds of the room of all."""

    def __init__(self, room: BodyRoom, bytes_max: int) -> None:
        self._room = room
        self._bytes_max = bytes_max
        self._held_bytes = 0

    def grow(self, size_bytes: int) -> bool:
        """Hold so many bytes more; False, and nothing held any longer, where there is no room for them."""
        # One that is alone is bounded by its own limit: else a body above this one would be refused for ever.
        is_alone = self._room.held_bytes == self._held_bytes
        if not is_alone and self._room.held_bytes + size_bytes > self._bytes_max:
            self.release()
            return False
        self._room.held_bytes += size_bytes
        self._held_bytes += size_bytes
        return True

    def release(self) -> None:
        """Hold nothing: the body is gone, or counted elsewhere."""
        self._room.held_bytes -= self._held_bytes
        self._held_bytes = 0


async def bounded_body(
    request: Request,
    bytes_max: int,
    refusal: HeadraceError,
    run: Callable[..., Awaitable[bytes]] = asyncio.to_thread,
    share: BodyShare | None = None,
) -> bytes:
    """The body of a request, decompressed by `run` where it is gzip.

    Raises `refusal` for one of more than `bytes_max`, as it arrives or in what it holds, and RequestInvalid for one in
    another encoding, and, to be retried, for one that stops arriving; WritesWaiting where its share cannot grow.
    """
    encoding = _encoding_of(request)
    if _is_announced(request, bytes_max):
        raise refusal
    # Counted while it arrives: the length that a client announces need not be true.
    parts, size, has_room = list[bytes](), 0, True
    async for part in arriving(request):
        size += len(part)
        if size > bytes_max + DRAINED_BYTES_MAX:
            break
        has_room = has_room and (share is None or share.grow(len(part)))
        parts.append(part)
        if size > bytes_max or not has_room:
            parts.clear()
    if size > bytes_max:
        raise refusal
    body = b"".join(parts)
    if encoding == "gzip" and has_room:
        body = await run(decompressed, body, bytes_max, refusal)
        has_room = share is None or share.grow(max(0, len(body) - size))
    if not has_room:
        raise WritesWaiting(
            "too many bytes of other requests to write are here", action="try again in a moment", retriable=True
        )
    return body


def url_parameters(request: Request) -> QueryParams:
    """The parameters of a URL. Raises RequestInvalid for one that is not UTF-8."""
    return text_parameters(request.scope["query_string"])


def text_parameters(encoded: bytes) -> QueryParams:
    """The parameters of a URL or a form. Raises RequestInvalid for one that is not UTF-8."""
    # Replaced, two names of Latin-1 would be one.
    try:
        text = encoded.decode()
        unquote(text, errors="strict")
    except UnicodeDecodeError:
        raise RequestInvalid("the parameters are not UTF-8", action="encode them as UTF-8") from None
    return QueryParams(text)


def _encoding_of(request: Request) -> str:
    """How the content of a body is encoded. Raises RequestInvalid for an encoding that is not unpacked."""
    encoding = request.headers.get("content-encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip"):
        raise RequestInvalid(f"content-encoding {encoding!r} is unknown", action="send gzip, or no encoding")
    transfer = ", ".join(request.headers.getlist("transfer-encoding"))
    if transfer.strip().lower() not in ("", "chunked"):
        raise RequestInvalid(f"transfer-encoding {transfer!r} is unknown", action="send content-encoding: gzip")
    return encoding


def _is_announced(request: Request, bytes_max: int) -> bool:
    """Whether a body will have more bytes, and its client waits for leave to send it: it reads the answer first."""
    waits = request.headers.get("expect", "").lower() == CONTINUE
    return waits and int(request.headers.get("content-length", "0")) > bytes_max


async def arriving(request: Request) -> AsyncIterator[bytes]:
    """The parts of a body. Raises RequestInvalid, to be retried, for one that stops arriving."""
    stream = request.stream()
    while True:
        try:
            async with asyncio.timeout(SILENCE_S):
                part = await anext(stream, None)
        except TimeoutError:
            raise RequestInvalid(
                f"nothing of the body came for {SILENCE_S:.0f} s", action="send it again", retriable=True
            ) from None
        if part is None:
            return
        yield part


def decompressed(body: bytes, limit: int, refusal: HeadraceError) -> bytes:
    """The content of a gzip body. Raises `refusal` as soon as it has more bytes than `limit`, RequestInvalid."""
    parts, size, member = list[bytes](), 0, None
    try:
        # In pieces: behind each member zlib copies the rest, and a body may be a million empty members.
        for start in range(0, len(body), GZIP_PIECE_BYTES):
            rest = body[start : start + GZIP_PIECE_BYTES]
            # A gzip file may have several members, as `cat a.gz b.gz` has.
            while rest:
                member = member or zlib.decompressobj(wbits=31)
                parts.append(member.decompress(rest, limit - size + 1))
                size += len(parts[-1])
                if size > limit:
                    raise refusal
                rest = member.unused_data
                member = None if member.eof else member
    except zlib.error as error:
        raise RequestInvalid(f"the body is not gzip: {error}", action="compress it, or leave the header out") from None
    if member is not None:
        raise RequestInvalid("the gzip body ends early", action="send it whole")
    return b"".join(parts)
