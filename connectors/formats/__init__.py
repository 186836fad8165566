"""Parsers of raw readings (line protocol, JSON, CSV, Parquet, Arrow), which work on whole columns.

Other rooms import from here or from `interface`. docs/internals/raw-formats.md has the grammars and the
reasons.
"""

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
