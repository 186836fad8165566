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

# The most that settings may have. Each number is far beyond what is of use, and small enough for what it ends in: an
# `int` of librdkafka or of the system in milliseconds, a long of Avro, as many threads, or members of a group.
THREADS_MAX = 256
MEMBERS_MAX = 256
COUNT_MAX = 1_000_000
ROWS_MAX = 1_000_000_000
RECORDS_MAX = 1_000_000_000_000
BYTES_MAX = 10_000_000_000_000
MEGABYTES_MAX = 10_000_000
WAIT_S_MAX = 7 * 86_400
WAIT_MS_MAX = 1_000 * WAIT_S_MAX


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
