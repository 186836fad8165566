"""The options of a benchmark, all of which are checked before anything is started."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.schemas.errors import HeadraceError

FROM_ZERO = ("seed",)


class OptionUnknown(HeadraceError):
    """An option that the benchmark does not have, or a value that it cannot use."""

    exit_code = 2


@dataclass(frozen=True, slots=True)
class Options:
    """The options by name, each with its default, whose type it has.

    A number is above 0, or at least 0 if it is in `from_zero`. A text of `among` is one of those. `problem_of` finds
    what is wrong with all of them together, and is empty otherwise.
    """

    defaults: Mapping[str, Any]
    from_zero: Sequence[str] = FROM_ZERO
    among: Mapping[str, Sequence[str]] = field(default_factory=dict)
    problem_of: Callable[[Mapping[str, Any]], str] = lambda _: ""

    def chosen(self, given: Mapping[str, str]) -> dict[str, Any]:
        """Every option with its value. Raises OptionUnknown."""
        for name in given:
            if name not in self.defaults:
                raise OptionUnknown(
                    f"there is no option {name!r}", action=f"the options are {', '.join(self.defaults)}"
                )
        found = {name: self._value(name, given.get(name, default)) for name, default in self.defaults.items()}
        if problem := self.problem_of(found):
            raise OptionUnknown(problem)
        return found

    def _value(self, name: str, text: Any) -> Any:
        kind = type(self.defaults[name])
        try:
            value = kind(text)
        except ValueError as error:
            raise OptionUnknown(f"the option {name}={text} is not a number", action="for example 100") from error
        if isinstance(value, str):
            self._check_text(name, value)
        # Also a float that is no number fails both comparisons.
        elif not (value >= 0 if name in self.from_zero else value > 0) or math.isinf(value):
            raise OptionUnknown(
                f"the option {name}={text} is out of range",
                action=f"give {'0 or more' if name in self.from_zero else 'more than 0'}",
            )
        return value

    def _check_text(self, name: str, value: str) -> None:
        if name in self.among and value not in self.among[name]:
            raise OptionUnknown(
                f"the option {name}={value} is unknown", action=f"give one of {', '.join(self.among[name])}"
            )
        if name == "dir" and value and not Path(value).is_dir():
            raise OptionUnknown(f"the option dir={value} is no directory", action="make it, or give another one")


def rows_below_hosts(given: Mapping[str, Any]) -> str:
    """Rows are those of all hosts at the same times: fewer than hosts would be none."""
    return "" if given["rows"] >= given["hosts"] else f"{given['rows']} rows are fewer than {given['hosts']} hosts"
