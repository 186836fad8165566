"""A value that must be there."""

from __future__ import annotations

from typing import TypeVar

Value = TypeVar("Value")


def present(value: Value | None) -> Value:
    """A value that is not None; what needs it would else fail by another error."""
    assert value is not None
    return value
