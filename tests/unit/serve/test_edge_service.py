"""The routes of a store for senders."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from starlette.applications import Starlette

from headrace.consumers.node.requests import SealUnconfirmed
from headrace.consumers.serve.edge_service import edge_routes
from headrace.schemas.errors import HeadraceError


@pytest.mark.parametrize("centre", ["plainid", "/9xUNr+kQm2r2vE0RyzRUg", "a/b==", "%2F"])
def test_a_centre_is_forgotten_whatever_its_identity_is(centre: str) -> None:
    """An identity is base64, and each fourth one has a slash, which a server has decoded before it looks for a route."""
    forgotten = list[str]()
    store: Any = SimpleNamespace(centres=SimpleNamespace(forget=forgotten.append))
    app = Starlette(routes=edge_routes(lambda: store))

    async def forget() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://node") as client:
            return (await client.delete(f"/api/v1/sync/centres/{quote(centre, safe='')}")).status_code

    assert (204, [centre]) == (asyncio.run(forget()), forgotten)


@pytest.mark.parametrize(
    ("error", "again"), [(SealUnconfirmed("not read back in 30 s"), True), (HeadraceError("no such group"), False)]
)
def test_a_seal_that_nobody_confirms_is_asked_for_again(error: HeadraceError, again: bool) -> None:
    """A node with a full disk reads no seal back. Its sender waits for it, as it does not for what is refused for good."""

    def fails(_age_s: float) -> dict[str, Any]:
        raise error

    store: Any = SimpleNamespace(seal=fails)
    app = Starlette(routes=edge_routes(lambda: store))

    async def seal() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://node") as client:
            return await client.post("/api/v1/sync/seal", json={"age_s": 0})

    answer = asyncio.run(seal())
    assert (409, again) == (answer.status_code, answer.json()["error"]["retriable"])


@pytest.mark.parametrize(
    ("age_s", "status"), [("1e400", 200), ("1" + "0" * 400, 400), ("-1", 400), ("5", 200), ("[" * 100_000, 400)]
)
def test_an_age_that_no_float_holds_is_refused(age_s: str, status: int) -> None:
    """JSON has integers of any length, and lists of any depth. Such a one was an error of the node."""
    store: Any = SimpleNamespace(seal=lambda _age_s: {})
    app = Starlette(routes=edge_routes(lambda: store))

    async def seal() -> int:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://node") as client:
            return (await client.post("/api/v1/sync/seal", content=f'{{"age_s": {age_s}}}')).status_code

    assert status == asyncio.run(seal())
