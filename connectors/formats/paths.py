"""Paths of values in nested data: `machine.id`, and `machine."serial.no"` for names with dots."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence

from headrace.connectors.formats.interface import OptionsError

Path = tuple[str, ...]

NEAR_MAX = 3
_PART = re.compile(r'"(?P<quoted>[^"]+)"|(?P<plain>[^".]+)')


def path_of(text: str) -> Path:
    """The names of a path. Raises OptionsError."""
    parts: list[str] = []
    position = 0
    while True:
        found = _PART.match(text, position)
        if found is None:
            break
        parts.append(found["quoted"] or found["plain"])
        position = found.end()
        if position == len(text):
            return tuple(parts)
        if text[position] != ".":
            break
        position += 1
    raise OptionsError(f"{text!r} is no path", action='names with dots between them: machine.id, machine."serial.no"')


def text_of(path: Path) -> str:
    """A path as it is written."""
    return ".".join(f'"{name}"' if "." in name else name for name in path)


def near_paths(path: Path, known: Sequence[Path]) -> str:
    """What to do about a path that is not known: similar ones, or all of them."""
    return near_names(text_of(path), [text_of(each) for each in known])


def near_names(name: str, known: Sequence[str]) -> str:
    """What to do about a name that is not known: similar ones, or all of them."""
    near = difflib.get_close_matches(name, known, n=NEAR_MAX)
    if near:
        return f"did you mean {' or '.join(near)}?"
    return f"there is {', '.join(known)}" if known else "there is none"
