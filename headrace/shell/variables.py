r"""The values of a session: `\set name value` and `--param` give them, and SQL reads them as `$name`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from headrace._parameters import typed_value
from headrace.schemas.errors import HeadraceError
from headrace.shell.statements import parameter_names

_NAME = re.compile(r"\$?([A-Za-z_]\w*)")


class VariableInvalid(HeadraceError):
    """A name that no variable can have, or that no variable has."""


class Variables:
    """Typed values by name; names do not differ by case. They are bound, and never become part of SQL."""

    def __init__(self, given: Mapping[str, Any] | None = None) -> None:
        self._values: dict[str, Any] = {name.lower(): value for name, value in (given or {}).items()}

    def set(self, name: str, text: str) -> None:
        """Set a variable; the type comes from the text, as in `--param`. Raises VariableInvalid."""
        self._values[_checked(name)] = typed_value(text)

    def unset(self, name: str) -> None:
        """Forget a variable. Raises VariableInvalid when there is none of the name."""
        if self._values.pop(_checked(name), None) is None:
            raise VariableInvalid(f"there is no variable {name}", action=r"\set lists them")

    def items(self) -> list[tuple[str, Any]]:
        """Names and values, in order of name."""
        return sorted(self._values.items())

    def used_by(self, statement: str) -> dict[str, Any]:
        """The values that a statement names: a node refuses others."""
        names = parameter_names(statement)
        return {name: value for name, value in self._values.items() if name in names}


def _checked(name: str) -> str:
    found = _NAME.fullmatch(name)
    if found is None:
        raise VariableInvalid(f"{name} is no name of a variable", action=r"for example \set pump p1")
    return found[1].lower()
