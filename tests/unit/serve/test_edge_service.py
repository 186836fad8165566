"""The routes of a store for senders."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from starlette.applications import Starlette

from headrace.consumers.serve.edge_service import edge_routes


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
