"""Bodies of requests, which are bounded: a client that sends more gets an answer, and not the end of its connection."""

from __future__ import annotations

from starlette.requests import Request

from headrace.schemas.errors import HeadraceError

DRAINED_BYTES_MAX = 64 * 1024 * 1024
"""What is read of a body beyond its limit, and forgotten. Many clients read no answer before all of theirs is sent."""


async def bounded_body(request: Request, bytes_max: int, refusal: HeadraceError) -> bytes:
    """The body of a request. Raises `refusal` for one of more than `bytes_max`."""
    # Counted while it arrives: the length that a client announces need not be true.
    parts, size = list[bytes](), 0
    async for part in request.stream():
        size += len(part)
        if size > bytes_max + DRAINED_BYTES_MAX:
            break
        parts.append(part)
        if size > bytes_max:
            parts.clear()
    if size > bytes_max:
        raise refusal
    return b"".join(parts)
