"""What every class of settings shares; `headrace.settings` composes the rooms' classes to the tree that users
fill.

A room declares its settings in one `SettingsModel`: each field has its default, its bounds and a description.
`Internal[...]` marks limits that tests and code may set and users may not.
"""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import BaseModel, ConfigDict
from pydantic.fields import FieldInfo

Value = TypeVar("Value")


class _InternalMark:
    """Marks a field that is no setting of users."""


Internal = Annotated[Value, _InternalMark()]


class SettingsModel(BaseModel):
    """Frozen and checked when made. Raises pydantic.ValidationError, also for unknown names."""

    # Strict, because pydantic otherwise takes `true` for the whole number 1 and "1.0" for 1.
    model_config = ConfigDict(frozen=True, strict=True, extra="forbid")


def user_settings(model: type[BaseModel]) -> dict[str, FieldInfo]:
    """The fields of a class that users may set, in order."""
    return {
        name: field
        for name, field in model.model_fields.items()
        if not any(isinstance(mark, _InternalMark) for mark in field.metadata)
    }
