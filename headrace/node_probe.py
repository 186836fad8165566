"""What the health routes of a node say to a process that waits for it."""

from __future__ import annotations

import json
from typing import Any

from headrace.connectors.http import NodeRefused, NodeUnreachable, call_node

JOINING = "joining: "
"""The reason of a node that is not in the slot table begins so; see `consumers/membership/placement.py`."""
LEAVING = "leaving: "
"""The same of a node that was removed, and hands over what is left."""


def probe(url: str, timeout_s: float = 5.0) -> tuple[bool, Any]:
    """(whether a health URL answers 200, its answer)."""
    try:
        return True, call_node(url, timeout_s=timeout_s)
    except NodeRefused as error:
        return False, error.body
    except NodeUnreachable as error:
        return False, f"it does not answer yet ({error.reason})"


def first_reason(answer: Any) -> str:
    """The first reason of a health answer, which is JSON where a node gave it."""
    return (_reasons(answer) or [str(answer)])[0]


def _reasons(answer: Any) -> list[str]:
    try:
        return [str(each) for each in json.loads(answer)["reasons"]]
    except (ValueError, KeyError, TypeError):
        return []


def is_joining(answer: Any) -> bool:
    """Whether a node is outside the slot table, by its health answer: it is not ready until somebody adds it."""
    return first_reason(answer).startswith(JOINING)


def is_leaving(answer: Any) -> bool:
    """Whether a node was removed and will end, by its health answer: it is never ready again."""
    return any(each.startswith(LEAVING) for each in _reasons(answer))
