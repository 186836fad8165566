"""Parsers of raw readings (line protocol, JSON, CSV, Parquet, Arrow), which work on whole columns.

Other rooms import from here or from `interface`. docs/internals/raw-formats.md has the grammars and the
reasons. Each name is loaded when it is first used: many processes of Spark need the options alone.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.connectors.formats.arrow_tables import normalise
    from headrace.connectors.formats.file_blocks import Block, UnreadableFile, iterate_file
    from headrace.connectors.formats.interface import (
        FORMATS,
        LINE_COLUMN,
        MESSAGE_COLUMN,
        ColumnMissing,
        ColumnTypeError,
        Format,
        FormatError,
        FormatOptions,
        OptionsError,
        ParseResult,
        RejectedLine,
        TimeRangeError,
    )
    from headrace.connectors.formats.parser import parse_buffer, parse_messages

_HOMES = {
    "normalise": "arrow_tables",
    "Block": "file_blocks",
    "UnreadableFile": "file_blocks",
    "iterate_file": "file_blocks",
    "parse_buffer": "parser",
    "parse_messages": "parser",
}

__all__ = [
    "FORMATS",
    "LINE_COLUMN",
    "MESSAGE_COLUMN",
    "Block",
    "ColumnMissing",
    "ColumnTypeError",
    "Format",
    "FormatError",
    "FormatOptions",
    "OptionsError",
    "ParseResult",
    "RejectedLine",
    "TimeRangeError",
    "UnreadableFile",
    "iterate_file",
    "normalise",
    "parse_buffer",
    "parse_messages",
]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found = getattr(import_module(f"{__name__}.{_HOMES.get(name, 'interface')}"), name)
    globals()[name] = found
    return found
