"""Small JSON calls to a node's HTTP surface."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from schemas.errors import HeadraceError


class NodeUnreachable(HeadraceError):
    """A node that does not answer."""


class NodeRefused(HeadraceError):
    """A node that answered with an error, which the message repeats."""


def call_node(url: str, *, method: str = "GET", timeout_s: float = 30.0) -> Any:
    """The JSON that a node answers. Raises NodeUnreachable, NodeRefused."""
    request = urllib.request.Request(url, method=method, data=b"" if method == "POST" else None)
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as response:
            return json.load(response)
    except urllib.error.HTTPError as error:
        raise NodeRefused(f"{url}: {_reason(error.read())}", retriable=error.code in (409, 503)) from error
    except (OSError, ValueError) as error:
        raise NodeUnreachable(
            f"{url} does not answer: {error}", action="check that the node runs", retriable=True
        ) from error


def _reason(body: bytes) -> str:
    try:
        error = json.loads(body)["error"]
        return f"{error['message']} ({error['action']})" if error.get("action") else str(error["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace")[:200]
