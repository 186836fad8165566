"""Writes single settings into a `headrace.toml` that belongs to the user: all other lines stay as they are.

The standard library reads TOML and does not write it, and a writer would drop comments and order. So lines are
edited, and the result is used only if it parses to the old settings with the new values.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.connectors.files import write_atomically
from headrace.settings import FILE_NAME, SettingsInvalid

_BYTE_ORDER_MARK = "\ufeff"
_TABLE = re.compile(r"\s*\[")


def update_settings_file(directory: Path, values: Mapping[str, str]) -> list[str]:
    """Set settings such as `cluster.name` in the `headrace.toml` of a directory, which is created if it is missing.

    Returns one line for each setting that changed. Raises SettingsInvalid for a file that cannot be edited, and
    OSError.
    """
    path = directory / FILE_NAME
    try:
        # Bytes: reading as text would replace the line ends of Windows, which the user's editor expects.
        text = path.read_bytes().decode()
    except FileNotFoundError:
        text = ""
    except UnicodeDecodeError as error:
        raise _not_edited(path, values) from error
    try:
        before = tomllib.loads(text.removeprefix(_BYTE_ORDER_MARK).replace("\r\n", "\n"))
        edited = with_values(text, values)
        same = tomllib.loads(edited.removeprefix(_BYTE_ORDER_MARK).replace("\r\n", "\n")) == _expected(before, values)
    except (tomllib.TOMLDecodeError, TypeError) as error:
        raise _not_edited(path, values) from error
    if not same:
        raise _not_edited(path, values)
    if edited != text:
        write_atomically(path, edited)
    return [
        _change(name, value, _value(before, name)) for name, value in values.items() if _value(before, name) != value
    ]


def with_values(text: str, values: Mapping[str, str]) -> str:
    """A TOML text with other values for some `section.key`; keys that are missing are added to their section."""
    # Each new key becomes the first of its section, so that the last one comes first.
    for name, value in reversed(list(values.items())):
        section, _, key = name.partition(".")
        text = _with_value(text, section, key, value)
    return text


def _with_value(text: str, section: str, key: str, value: str) -> str:
    lines = text.splitlines(keepends=True)
    end = "\r\n" if lines and lines[0].endswith("\r\n") else "\n"
    header = re.compile(rf"{_BYTE_ORDER_MARK}?\s*\[\s*{section}\s*\]\s*(#.*)?$")
    begin = next((index for index, line in enumerate(lines) if header.match(line.rstrip("\r\n"))), None)
    entry = f"{key} = {json.dumps(value, ensure_ascii=False)}"
    if begin is None:
        # At the end, since keys behind a header would become part of its section.
        gap = end if lines else ""
        return f"{_ended(text, end)}{gap}[{section}]{end}{entry}{end}"
    stop = next((index for index in range(begin + 1, len(lines)) if _TABLE.match(lines[index])), len(lines))
    known = re.compile(rf"(\s*){key}(\s*)=(\s*)(\"(?:[^\"\\]|\\.)*\"|'[^']*')(.*)$")
    for index in range(begin + 1, stop):
        found = known.match(lines[index].rstrip("\r\n"))
        if found:
            indent, before, after, _old, rest = found.groups()
            lines[index] = f"{indent}{key}{before}={after}{json.dumps(value, ensure_ascii=False)}{rest}{end}"
            return "".join(lines)
    lines[begin] = f"{_ended(lines[begin], end)}{entry}{end}"
    return "".join(lines)


def _ended(text: str, end: str) -> str:
    return text if not text or text.endswith("\n") else text + end


def _expected(before: Mapping[str, Any], values: Mapping[str, str]) -> dict[str, Any]:
    expected = {section: dict(content) if isinstance(content, dict) else content for section, content in before.items()}
    for name, value in values.items():
        section, _, key = name.partition(".")
        expected.setdefault(section, {})[key] = value
    return expected


def _value(content: Mapping[str, Any], name: str) -> object:
    section, _, key = name.partition(".")
    return content.get(section, {}).get(key)


def _change(name: str, value: str, old: object) -> str:
    return f'{name} = "{value}"' + (f' (was "{old}")' if old is not None else "")


def _not_edited(path: Path, values: Mapping[str, str]) -> SettingsInvalid:
    wanted = ", ".join(f'{name} = "{value}"' for name, value in values.items())
    return SettingsInvalid(f"{path} was not updated", action=f"set these in it: {wanted}")
