"""What an HTTP request asks for, checked before anything is done with it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from starlette.requests import Request

from consumers.query.results import MEDIA_TYPES
from schemas.errors import HeadraceError

BODY_BYTES_MAX = 1024 * 1024
FORMAT_DEFAULT = "json"


class RequestInvalid(HeadraceError):
    """A request that cannot be understood."""


class RequestTooLarge(HeadraceError):
    """A request whose body is larger than any query is."""


@dataclass(frozen=True, slots=True)
class QueryRequest:
    """One question. `after` maps groups to log offsets that the answer must contain, `limit` is the most rows wanted."""

    sql: str
    format: str = FORMAT_DEFAULT
    after: Mapping[str, int] = field(default_factory=dict)
    timeout_ms: int | None = None
    limit: int | None = None


async def query_request(request: Request) -> QueryRequest:
    """The question in a GET (`?q=`) or a POST (JSON). Raises RequestInvalid or RequestTooLarge."""
    if request.method == "POST":
        return checked(await _posted(request))
    given: dict[str, Any] = dict(request.query_params)
    given["sql"] = given.pop("q", given.get("sql"))
    for name in ("timeout_ms", "limit"):
        if name in given:
            given[name] = _number(name, given[name])
    if "after" in given:
        given["after"] = _parsed("after", given["after"])
    return checked(given)


def checked(given: Mapping[str, Any]) -> QueryRequest:
    """A question from its parts. Raises RequestInvalid, naming the part that is wrong."""
    unknown = sorted(set(given) - {"sql", "format", "after", "timeout_ms", "limit"})
    if unknown:
        raise RequestInvalid(
            f"there is no parameter {unknown[0]!r}", action="known are sql, format, after, timeout_ms and limit"
        )
    sql, name, after = given.get("sql"), given.get("format") or FORMAT_DEFAULT, given.get("after") or {}
    if not isinstance(sql, str) or not sql.strip():
        raise RequestInvalid("the request has no SQL", action='send {"sql": "SELECT …"}, or GET with ?q=')
    if name not in MEDIA_TYPES:
        raise RequestInvalid(f"there is no format {name!r}", action=f"use one of {', '.join(MEDIA_TYPES)}")
    if not isinstance(after, dict) or not all(_is_count(offset) for offset in after.values()):
        raise RequestInvalid("after does not map groups to offsets", action='send {"after": {"group": offset}}')
    for part in ("timeout_ms", "limit"):
        if given.get(part) is not None and not (_is_count(given[part]) and given[part] > 0):
            raise RequestInvalid(f"{part} is not a positive whole number")
    return QueryRequest(sql, name, after, given.get("timeout_ms"), given.get("limit"))


async def _posted(request: Request) -> Mapping[str, Any]:
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != "application/json":
        raise RequestInvalid("the request is not JSON", action="send it with Content-Type: application/json")
    given = _parsed("the body", await body(request))
    if not isinstance(given, dict):
        raise RequestInvalid("the body is not a JSON object", action='send {"sql": "SELECT …"}')
    return given


async def body(request: Request) -> bytes:
    """The body of a request, up to BODY_BYTES_MAX. Raises RequestTooLarge."""
    parts: list[bytes] = []
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > BODY_BYTES_MAX:
            raise RequestTooLarge(f"the body is larger than {BODY_BYTES_MAX} bytes", action="send a smaller query")
        parts.append(part)
    return b"".join(parts)


def _parsed(name: str, text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise RequestInvalid(f"{name} is not JSON: {error}") from error


def _number(name: str, text: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 18:
        raise RequestInvalid(f"{name} is not a positive whole number")
    return int(text)


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
